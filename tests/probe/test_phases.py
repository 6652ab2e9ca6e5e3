from __future__ import annotations

import pytest

from hotloop.probe import phases
from hotloop.probe.phases import PhaseClock


class Hands:
    """A clock that moves only when told, by halves so that sums are exact."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(phases, "time", hands)
    return hands


def test_time_outside_phases_is_measured_as_unattributed(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start_step()
    hands.now += 0.5
    with clock.phase("forward"):
        hands.now += 2.0
    hands.now += 0.25
    wall, seconds, reads = clock.end_step()
    assert wall == 2.75
    assert seconds == {"unattributed": 0.75, "forward": 2.0}
    assert reads == 3


def test_inner_phase_pauses_the_outer_one(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start_step()
    with clock.phase("optimizer"):
        hands.now += 1.0
        with clock.phase("sync"):
            hands.now += 4.0
        hands.now += 2.0
    _, seconds, _ = clock.end_step()
    assert seconds["optimizer"] == 3.0
    assert seconds["sync"] == 4.0


def test_no_time_falls_between_two_steps(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start_step()
    hands.now += 1.0
    first, *_ = clock.end_step()
    hands.now += 3.0
    second, seconds, _ = clock.end_step()
    assert (first, second) == (1.0, 3.0)
    assert seconds == {"unattributed": 3.0}


def test_phase_closes_when_its_block_fails(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start_step()

    def fails() -> None:
        with clock.phase("forward"):
            hands.now += 1.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    hands.now += 2.0
    _, seconds, _ = clock.end_step()
    assert seconds == {"unattributed": 2.0, "forward": 1.0}


def test_step_that_ends_inside_a_phase_is_a_bug(hands: Hands) -> None:
    clock = PhaseClock()
    with pytest.raises(AssertionError, match="forward"), clock.phase("forward"):
        clock.end_step()


def test_unknown_phase_is_refused(hands: Hands) -> None:
    with pytest.raises(KeyError):
        PhaseClock().phase("forwards")
