from __future__ import annotations

import time

import pytest

from hotloop.probe import phases
from hotloop.probe.phases import PhaseClock, cost_s


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


def test_step_may_be_cut_while_phases_are_open(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start_step()
    outer = clock.enter("optimizer")
    hands.now += 1.0
    inner = clock.enter("forward")
    hands.now += 2.0
    first, before, _ = clock.cut_step()
    hands.now += 4.0
    clock.leave(inner)
    clock.leave(outer)
    second, after, _ = clock.end_step()
    assert (first, before) == (3.0, {"unattributed": 0.0, "optimizer": 1.0, "forward": 2.0})
    assert (second, after) == (
        4.0,
        {"forward": 4.0, "optimizer": 0.0, "unattributed": 0.0},
    )


def test_leaving_a_phase_leaves_what_was_left_open_inside(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start_step()
    outer = clock.enter("forward")
    clock.enter("sync")  # nobody leaves it: it raised
    hands.now += 1.0
    clock.leave(outer)
    hands.now += 2.0
    _, seconds, _ = clock.end_step()
    assert (seconds["sync"], seconds["unattributed"]) == (1.0, 2.0)


def test_time_may_be_given_to_another_phase_but_no_more_than_there_was(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start_step()
    hands.now += 2.0
    clock.leave(clock.enter("eval"))
    clock.move(1.5, "unattributed", "eval")
    clock.move(9.0, "unattributed", "eval")
    wall, seconds, _ = clock.end_step()
    assert wall == 2.0
    assert seconds == {"unattributed": 0.0, "eval": 2.0}


def test_what_others_have_of_the_cpu_is_no_cost_of_the_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits() -> None:
        time.sleep(0.01)

    assert cost_s(waits, 2) < 0.005
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)  # where that clock does not tick in it
    assert cost_s(waits, 2) >= 0.01
