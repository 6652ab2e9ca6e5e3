"""When hotloop ends a command that it examines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.probe.attach.install import Enough


def ended_after(bound: str, step_s: float, *, profiled_at: int = 0) -> int:
    """The first of steps of `step_s` after which it ends, counted from 1."""
    watch: Any = SimpleNamespace(counted_steps=0, counted_s=0.0, rank="0", directory=Path())
    profiler: Any = SimpleNamespace(over=False)
    enough = Enough(watch, profiler, bound)
    while not enough():
        watch.counted_steps += 1
        watch.counted_s += step_s
        profiler.over = watch.counted_steps >= profiled_at
    return int(watch.counted_steps)


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.01, 6000), (2.5, 24), (5.0, 24), (6.0, 20), (15.0, 8), (100.0, 8)]
)
def test_slow_steps_are_fewer_but_eight(step_s: float, steps: int) -> None:
    assert ended_after("60s", step_s) == pytest.approx(steps, abs=1)


def test_asked_for_steps_are_all_made_and_the_profile_is_waited_for() -> None:
    assert ended_after("30", 100.0) == 30
    assert ended_after("60s24", 100.0) == 24
    assert ended_after("60s24", 0.01) == pytest.approx(6000, abs=1)
    assert ended_after("60s", 100.0, profiled_at=12) == 12
