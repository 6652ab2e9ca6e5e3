"""One optimizer update, as it was seen. Standard library only: foreign processes import this."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from hotloop.core.errors import UsageError

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

DEVICE_PHASES = ("compute", "communication", "memcpy", "idle")

TAGS = ("warmup", "compile", "gc", "checkpoint", "eval", "profiled", "resumed")
"""Why a step may be unlike its neighbours. `warmup` steps are kept and left out of statistics."""


_MAY_OVERFLOW = frozenset({"loss", "grad_norm"})
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step (one optimizer update). Seconds are floats, `None` means not known."""

    step: int
    """Counted from 0."""
    wall_s: float
    """Host wall time from the end of the previous step to the end of this one."""
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

    def to_json(self) -> str:
        """One line of `steps.jsonl`, without the fields that are not known.

        A loss or norm that is no finite number is written as "NaN", "Infinity" or "-Infinity", since
        JSON has no number for it and a reader must see that it was there.
        """
        values = {k: v for k, v in asdict(self).items() if v is not None and v not in ((), {})}
        for key in _MAY_OVERFLOW & values.keys():
            if not math.isfinite(values[key]):
                values[key] = json.dumps(values[key])  # Python's own word for it
        return json.dumps(values, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_mapping(cls, values: dict[str, object]) -> StepRecord:
        """Raises `ValueError` for a missing or unknown field."""
        known = {f.name for f in fields(cls)}
        unknown = set(values) - known
        if unknown:
            raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
        if not isinstance(values.get("step"), int):
            raise ValueError("`step` must be an integer")
        wall = values.get("wall_s")
        if not _is_number(wall) or not wall >= 0:  # type: ignore[operator]
            raise ValueError("`wall_s` must be seconds, 0 or more")
        words = {key: values[key] for key in _MAY_OVERFLOW if values.get(key) in _NOT_FINITE}
        values = {**values, **{key: float(str(word)) for key, word in words.items()}}
        host = values.get("host", {})
        if not isinstance(host, dict) or not all(_is_number(v) for v in host.values()):
            raise ValueError("`host` must map phases to seconds")
        for key in _MAY_OVERFLOW:
            if values.get(key) is not None and not _is_number(values[key]):
                raise ValueError(f"`{key}` must be a number")
        tags = values.get("tags", ())
        if not isinstance(tags, (list, tuple)):
            raise ValueError("`tags` must be a list")
        return cls(**{**values, "tags": tuple(tags)})  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_steps(path: Path) -> Iterator[StepRecord]:
    """The records of a `steps.jsonl`, oldest first.

    A torn last line (the process was killed while writing it) is left out; damage anywhere else
    raises `UsageError` with the line number.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read step records: {error.strerror}", where=str(path)) from error
    torn = lines.pop()  # b"" after a complete last line
    if torn.strip():
        try:
            lines.append(torn) if isinstance(json.loads(torn), dict) else None
        except ValueError:
            pass
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError("not an object")
            yield StepRecord.from_mapping(values)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"damaged step record: {error}",
                where=f"{path}:{number}",
                do="delete that line to read the rest",
            ) from error
