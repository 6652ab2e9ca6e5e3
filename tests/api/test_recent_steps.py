"""What a logger is given of the steps since it was given some."""

from __future__ import annotations

import pytest

from hotloop.api.recent_steps import RecentSteps
from hotloop.probe.attach.step_calls import Step


def test_shares_of_phases_are_all_of_a_step_also_where_its_time_was_read_late() -> None:
    recent = RecentSteps()
    for wall_s, counted in ((0.04, True), (0.05, True), (9.0, False)):
        host = {"forward": 0.03, "backward": 0.01}
        recent.saw(Step(samples=None, wall_s=wall_s, host=host, counted=counted))
    assert recent.take() == pytest.approx(
        {"step_s": 0.045, "forward_fraction": 0.75, "backward_fraction": 0.25}
    )
    assert recent.take() == {}
