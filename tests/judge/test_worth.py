"""Whether trying pays, with what is known of the rest of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from script_inputs import HEALTHY, LOADER, STEP, script, steps

from hotloop.core.census import Census
from hotloop.core.judgement import Finding, Worth
from hotloop.judge.diagnose import diagnose
from hotloop.judge.judged_run import judged_run
from hotloop.judge.worth import Remaining, remaining_steps, worth
from hotloop.report.terminal import render_diagnosis

HALF = (Finding("HL101", "waits", 2.0, optimization="loader_workers"),)
COST = 6 * 2 * 90 * 0.1
"""Six pairs of 30 + 60 steps of 0.1 s: 108 s."""


def judged(
    census: Census = HEALTHY,
    findings: tuple[Finding, ...] = HALF,
    returncode: int | None = None,
    num: int = 60,
) -> Worth:
    return worth(judged_run(script(steps(num=num), census, returncode=returncode)), findings)


def planned(number: int, **changes: float) -> Census:
    return replace(HEALTHY, loaders=(), planned_steps=number, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "answer"),
    [(60, "leave it running"), (2220, "leave it running"), (2222, "worth trying"), (10**6, "worth trying")],
)  # fmt: skip
def test_it_pays_when_the_rest_saves_more_than_finding_out(total: int, answer: str) -> None:
    found = judged(planned(total))
    assert found.answer == answer
    assert found.remaining_steps == total - 60
    assert found.cost_s == pytest.approx(COST)
    assert found.saved_at_most_s == pytest.approx((total - 60) * 0.05)
    assert found.break_even_steps == pytest.approx(2160, abs=1)


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


@pytest.mark.parametrize(("num", "answer"), [(29, "not known"), (60, "nothing to gain here")])
def test_few_steps_do_not_say_that_nothing_is_to_gain(num: int, answer: str) -> None:
    found = worth(judged_run(script(steps(STEP, num=num), planned(10**6))), ())
    assert found.answer == answer
    assert ("too few steps were counted; nothing" in found.reason) is (num == 29)


@pytest.mark.parametrize(
    ("without", "said"), [("lines", "the script's own lines"), ("operators", "the operations")]
)
def test_what_was_not_looked_at_may_hold_a_gain(without: str, said: str) -> None:
    blind = planned(10**6)
    blind = replace(blind, seen=tuple(name for name in blind.seen if name != without))
    found = judged(blind, ())
    assert found.answer == "not known"
    assert said in found.reason


def test_nothing_to_gain_is_not_said_of_ranks_whose_waits_were_not_seen() -> None:
    found = judged(planned(10**6, num_ranks=2), ())
    assert (found.answer, found.gain_at_most) == ("not known", 1.0)
    assert "waiting for the other processes" in found.reason
    told = script(steps({**STEP, "grad_sync": 0.001}), planned(10**6, num_ranks=2))
    assert worth(judged_run(told), ()).answer == "nothing to gain here"


def test_an_unknown_rest_says_what_it_would_need() -> None:
    found = judged(replace(HEALTHY, loaders=()))
    assert (found.answer, found.remaining_steps, found.saved_at_most_s) == ("not known", None, None)
    assert "pays off within 2,160 steps" in found.reason or "2,161" in found.reason


def test_the_rest_of_an_epoch_is_a_lower_limit() -> None:
    long = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=100_000),))
    found = judged(long)
    assert (found.answer, found.remaining_steps) == ("worth trying", 99_940)
    assert found.reason.startswith("at least 99,940 steps of this epoch are left")
    over = judged(replace(HEALTHY, loaders=(replace(LOADER, per_epoch=30),)))
    assert over.reason.startswith("an epoch has just ended, how many follow is not known; testing")
    short = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=100),))
    assert judged(short).answer == "not known"
    # Two batches to a step: half as many steps to an epoch.
    two = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=1000, num_batches=120),))
    assert judged(two).remaining_steps == 440


def test_steps_that_were_left_out_are_steps_of_the_epoch() -> None:
    records = steps(
        num=60, each=lambda n, r: replace(r, step=4 * n, left_out=3, tags=("epoch",) * (n == 10))
    )
    census = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=1000),))
    assert remaining_steps(judged_run(script(records, census))).steps == 1000 - (237 - 40)


def test_an_epoch_that_the_loop_leaves_early_has_no_more_steps_left() -> None:
    records = steps(num=60, each=lambda n, r: replace(r, tags=("epoch",) * (n in (20, 40))))
    census = replace(HEALTHY, loaders=(replace(LOADER, per_epoch=100_000),))
    left = remaining_steps(judged_run(script(records, census)))
    assert (left.steps, left.why.startswith("an epoch has just ended")) == (None, True)
    in_it = remaining_steps(judged_run(script(records[:55], census)))
    assert in_it.steps == 5


def test_iterators_of_one_loader_are_one_loader_and_others_do_not_count() -> None:
    """Two epochs of 64 batches, the second one cut off; every tenth step evaluates."""
    each = replace(LOADER, per_epoch=64)
    loaders = (
        replace(each, num_batches=53),
        replace(each, site="train.py:8", trains=False, num_batches=352, per_epoch=32),
        replace(each, num_batches=64, wait_s=0.002),
    )
    records = steps(
        num=127, each=lambda n, r: replace(r, tags=("warmup",) * (n < 10) + ("epoch",) * (n == 64))
    )
    run = judged_run(script(records, replace(HEALTHY, loaders=loaders)))
    assert remaining_steps(run).steps == 128 - 127
    # The census is some steps older than the records where a command was cut off.
    older = tuple(replace(use, num_batches=use.num_batches - 8) for use in loaders)
    run = judged_run(script(records, replace(HEALTHY, loaders=older)))
    assert remaining_steps(run).steps == 1


def test_a_trainer_may_have_gone_on_from_a_checkpoint() -> None:
    found = judged(planned(1000))
    assert found.reason.startswith("at most 940 of 1,000 steps are left")


def test_what_is_saved_is_no_false_zero() -> None:
    found = judged(returncode=0, num=3)
    assert "at most 0.2 s saved" in found.reason


def test_a_run_that_ended_by_itself_counts_for_the_next_one() -> None:
    run = judged_run(script(steps(num=60), HEALTHY, returncode=0))
    assert remaining_steps(run) == Remaining(60, "a run like this one makes 60 steps")
    assert judged(returncode=0).answer == "leave it running"


def test_steps_that_nobody_looked_at_are_made_all_the_same() -> None:
    records = steps(
        num=60, each=lambda n, r: replace(r, step=4 * n + 3, left_out=3, left_out_s=0.3)
    )
    run = judged_run(script(records, replace(HEALTHY, steps_made=250), returncode=0))
    assert remaining_steps(run).why == "a run like this one makes 250 steps"
    found = diagnose(run.measurement)
    assert "60 of 250 steps, after 0 of warm-up" in render_diagnosis(found)
    assert "190 of the 250 steps: drawn at random and left out" in " ".join(found.not_examined)


def test_a_run_past_its_plan_has_nothing_left() -> None:
    assert judged(planned(10)).remaining_steps == 0


def test_what_only_a_person_can_change_costs_no_trial_and_is_not_left_running() -> None:
    padding = (Finding("HL111", "padding", 3.35),)
    found = judged(findings=padding, returncode=0)
    assert (found.answer, found.cost_s) == ("worth trying", None)
    assert found.reason == (
        "HL111 is changed in the script itself, without a test that takes time; "
        "a run like this one makes 60 steps: at most 4.2 s saved"
    )
    smaller = (*padding, Finding("HL401", "update", 1.2, optimization="fused_optimizer"))
    assert judged(findings=smaller, returncode=0) == found
    larger = (*padding, Finding("HL401", "update", 4.0, optimization="fused_optimizer"))
    assert judged(findings=larger, returncode=0).answer == "leave it running"


def test_a_run_too_short_for_a_test_says_from_how_many_steps_on_it_pays() -> None:
    assert judged(returncode=0).reason == (
        "a run like this one makes 60 steps: at most 3.0 s saved; "
        "testing a fix takes about 108 s, which pays off within 2,160 steps"
    )


def test_nothing_to_gain_is_not_said_of_a_device_that_had_no_clock() -> None:
    blind = replace(HEALTHY, device="cuda:0", loaders=())
    found = judged(blind, ())
    assert (found.answer, "the device does" in found.reason) == ("not known", True)


def test_nothing_to_gain_is_not_said_beside_a_wait_that_nothing_explains() -> None:
    host = {"data_wait": 0.01, "forward": 0.09}
    found = worth(judged_run(script(steps(host))), ())
    assert (found.answer, found.reason.split(",")[0]) == (
        "not known",
        "data is waited for 10 % of the time",
    )
