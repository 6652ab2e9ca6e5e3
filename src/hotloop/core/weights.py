"""How far a run has moved its weights, in numbers small enough to keep: `weights-<rank>.json`.

Standard library only: foreign processes write it.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class WeightUpdates:
    """Tensors in the order in which their optimizers first stepped and hold them."""

    tensors: tuple[TensorUpdates, ...]
    schema: str = WEIGHTS_SCHEMA
