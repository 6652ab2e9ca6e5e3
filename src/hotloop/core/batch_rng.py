"""What batches drew random numbers from, in a run that holds these fixed for each batch: `draws-<pid>.jsonl`.

Standard library only: foreign processes write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchRng:
    """One batch. States are digests, by the generator's name: `torch`, `random`, `numpy.random`."""

    epoch: int
    """The seed that its loader drew for this pass over the data."""
    batch: str
    """Digest of its indices."""
    worker: int | None
    """The loader's process that made it; `None` is the one that trains."""
    found: Mapping[str, str]
    """States that it would have drawn from, had they not been held fixed."""
    left: Mapping[str, str]
    """States that it left, of the generators that it drew from."""
    next_epoch: Mapping[str, str] | None = None
    """For a worker's first batch, states that it would have found where its loader had drawn another seed. `None`:
    not looked at, since torch alone seeds this worker, or not known."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A loader began to give its batches."""

    epoch: int
    loader: str
    """Digest of what stays the same of a loader from epoch to epoch."""
    num_workers: int
    seeded_by: tuple[str, ...] = ()
    """Its arguments that may seed workers otherwise than torch does: `worker_init_fn`, `generator`."""


@dataclass(frozen=True, slots=True)
class RngLog:
    """What the processes of one run drew."""

    batches: tuple[BatchRng, ...] = field(default=())
    epochs: tuple[EpochStart, ...] = field(default=())


def rng_file(directory: Path, pid: int) -> Path:
    return directory / f"draws-{pid}.jsonl"


def rng_line(entry: BatchRng | EpochStart) -> str:
    return json.dumps(asdict(entry)) + "\n"


def read_rng_log(directory: Path) -> RngLog:
    """What the processes of a run wrote there; a line that the end of one tore is left out."""
    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob("draws-*.jsonl")):
        content = path.read_text(encoding="utf-8", errors="replace")
        whole = content[: content.rfind("\n") + 1]
        found += [json.loads(line) for line in whole.splitlines()]
    batches = [BatchRng(**each) for each in found if "batch" in each]
    starts: Sequence[dict[str, Any]] = [each for each in found if "batch" not in each]
    epochs = [EpochStart(**{**each, "seeded_by": tuple(each["seeded_by"])}) for each in starts]
    return RngLog(tuple(batches), tuple(epochs))
