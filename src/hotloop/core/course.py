"""How a run went over its steps and its seconds, summed up in at most a few hundred places to draw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity. Each place sums up some neighbouring values; `None` where none was known."""

    x: tuple[float, ...]
    """First step, or second, of each place."""
    low: tuple[float | None, ...]
    mid: tuple[float | None, ...]
    """Median of the place."""
    high: tuple[float | None, ...]
    num_values: int
    """Values known in all."""

    @property
    def is_exact(self) -> bool:
        """True if each place is a single value."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Some steps in a row."""

    first_step: int
    last_step: int
    num_steps: int
    """Records between the two; a damaged line leaves fewer than the numbers say."""
    wall_s: float
    """Mean of a step."""
    longest_s: float
    host: dict[str, float]
    """Mean seconds per phase of a step; their sum is `wall_s` where phases were recorded."""
    tags: dict[str, int]
    """How many of the steps carry each tag."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Work per second of the steady steps: those without any tag."""

    unit: Literal["token", "sample", "step"]
    median: float
    low: float
    """One step in twenty was slower."""
    high: float
    """One step in twenty was faster."""
    num_steps: int


@dataclass(frozen=True, slots=True)
class StepCourse:
    """A run over its steps."""

    spans: tuple[StepSpan, ...]
    rate: Curve
    """Work per second, in the unit of `unit`."""
    unit: Literal["token", "sample", "step"]
    loss: Curve
    grad_norm: Curve
    num_not_finite: int
    """Losses that were no numbers."""
    first_not_finite: int | None
    """Step of the first one."""
    pace: Pace | None
    """`None` without a steady step."""


@dataclass(frozen=True, slots=True)
class GpuCourse:
    """One GPU over the seconds of a run; curves by the names of `GpuSample`."""

    index: int
    name: str | None
    curves: dict[str, Curve]
    memory_total_bytes: int | None
    power_limit_w: float | None
    throttled: dict[str, float] = field(default_factory=dict)
    """Share of the samples in which the clocks were held down, by reason."""


@dataclass(frozen=True, slots=True)
class MachineCourse:
    """Process and machine over the seconds of a run; curves by the names of `TelemetrySample`."""

    seconds: float
    """Sampled in all; pauses between two processes of the run are left out."""
    num_samples: int
    breaks: tuple[float, ...]
    """Seconds at which sampling paused: the run was stopped there, and continued."""
    curves: dict[str, Curve]
    gpus: tuple[GpuCourse, ...]
    memory_limit_bytes: int | None
    memory_total_bytes: int | None
    sampler_fraction: float | None
    """Share of one core that sampling cost."""


@dataclass(frozen=True, slots=True)
class PairSpeeds:
    """Work per second of the two processes of one pair; `None`: not measured (yet)."""

    pair: int
    baseline_per_s: float | None
    candidate_per_s: float | None


@dataclass(frozen=True, slots=True)
class ArmsCourse:
    """Two arms over the steps that their processes recorded."""

    baseline: Curve
    """Losses of all its processes: lowest, median and highest at each step."""
    candidate: Curve
    difference: Curve
    """Candidate's median over the baseline's, minus 1, at the steps that both have."""
