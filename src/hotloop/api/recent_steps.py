"""The steps since somebody last asked, as one mean step: what a logger is given while a training runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.probe.attach.step_calls import Step


class RecentSteps:
    """Steps that are under way: neither warm-up nor profiled."""

    def __init__(self) -> None:
        self._num = 0
        self._wall_s = 0.0
        self._phases: Counter[str] = Counter()

    def saw(self, step: Step) -> None:
        """One has ended."""
        if step.counted:
            self._num += 1
            self._wall_s += step.wall_s
            for phase, seconds in step.host.items():
                self._phases[phase] += seconds  # type: ignore[assignment]

    def take(self) -> dict[str, float]:
        """`step_s`, and each phase's fraction of it; empty where none has ended since."""
        num, wall_s, phases = self._num, self._wall_s, self._phases
        self._num, self._wall_s, self._phases = 0, 0.0, Counter()
        if not num:
            return {}
        return {"step_s": wall_s / num} | {
            f"{phase}_fraction": seconds / wall_s for phase, seconds in phases.items()
        }
