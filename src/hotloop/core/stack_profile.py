"""Where a running process was seen, by stacks that were sampled from outside of it."""

from __future__ import annotations

from dataclasses import dataclass

STACK_PROFILE_SCHEMA = "hotloop.stack_profile/1"


@dataclass(frozen=True, slots=True)
class SampledLine:
    site: str
    """`train.py:42`, relative to the working directory of the process: the innermost line of the user's own code."""
    function: str
    fraction: float
    """Share of all samples of the thread; of loader workers: of theirs."""
    text: str | None
    """`None` where the file cannot be read, or was written after the process started."""


@dataclass(frozen=True, slots=True)
class WorthTrying:
    """A finding that a phase looks like. Nothing was tried, and what it would gain is not known."""

    code: str
    title: str
    fixes: tuple[str, ...]
    """What `hotloop doctor -- COMMAND` tries for it."""


@dataclass(frozen=True, slots=True)
class SampledPhase:
    phase: str
    fraction: float
    low: float
    high: float
    """95 %, allowing for samples that resemble their neighbours."""
    lines: tuple[SampledLine, ...]
    """The most frequent ones."""
    worth_trying: tuple[WorthTrying, ...]


@dataclass(frozen=True, slots=True)
class StackProfile:
    pid: int
    """The process that was examined: where a launcher was named, one that it started."""
    command: str | None
    """What to run next time, in a shell; `None` where the process does not say how it was started."""
    num_samples: int
    seconds: float
    trains: bool
    """A loader, a model, a pass backward or an optimizer was seen."""
    phases: tuple[SampledPhase, ...]
    """The largest first; `eval` is not told from `forward`."""
    workers: SampledPhase | None
    """Loader workers, while they make batches; `None` without any."""
    notes: tuple[str, ...]
    schema: str = STACK_PROFILE_SCHEMA
