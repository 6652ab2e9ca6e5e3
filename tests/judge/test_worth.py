"""Whether trying pays, with what is known of the rest of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from script_inputs import HEALTHY, LOADER, script, steps

from hotloop.core.census import Census
from hotloop.core.judgement import Finding, Worth
from hotloop.judge.worth import remaining_steps, worth

HALF = (Finding("HL101", "waits", 2.0),)
COST = 6 * 2 * 70 * 0.1
"""Six pairs of 10 + 60 steps of 0.1 s: 84 s."""


def judged(
    census: Census = HEALTHY,
    findings: tuple[Finding, ...] = HALF,
    returncode: int | None = None,
    num: int = 60,
) -> Worth:
    found = worth(script(steps(num=num), census, returncode=returncode), findings)
    assert found is not None
    return found


def planned(number: int, **changes: float) -> Census:
    return replace(HEALTHY, loaders=(), planned_steps=number, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "answer"),
    [(60, "leave it running"), (1740, "leave it running"), (1742, "worth trying"), (10**6, "worth trying")],
)  # fmt: skip
def test_it_pays_when_the_rest_saves_more_than_finding_out(total: int, answer: str) -> None:
    found = judged(planned(total))
    assert found.answer == answer
    assert found.remaining_steps == total - 60
    assert found.cost_s == pytest.approx(COST)
    assert found.saved_at_most_s == pytest.approx((total - 60) * 0.05)
    assert found.break_even_steps == pytest.approx(1680, abs=1)


def test_a_slow_start_is_paid_by_every_process_of_a_trial() -> None:
    assert judged(planned(1000, start_s=30.0)).cost_s == pytest.approx(COST + 12 * 30)


def test_nothing_to_gain_and_loose_bounds_are_different_answers() -> None:
    small = (Finding("HL703", "logs", 1.04),)
    loose = (Finding("HL308", "breaks", 3.0, gain_is_loose=True),)
    assert judged(planned(10**6), ()).answer == "nothing to gain here"
    assert judged(planned(10**6), small).answer == "nothing to gain here"
    assert judged(planned(10**6), loose).answer == "not known"
    assert judged(planned(10**6), (*loose, *small)).answer == "not known"
    assert judged(planned(10**6), (*loose, *HALF)).gain_at_most == 2.0


def test_an_unknown_rest_says_what_it_would_need() -> None:
    found = judged(replace(HEALTHY, loaders=()))
    assert (found.answer, found.remaining_steps, found.saved_at_most_s) == ("not known", None, None)
    assert "1680" in found.reason or "1681" in found.reason


def test_the_rest_of_an_epoch_is_a_lower_limit() -> None:
    long = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=100_000),))
    found = judged(long)
    assert (found.answer, found.remaining_steps) == ("worth trying", 99_940)
    assert found.reason.startswith("at least 99940 steps of this epoch are left")
    short = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=100),))
    assert judged(short).answer == "not known"
    # Two batches to a step: half as many steps to an epoch.
    two = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=1000, num_batches=120),))
    assert judged(two).remaining_steps == 440


def test_a_run_that_ended_by_itself_counts_for_the_next_one() -> None:
    measurement = script(steps(num=60), HEALTHY, returncode=0)
    assert remaining_steps(measurement) == (60, "a run like this one makes 60 steps")
    assert judged(returncode=0).answer == "leave it running"


def test_a_run_past_its_plan_has_nothing_left() -> None:
    assert judged(planned(10)).remaining_steps == 0


def test_without_steps_nothing_is_said() -> None:
    assert worth(script(()), HALF) is None
