"""Where the memory of a training goes, predicted and measured, and whether it fits. All in bytes.

Foreign processes import this: the standard library alone, but for what is imported in functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotloop.core.errors import CommandFailed

WAYS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"train.loss": "chunked"}, "the same loss, of some tokens at a time"),
    ({"checkpoint.background": False}, "a save holds the steps up while it is written"),
    ({"train.host_memory": "default"}, "slower steps on a CPU: freed memory is asked for again"),
    ({"train.precision": "bf16"}, "activations are rounded to bf16"),
    ({"train.compile": True}, "compiling takes a minute first"),
    ({"train.activation_checkpointing": "selective"}, "all but products is computed twice"),
    ({"train.activation_checkpointing": "full"}, "the forward of each block is computed twice"),
)
"""Settings that make a training smaller beside its microbatch, by what they cost it, and what that is."""


OF_THE_HOST = frozenset({"checkpoint.background", "train.host_memory"})
"""Ways that change nothing in a GPU's memory."""


def ways_left(flat: Mapping[str, Any], *, on_cpu: bool) -> list[tuple[dict[str, Any], str]]:
    """Those that a config with these settings does not have already. What is `auto` to the end takes memory where it is left."""

    def has(key: str, value: Any) -> bool:
        given = flat.get(key)
        if key == "train.compile":
            return bool(given)
        return given in (value, "auto") or (value == "selective" and given != "none")

    ways = [(c, why) for c, why in WAYS if on_cpu or OF_THE_HOST.isdisjoint(c)]
    return [(c, why) for c, why in ways if not all(has(key, c[key]) for key in c)]


REFUSALS = (
    "out of memory",
    "out of shared memory",
    "allocate memory",
    "unable to allocate",
    "bad_alloc",
    "alloc_failed",
    "is killed by signal: killed",
    "memoryerror",
)
"""What allocators and torch's DataLoader say, in lower case."""


def refuses_memory(text: str) -> bool:
    """Whether this says that memory was refused, or a loader's worker killed for it."""
    return any(words in text.lower() for words in REFUSALS)


REFUSED = "this process may use"
"""What a training says whose model alone is too large, before it begins."""


def is_for_memory(error: CommandFailed) -> bool:
    """Whether a training ended because its memory was too small."""
    said = f"{error.what} {error.do}"
    return refuses_memory(said) or REFUSED in said or error.returncode in (-9, 137)


def memory_refusal(error: BaseException | None) -> BaseException | None:
    """The error that says so: this one, or one that led to it. Of torch's own class by its name: it is not imported here."""
    while error is not None:
        is_theirs = any(each.__name__ == "OutOfMemoryError" for each in type(error).__mro__)
        says = isinstance(error, RuntimeError | OSError) and refuses_memory(str(error))
        if isinstance(error, MemoryError) or is_theirs or says:
            return error
        error = error.__cause__
    return None


@dataclass(frozen=True, slots=True)
class MemoryNote:
    """What one process that trains writes of its memory while it lives: `memory-NAME.json`."""

    pid: int
    at: float
    """Seconds since the epoch."""
    device: str = "cpu"
    step: int | None = None
    """The step that runs; `None`: no step has begun."""
    phase: str | None = None
    """What it does now; `None`: outside every phase."""
    now_bytes: int | None = None
    """Resident set, or what is allocated on the device."""
    peak_bytes: int | None = None
    used_bytes: int | None = None
    """Of what the limit counts."""
    owners: dict[str, int] = field(default_factory=dict)
    """Sizes of the tensors that stay, by owner; `process`, or `start`: what was there before them; `freed`: what had been there, where that was
    the highest."""
    workers_bytes: int = 0
    """The most seen of what the processes below it have for themselves: pages that they share with it are its own."""
    phases: dict[str, int] = field(default_factory=dict)
    """The highest seen in each phase, in some looks a second."""
    limit_bytes: int | None = None
    limit_from: str | None = None
    group: str | None = None
    """Its control group for memory."""
    kills: dict[str, int] = field(default_factory=dict)
    """`hardware.limits.memory_kills`, when it began."""
    failed: str | None = None
    """What it said when memory was refused, and ended."""
    line: str | None = None
    """`file:line` of the script where that was."""


MEMORY_NOTES = "memory-*.json"
FIT_FILE = "fit.json"
"""The `Fit` of a run's own config, beside it."""


def read_memory_notes(directory: Path, pattern: str = MEMORY_NOTES) -> list[MemoryNote]:
    """Those in a run directory that can be read: what failed first, then what took most."""
    from hotloop.core.files import validated  # needs pydantic
    from hotloop.core.untrusted import parse_object, read_bytes

    found = []
    for path in sorted(directory.glob(pattern)):
        try:
            found.append(validated(MemoryNote, parse_object(read_bytes(path))))
        except (OSError, ValueError):  # it was ended while it wrote
            continue
    return sorted(found, key=lambda n: (n.failed is None, -(n.peak_bytes or 0)))


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Where the memory of a process that trained went, as it was seen."""

    device: str
    peak_bytes: int
    """Of the process with its loader workers, or on its device."""
    parts: dict[str, int]
    """By owner; adds up to the peak."""
    phases: dict[str, int]
    limit_bytes: int | None = None
    limit_from: str | None = None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A training that ended for its memory."""

    certainty: Literal["said", "killed", "probably"]
    """It said so itself; the kernel counts that it killed it for that; or what is known only points there."""
    said: str | None
    where: str
    """The step, its phase, the line."""
    used_bytes: int | None
    """The most that is known, of what the limit counts."""
    limit_bytes: int | None
    limit_from: str | None
    profile: MemoryProfile | None
    ways: tuple[str, ...] = ()
    """What to do, the cheapest first."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a training asks for, seen without computing."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    averaged_bytes: int
    """The mean of the weights that `averaging` keeps."""
    activations_bytes: int
    """What the forward of one microbatch leaves for its backward, the logits among it."""
    logits_bytes: int
    """In fp32, once."""
    live_bytes: int
    """The most in use at one moment of the first steps, beyond `start_bytes`."""
    start_bytes: int
    """The process before the model was built; 0 of a GPU, which does not hold it."""
    steps_bytes: int
    """The peak of the first steps."""
    whole_bytes: int
    """The peak with more steps, an evaluation and a save (beside a step, where `checkpoint.background` is true)."""


@dataclass(frozen=True, slots=True)
class Way:
    """Other settings with which a training fits."""

    settings: tuple[str, ...]
    """`KEY=VALUE`."""
    whole_bytes: int
    """Its predicted peak."""
    effect: str
    """What it costs."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A training of the recommended microbatch within the memory that was asked for."""

    microbatch: int
    grad_accum_steps: int
    steps: int
    limited_by: str
    """What held it to the memory."""
    survived: bool
    peak_bytes: int | None
    tokens_per_s: dict[int, float | None] = field(default_factory=dict)
    """By microbatch, of those that were measured; `None`: it was ended for its memory."""
    num_processes: int = 0
    """Real ones, of the whole call."""
    settings: tuple[str, ...] = ()
    """`KEY=VALUE` beside the microbatch, without which none is predicted to fit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the memory of a config goes, and whether it fits."""

    device: str
    microbatch: int
    grad_accum_steps: int
    parts: dict[str, int]
    """The predicted peak of a whole training; adds up to it."""
    steps_bytes: int
    """Predicted: the peak of the first steps, to be held against `measured_bytes`."""
    whole_bytes: int
    """Predicted: the peak of a whole training."""
    calibrated_by: str | None
    """The settings of the real run that showed what no trace sees; `None`: there was none."""
    measured_bytes: int | None
    """The peak of a real run of the same first steps."""
    error_fraction: float | None
    """Of `steps_bytes`, over what was measured."""
    limit_bytes: int
    limit_from: str
    fits: bool
    largest_microbatch: int
    """Predicted to fit; 0: none is."""
    least_bytes: int
    """Predicted: the peak at a microbatch of 1."""
    ways: tuple[Way, ...] = ()
    unknown: tuple[str, ...] = ()
    """What is not known, and why."""
    measured: dict[int, int] = field(default_factory=dict)
    """Peak of each microbatch that a real run was made with, of the whole context."""
    by_microbatch: dict[int, int] = field(default_factory=dict)
    """Predicted: the peak of a whole training with half, one, two and four times the microbatch."""
    proof: Proof | None = None
    schema: str = "hotloop.fit/1"
