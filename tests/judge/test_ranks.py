"""Processes held against each other; records made by hand, nothing is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hotloop.core.step import StepRecord
from hotloop.judge.ranks import compare_ranks

STEP_S = 0.1


def rank(
    computing: Sequence[float], *, first: int = 0, waits: bool = True, **tags: str
) -> list[StepRecord]:
    """Every rank ends a step with the others: what it does not compute it waits."""
    return [
        StepRecord(
            first + number,
            STEP_S,
            host={"forward": own, **({"grad_sync": STEP_S - own} if waits else {})},
            tags=(tags[f"step{first + number}"],) if f"step{first + number}" in tags else (),
        )
        for number, own in enumerate(computing)
    ]


def test_rank_that_the_others_wait_for_is_named() -> None:
    found = compare_ranks({0: rank([0.08] * 9), 1: rank([0.1] * 9), 2: rank([0.08] * 9)})
    assert found is not None
    assert (found.slowest, found.num_steps, found.reason) == (1, 9, None)
    assert found.slower_by is not None
    assert abs(found.slower_by - 0.25) < 1e-9
    assert [each.waiting_s for each in found.ranks] == [0.1 - 0.08, 0.0, 0.1 - 0.08]


def test_ranks_that_take_turns_in_being_slow_are_not_blamed() -> None:
    one, other = [0.08, 0.1] * 6, [0.1, 0.08] * 6
    found = compare_ranks({0: rank(one), 1: rank(other)})
    assert found is not None
    assert found.slowest is None


def test_small_excess_and_few_steps_name_nobody() -> None:
    for computing, steps in ((0.083, 30), (0.1, 4)):
        found = compare_ranks({0: rank([0.08] * steps), 1: rank([computing] * steps)})
        assert found is not None
        assert (found.slowest, found.num_steps) == (None, steps)


def test_steps_with_a_tag_on_any_rank_are_left_out() -> None:
    slow = rank([0.08, 0.1, 0.08, 0.08, 0.08, 0.08, 0.08], step1="gc")
    found = compare_ranks({0: rank([0.08] * 7), 1: slow})
    assert found is not None
    assert found.num_steps == 6


def test_ranks_of_an_earlier_process_are_forgotten() -> None:
    before = rank([0.1] * 10)
    now = rank([0.08] * 10, first=10, step10="resumed")
    found = compare_ranks({0: before + now, 1: rank([0.09] * 10, first=10), 2: before})
    assert found is not None
    assert [each.rank for each in found.ranks] == [0, 1]
    assert found.num_steps == 9
    assert compare_ranks({0: before + now, 2: before}) is None


def test_ranks_that_only_waited_divide_nothing_by_0() -> None:
    found = compare_ranks({0: rank([0.0] * 9), 1: rank([0.08] * 9)})
    assert found is not None
    assert found.slowest == 1


def test_waits_that_the_host_does_not_see_are_not_guessed() -> None:
    found = compare_ranks({0: rank([0.08] * 9, waits=False), 1: rank([0.1] * 9, waits=False)})
    assert found is not None
    assert found.slowest is None
    assert found.reason is not None
    assert "GPU" in found.reason


def inside_backward(
    own: float, num: int = 9, *, wall_s: float = STEP_S, backward_s: float | None = None
) -> list[StepRecord]:
    """As DistributedDataParallel on a CPU: what a rank does not compute it waits inside its backward."""
    backward = wall_s - own if backward_s is None else backward_s
    return [
        StepRecord(n, wall_s, host={"unattributed": own, "backward": backward}) for n in range(num)
    ]


def test_a_rank_that_is_waited_for_inside_the_backward_of_the_others_is_named_on_a_cpu() -> None:
    records = {0: inside_backward(0.01), 1: inside_backward(0.07), 2: inside_backward(0.01)}
    found = compare_ranks(records, on_cpu=True)
    assert found is not None
    assert (found.slowest, found.reason, found.hidden) == (1, None, True)
    assert found.slower_by is not None
    assert abs(found.slower_by - 0.6) < 1e-9
    alike = compare_ranks({0: inside_backward(0.01), 1: inside_backward(0.012)}, on_cpu=True)
    assert alike is not None
    assert (alike.slowest, alike.hidden) == (None, True)


def test_a_short_wait_elsewhere_does_not_hide_who_is_waited_for_inside_the_backward() -> None:
    def with_a_sum_of_losses(own: float) -> list[StepRecord]:
        return [
            replace(each, host={**each.host, "unattributed": own - 0.001, "grad_sync": 0.001})
            for each in inside_backward(own)
        ]

    records = {0: with_a_sum_of_losses(0.01), 1: with_a_sum_of_losses(0.07)}
    found = compare_ranks(records, on_cpu=True, in_backward=True)
    assert found is not None
    assert (found.slowest, found.hidden) == (1, True)
    assert [each.computing_s for each in found.ranks] == pytest.approx([0.009, 0.069])


def test_ranks_that_do_not_end_their_steps_together_are_not_compared() -> None:
    found = compare_ranks(
        {0: inside_backward(0.01), 1: inside_backward(0.01, wall_s=0.2)}, on_cpu=True
    )
    assert found is not None
    assert found.slowest is None
    assert found.reason is not None
    assert "GPU" not in found.reason


def test_one_process_is_not_compared() -> None:
    assert compare_ranks({0: rank([0.08] * 9)}) is None
    assert compare_ranks({}) is None
    # Of somebody else's script only the length of the steps is known.
    clocked = [StepRecord(number, STEP_S) for number in range(9)]
    assert compare_ranks({0: clocked, 1: clocked}) is None
