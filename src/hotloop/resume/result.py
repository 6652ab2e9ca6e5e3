"""What `hotloop verify-resume` finds, of hotloop's own trainer and of somebody's command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same: in a step, or (`None`) in the final state."""

    what: str
    step: int | None
    detail: str
    do: str | None = None
    """What restores it; `None` where that is not known, or it follows from the differences before."""


@dataclass(frozen=True, slots=True)
class OtherTopology:
    """A run that was killed once, and continued by several processes to the end."""

    ranks: int
    from_step: int
    samples_identical: bool
    weight_difference: float
    """Largest difference of a weight at the end, over the largest weight."""
    close: bool | None
    """`None` with dropout, which draws other numbers in each process."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What `hotloop verify-resume` found."""

    run: str
    bit_identical: bool
    kills: int
    kills_by_moment: dict[str, int]
    steps: int
    every_steps: int
    """The checkpoint interval; of a command, that between its first two saves."""
    steps_lost_max: int
    """Completed steps that one kill cost."""
    steps_lost_mean: float
    seed: int
    compared: dict[str, int]
    """How many of what, those of steps that were made twice included."""
    differences: tuple[Difference, ...]
    """The first of each kind, the earliest first."""
    reproducible: bool | None = None
    """True if two trainings without a kill are the same; looked at where something differed."""
    other_topology: OtherTopology | None = None
    notes: tuple[str, ...] = ()
    kept: str | None = None
    """The directory with all of it, where that was asked for."""
    schema: str = "hotloop.verify_resume/1"
