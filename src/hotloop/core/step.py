"""One optimizer update, as it was seen. Standard library only: foreign processes import this."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.untrusted import TORN, object_lines

HOST_PHASES = (
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "grad_sync",
    "optimizer",
    "sync",
    "checkpoint",
    "eval",
    "logging",
    "unattributed",
)
"""Exclusive phases of host wall time, in the order they are printed."""

WOULD_DO = 50
"""Steps with which somebody's loop is judged in full: warm-up, those that count, and those under torch's profiler."""

_MAY_OVERFLOW = frozenset({"loss", "grad_norm"})
_AMOUNTS = frozenset(
    {"tokens", "samples", "learning_rate", "syncs", "peak_bytes", "clock_reads"}
    | {"batches_taken", "batches_ready", "left_out", "left_out_s"}
)
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step (one optimizer update). Seconds are floats, `None` means not known."""

    step: int
    """Counted from 0."""
    wall_s: float
    """Host wall time from the end of the previous step to the end of this one; in somebody else's process, as all
    its phases, without what the probe itself did in that time while no device was at work."""
    host: dict[str, float] = field(default_factory=dict)
    """Exclusive seconds per host phase, `unattributed` among them; absent phases took no time.
    Empty when only a step clock was carried."""
    device: dict[str, float] | None = None
    """Seconds per device phase; `None` where the device has no clock of its own (CPU)."""
    tokens: int | None = None
    samples: int | None = None
    loss: float | None = None
    """Mean over the targets of the global batch, in nats."""
    grad_norm: float | None = None
    """Global L2 norm before clipping."""
    learning_rate: float | None = None
    syncs: int | None = None
    peak_bytes: int | None = None
    """Highest memory so far: device memory on an accelerator, resident set on a CPU."""
    clock_reads: int = 0
    """How often the probe read its clock; times the measured cost of a read it is the overhead."""
    tags: tuple[str, ...] = ()
    """Why it may be unlike its neighbours. `warmup` steps are kept and left out of statistics; so are `compile`, `profiled`,
    `resumed` and `after_profiler` (faster than those before torch's profiler was at work, by what it changed). `gc`, `checkpoint`,
    `eval`, `skipped` (its update was left out), `epoch` (the training's loader began anew in it), `recompile` (something was
    compiled again, after the start), `rolled_back` (the first after going back to a checkpoint), and `spike`: its loss or
    gradient norm stood far above the recent ones."""
    batches_taken: int | None = None
    """From loader workers; `None` where none were seen."""
    batches_ready: int | None = None
    """Made by loader workers and not taken, at the end of the step."""
    batches_to_come: bool | None = None
    """True if the loader had more to ask its workers for: not near the end of an epoch, where they stop."""
    left_out: int | None = None
    """Steps right before it that were not looked at, so that looking costs less: they have no records."""
    left_out_s: float | None = None
    """Wall time of these together."""

    def to_json(self) -> str:
        """One line of `steps.jsonl`, without the fields that are not known.

        A loss or norm that is no finite number is written as "NaN", "Infinity" or "-Infinity", since
        JSON has no number for it and a reader must see that it was there.
        """
        values = {
            name: getattr(self, name) for name in _NAMES
        }  # `asdict` copies, at ten times the cost
        values = {k: v for k, v in values.items() if v is not None and v not in ((), {})}
        for key in _MAY_OVERFLOW & values.keys():
            if not math.isfinite(values[key]):
                values[key] = json.dumps(values[key])  # Python's own word for it
        return _ENCODED(values)

    @classmethod
    def from_mapping(cls, values: dict[str, object]) -> StepRecord:
        """Raises `ValueError` for a missing or unknown field."""
        unknown = values.keys() - _FIELDS
        if unknown:
            raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
        step = values.get("step")
        if not isinstance(step, int) or not 0 <= step < 1 << 53:
            raise ValueError("`step` must be an integer, 0 or more")
        if not _is_amount(values.get("wall_s")):
            raise ValueError("`wall_s` must be seconds, 0 or more")
        words = {key: values[key] for key in _MAY_OVERFLOW if values.get(key) in _NOT_FINITE}
        values = {**values, **{key: float(str(word)) for key, word in words.items()}}
        host = values.get("host", {})
        device = values.get("device") or {}
        for name, phases in (("host", host), ("device", device)):
            if not isinstance(phases, dict) or not all(map(_is_amount, phases.values())):
                raise ValueError(f"`{name}` must map phases to seconds, 0 or more")
        for key in _MAY_OVERFLOW & values.keys():
            if values[key] is not None and not _is_number(values[key]):
                raise ValueError(f"`{key}` must be a number")
        for key in _AMOUNTS & values.keys():
            unknown_yet = values[key] is None and key != "clock_reads"
            if not unknown_yet and not _is_amount(values[key]):
                raise ValueError(f"`{key}` must be a number, 0 or more")
        if values.get("batches_to_come") not in (None, True, False):
            raise ValueError("`batches_to_come` must be true or false")
        tags = values.get("tags", ())
        if not isinstance(tags, (list, tuple)) or not all(isinstance(tag, str) for tag in tags):
            raise ValueError("`tags` must be a list of words")
        return cls(**{**values, "tags": tuple(tags)})  # type: ignore[arg-type]


_ENCODED = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_NAMES = tuple(each.name for each in fields(StepRecord))
_FIELDS = frozenset(_NAMES)


def steps_name(rank: int) -> str:
    """The file of one of several processes that train together: `steps.jsonl`, `steps-1.jsonl`, ..."""
    return f"steps-{rank}.jsonl" if rank else "steps.jsonl"


def samples_name(rank: int) -> str:
    """The file with the samples that one process's steps took: `samples.jsonl`, `samples-1.jsonl`, ..."""
    return f"samples-{rank}.jsonl" if rank else "samples.jsonl"


def steps_of_ranks(directory: Path) -> dict[int, Path]:
    """The step records in a run directory, by rank; of somebody else's script rank 0 is `steps-0.jsonl`."""
    found = {}
    for path in directory.glob("steps-*.jsonl"):
        number = path.stem.removeprefix("steps-")
        if number.isascii() and number.isdigit():
            found[int(number)] = path
    if (directory / steps_name(0)).is_file():
        found[0] = directory / steps_name(0)
    return dict(sorted(found.items()))


def _is_number(value: object) -> bool:
    """A float, or an integer that fits one."""
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 1000)


def _is_amount(value: object) -> bool:
    """A finite number, 0 or more."""
    return _is_number(value) and 0 <= value < 1e300  # type: ignore[operator]


def read_steps(path: Path) -> Iterator[StepRecord]:
    """The records of a `steps.jsonl`, oldest first.

    A torn last line (the process was killed while writing it) is left out; damage anywhere else
    raises `UsageError` with the line number.
    """
    for number, found in _lines_of(path):
        if isinstance(found, StepRecord):
            yield found
        elif found is not TORN:
            do = "delete that line to read the rest"
            raise UsageError(f"damaged step record: {found}", where=f"{path}:{number}", do=do)


def readable_steps(path: Path) -> tuple[list[StepRecord], dict[int, str]]:
    """Every record that can be read, and what is wrong with each other line, by its number.

    A torn last line counts as `TORN`. Raises `UsageError` when the file cannot be opened.
    """
    records: list[StepRecord] = []
    damaged: dict[int, str] = {}
    for number, found in _lines_of(path):
        if isinstance(found, StepRecord):
            records.append(found)
        else:
            damaged[number] = found
    return records, damaged


def _lines_of(path: Path) -> Iterator[tuple[int, StepRecord | str]]:
    """Each line that is not empty: its number, and its record or what is wrong with it."""
    try:
        # A loss may be NaN: other writers leave it bare.
        yield from ((at, _record(found)) for at, found in object_lines(path, finite=False))
    except OSError as error:
        raise UsageError(f"cannot read step records: {error.strerror}", where=str(path)) from error


def _record(found: dict[str, Any] | str) -> StepRecord | str:
    if isinstance(found, str):
        return found
    try:
        return StepRecord.from_mapping(found)
    except (ValueError, TypeError) as error:
        return str(error)
