"""Where the memory of a training goes, predicted and measured, and whether it fits. All in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    proof: Proof | None = None
    schema: str = "hotloop.fit/1"
