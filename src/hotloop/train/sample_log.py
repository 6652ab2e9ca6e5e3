"""Records which samples each step takes: `samples.jsonl`, appended to and never cut, also by what is made again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hotloop.core.files import append_line
from hotloop.core.ranks import Ranks
from hotloop.core.step import samples_name
from hotloop.train.batches import StepData

DIGEST_BYTES = 8


class SampleLog:
    """The file of one process. A line per step holds a checksum of each of its sequences, in order."""

    def __init__(self, directory: Path, ranks: Ranks) -> None:
        self._path = directory / samples_name(ranks.rank)
        self._num_ranks = ranks.num_ranks

    def begin(self, first_step: int) -> None:
        """Mark that a process begins with this step. Raises `EnvironmentFailed`."""
        self._append({"from_step": first_step, "num_ranks": self._num_ranks})

    def add(self, step: int, data: StepData) -> None:
        """Record what a step is about to take. Raises `EnvironmentFailed`."""
        samples = []
        for inputs in data.microbatches:
            arrays = [tensor.numpy() for tensor in inputs]
            for row in range(len(arrays[0])):
                digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
                for array in arrays:
                    digest.update(array[row].tobytes())
                samples.append(digest.hexdigest())
        self._append({"step": step, "samples": samples})

    def _append(self, line: dict[str, object]) -> None:
        append_line(self._path, line, "record the samples")
