"""The steps since somebody last asked, as one mean step: what a logger is given while a training runs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.probe.attach.step_calls import Step


class RecentSteps:
    """Steps that are under way: neither warm-up nor profiled."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=5000)  # of more, the newest
        self.saw = self._steps.append  # what can wait is not done between two steps
        """Told of each step that has ended."""
        self._were_taken = False

    @property
    def none_ended(self) -> bool:
        """Since the beginning."""
        return not self._steps and not self._were_taken

    def take(self) -> dict[str, float]:
        """`step_s`, and each phase's fraction of the time in phases, which add up to 1; empty where no step has ended since."""
        self._were_taken = not self.none_ended
        steps = [each for each in self._steps if each.counted]
        self._steps.clear()
        if not steps:
            return {}
        phases = dict.fromkeys(phase for each in steps for phase in each.host)
        whole_s = sum(sum(each.host.values()) for each in steps) or 1.0
        return {"step_s": sum(each.wall_s for each in steps) / len(steps)} | {
            f"{phase}_fraction": sum(each.host.get(phase, 0.0) for each in steps) / whole_s
            for phase in phases
        }
