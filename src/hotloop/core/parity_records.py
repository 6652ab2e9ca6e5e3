"""What runs whose losses are compared write beside their steps: random numbers of batches, and moves of the weights.

`draws-<pid>.jsonl`: what batches drew random numbers from, in a run that holds these fixed for each batch.
`weights-<rank>.json`: how far the run has moved its weights, in numbers small enough to keep.
Standard library only: foreign processes write both.
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


WEIGHTS_SCHEMA = "hotloop.weights/1"


@dataclass(frozen=True, slots=True)
class TensorUpdates:
    """One tensor of weights, after some of the updates of its optimizer. Lists have an entry for each."""

    steps: tuple[int, ...]
    """Updates of its optimizer that had been made, the first is 1."""
    start: float
    """L2 norm of the weights before the first."""
    moved: tuple[float, ...]
    """L2 norm of how far they are from there."""
    along: tuple[float, ...]
    """Inner product of that way with the weights before the first: decay shows here."""
    gradient: tuple[float | None, ...]
    """L2 norm of the gradient that the update used; `None` where it had none."""
    moved_sample: tuple[tuple[float, ...], ...]
    """The way of a few elements, the same ones in every run."""
    gradient_sample: tuple[tuple[float, ...] | None, ...]
    size: int | None = None
    """Its elements."""


@dataclass(frozen=True, slots=True)
class WeightUpdates:
    """Tensors in the order in which their optimizers first stepped and hold them."""

    tensors: tuple[TensorUpdates, ...]
    schema: str = WEIGHTS_SCHEMA
