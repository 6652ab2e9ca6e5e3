"""A step that has ended, as it was put down: what can wait is done later, many steps at once.

On the stepping thread every line of the probe is cold, and costs ten times what it costs in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.core.step import StepRecord
from hotloop.probe.attach.books import Call


@dataclass(slots=True)
class ClosedStep:
    """Everything that its record and the books are made of."""

    step: int
    wall_s: float
    host: dict[str, float]
    samples: int | None
    losses: list[float]
    calls: list[Call]
    on_device: bool
    reads: int
    passed: int
    hooks: int
    own_s: float
    """Of the probe's own work, since the process began, up to the end of this step."""
    tags: tuple[str, ...]
    counted: bool
    device: dict[str, float] | None = None

    def record(self, extra_reads: int) -> StepRecord:
        """extra_reads: what the rest of the probe cost, in clock reads."""
        syncs = sum(key[0] == "syncs" for key, _, _ in self.calls) if self.on_device else None
        return StepRecord(
            step=self.step,
            wall_s=self.wall_s,
            host=self.host,
            device=self.device,
            samples=self.samples,
            loss=sum(self.losses) if self.losses else None,
            syncs=syncs,
            clock_reads=self.reads + extra_reads,
            tags=self.tags,
        )
