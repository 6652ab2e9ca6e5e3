"""How long a process is where loader workers run ahead, and what is not claimed where it is too short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_trials import Machine, Trying, product

from hotloop.core.census import Census, LoaderUse
from hotloop.core.judgement import Diagnosis, Interval, Steps
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor.fixes import fixes_for
from hotloop.doctor.training_loader import StepQueue, script_queue, value_that_shows
from hotloop.doctor.trial_costs import plan_for
from hotloop.hardware import limits as machines
from hotloop.optimizations.catalogue import CATALOGUE

ENVIRONMENT = Environment(
    "cpu", 1, None, 2, 2.0, None, "Linux", None, "3.12.1", None, None, None, "0"
)
LOADER = LoaderUse(
    *("train.py:11", True, "Remote", None, None, False, False, 0, 8, False, False),
    *(None, 60, 2048, 0.4, 0.5, 0.4, 0.0, None, 0.01, 1, None, 60),
)


def census(**of_loader: object) -> Census:
    return Census(device="cpu", loaders=(replace(LOADER, **of_loader),))  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_steps", "workers"), [(60, 9), (400, 32), (30, 4), (12, 32)])
def test_no_more_workers_are_tried_than_the_run_can_show(num_steps: int, workers: int) -> None:
    technique = CATALOGUE["loader_workers"]
    assert value_that_shows(technique, 32, census(), num_steps) == workers


def test_counting_begins_after_what_was_queued_and_covers_whole_waves_of_several_queues() -> None:
    queue = StepQueue(length=64, wave=32)
    assert queue.warmup_steps == 67
    assert queue.counted(20, 1000) == 192
    assert queue.counted(300, 1000) == 320
    assert queue.counted(20, 150) == 128
    assert queue.counted(20, 127) is None


def test_script_with_workers_of_its_own_is_counted_after_their_queue() -> None:
    records = tuple(StepRecord(step, 0.5, tags=("warmup",) * (step < 3)) for step in range(100))
    seen = census(num_workers=8, prefetch_factor=2)
    plan, _ = plan_for(
        Measurement("script", (), Plan(3, 97, 60.0), ENVIRONMENT, records, census=seen), steps=None
    )
    assert (plan.warmup_steps, plan.steps) == (19, 48)
    assert script_queue(replace(seen, microbatches=4.0)).length == 4


def test_more_than_is_possible_is_no_gain(trying: Trying) -> None:
    ledger = trying(Machine(product(a=12.0)), ["a"], of_fixes={"most_ratio": 9.0})
    (entry,) = ledger.fixes
    assert (entry.status, ledger.kept) == ("undecided", ())
    assert entry.why.startswith("inconclusive: 12x is more than")
    assert entry.verdict is not None
    assert entry.verdict.outcome == "inconclusive"


def test_more_than_is_possible_is_no_gain_on_top_of_another_fix_either(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=12.0))
    ledger = trying(machine, ["a", "b"], of_fixes={"most_ratio": 9.0})
    assert ledger.kept == ("a",)
    assert "12x is more than its workers can bring" in ledger.fixes[1].why


@pytest.mark.parametrize(("workers", "waits", "most"), [(0, 0.5, 16), (0, 0.98, 9), (2, 0.5, 4)])
def test_what_is_possible_takes_into_account_that_the_rest_may_compute_faster(
    workers: int, waits: float, most: float
) -> None:
    found = Diagnosis("input", Steps(40, 3, 0.01), {"data_wait": waits})
    machine = machines.Machine("cpu", (), None, 2)
    only = {"loader_workers": (8,)}
    (fix,) = fixes_for(found, machine, census(num_workers=workers), only=only)
    assert fix.most_ratio == most


EXPECTED = Interval(1.1, 1.05, 1.2)


def test_gain_far_above_what_was_expected_is_measured_over_more_steps(trying: Trying) -> None:
    machine = Machine(product(a=2.0))
    ledger = trying(machine, ["a"], seen_steps=200, of_fixes={"predicted": EXPECTED})
    (entry,) = ledger.fixes
    assert (entry.status, entry.steps) == (
        "kept",
        60,
    )  # its proof, which twice the steps agree with
    (longer,) = {
        run.plan.steps for place, run in machine.finished.items() if "a-longer" in str(place)
    }
    assert longer == 120


def test_gain_far_above_what_was_expected_that_fades_is_none(trying: Trying) -> None:
    def gain(fixes: frozenset[str], session: str) -> float:
        return {"together-a": 2.0, "a-longer": 1.3}.get(session, 1.0) if fixes else 1.0

    ledger = trying(Machine(gain), ["a"], seen_steps=200, of_fixes={"predicted": EXPECTED})
    (entry,) = ledger.fixes
    assert (entry.status, ledger.kept) == ("undecided", ())
    assert "2x is far above what was expected (1.05x to 1.2x), and over more steps it is 1.3x" in (
        entry.why
    )


def test_gain_far_above_what_was_expected_needs_more_steps_than_a_short_run_has(
    trying: Trying,
) -> None:
    ledger = trying(Machine(product(a=2.0)), ["a"], of_fixes={"predicted": EXPECTED})
    (entry,) = ledger.fixes
    assert entry.status == "undecided"
    assert entry.why.endswith("and there were no more steps to look at")


@pytest.mark.parametrize(("ratio", "status"), [(2.0, "undecided"), (1.0, "rejected")])
def test_run_that_only_uses_up_what_was_queued_claims_nothing(
    trying: Trying, ratio: float, status: str
) -> None:
    ledger = trying(Machine(product(a=ratio)), ["a"], of_fixes={"queue": StepQueue(64, 32)})
    (entry,) = ledger.fixes
    assert entry.status == status
    if ratio > 1:
        assert "workers may have batches for 64 steps ready" in entry.why
    else:
        assert entry.why == "no gain"
