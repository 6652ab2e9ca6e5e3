"""A comparison read from its directory."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from judge_inputs import ENVIRONMENT

from hotloop.core.measurement import Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.runs.stored_trials import find_trials
from hotloop.trial.measure import store_measurement
from hotloop.trial.plan import process_seed
from hotloop.trial.toggling import toggle_schedule

PLACE = "pair-01-a-fused"


def toggled(directory: Path, block_steps: int = 10) -> None:
    """One process of up to six, 0.2 s a step where it is off and 0.1 s where it is on."""
    plan = Plan(3, 80, 9.0, pair=1)
    drawn = toggle_schedule(("fused",), plan, 10, process_seed(7, PLACE))
    records = tuple(
        StepRecord(
            step,
            0.1 if drawn.is_on(step) else 0.2,
            tags=("warmup",) if step < 3 else (),
        )
        for step in range(83)
    )
    (directory / PLACE).mkdir(parents=True)
    measured = Measurement("fused", ("python",), plan, ENVIRONMENT, records)
    store_measurement(directory / PLACE / "measurement.json", measured)
    content = {
        "baseline": {"name": "baseline"},
        "candidate": {"name": "fused", "switched": ["fused"]},
        "plan": {"seed": 7, "block_steps": block_steps, "aa_pairs": 0, "looks": [4, 6]},
    }
    (directory / "plan.json").write_text(json.dumps(content))


def test_process_in_which_it_went_on_and_off_is_a_pair(tmp_path: Path) -> None:
    toggled(tmp_path)
    trials, problems = find_trials(tmp_path)
    assert problems == []
    assert trials is not None
    ((number, off, on),) = trials.pairs
    assert off is not None
    assert on is not None
    assert (number, trials.num_planned) == (1, 6)
    assert [median(each.wall_s for each in half.counted()) for half in (off, on)] == [0.2, 0.1]


def test_plan_that_does_not_say_where_it_was_on_is_damage(tmp_path: Path) -> None:
    toggled(tmp_path, block_steps=7)
    trials, problems = find_trials(tmp_path)
    assert trials is not None
    assert trials.pairs == ()
    assert "damaged plan" in str(problems[0])
