"""Some fixes show only later in a run: their trials warm up for that long, or are not made."""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census, LoaderUse
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor.fixes import Fix
from hotloop.doctor.verify import plan_that_shows
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.plan import TrialPlan

PLAN = TrialPlan(warmup_steps=5, steps=20, timeout_s=100.0)


def measured(num_steps: int, per_epoch: int) -> Measurement:
    values: dict[str, Any] = dict.fromkeys(LoaderUse.__slots__)
    values |= {"trains": True, "num_batches": num_steps, "per_epoch": per_epoch, "fetch_s": 0.1}
    return Measurement(
        arm="command",
        command=("python", "train.py"),
        plan=Plan(warmup_steps=0, steps=num_steps, timeout_s=60.0, pair=None, position=None),
        environment=Environment("cpu", 1, None, 2, 2.0, None, "Linux", None, "3.12", None, None, None, "0"),
        records=tuple(StepRecord(step, 0.1) for step in range(num_steps)),
        census=Census(loaders=(LoaderUse(**values),), microbatches=1.0),
    )  # fmt: skip


def fix(name: str) -> Fix:
    return Fix(CATALOGUE[name], CATALOGUE[name].settings[0], (), None)


def test_trials_of_kept_items_warm_up_for_an_epoch() -> None:
    longer = plan_that_shows(PLAN, [fix("item_cache"), fix("fused_optimizer")], measured(100, 40))
    assert longer is not None
    assert (longer.warmup_steps, longer.steps) == (40, 20)
    assert longer.timeout_s > PLAN.timeout_s


def test_what_shows_at_once_is_planned_as_ever() -> None:
    assert plan_that_shows(PLAN, [fix("loader_workers")], measured(100, 40)) == PLAN


def test_run_that_ends_too_early_cannot_show_it() -> None:
    assert plan_that_shows(PLAN, [fix("item_cache")], measured(45, 40)) is None
    shorter = plan_that_shows(PLAN, [fix("item_cache")], measured(52, 40))
    assert shorter is not None
    assert shorter.steps == 12
