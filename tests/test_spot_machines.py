"""`examples/spot_machines.py` against what is known of its model, and as the command that is shipped."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest
from spot_forecast import ROOT, load

from hotloop.train.save_times import best_interval_s

SCRIPT = ROOT / "examples" / "spot_machines.py"
spot = load(SCRIPT)
DRAWN = {"kind": "poisson", "seed": 3}
PLAN = spot.Plan(work_s=200_000, interval_s=600, save_s=20, restart_s=100)


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("between_s", [2000.0, 20_000.0])
@pytest.mark.parametrize("save_s", [5.0, 60.0])
def test_the_mean_time_is_what_theory_says(between_s: float, save_s: float) -> None:
    """Daly (2006), equation 20: the restart and each interval with its save are repeated until they are survived."""
    plan = replace(PLAN, save_s=save_s)
    found = statistics.fmean(o.wall_s for o in spot.simulate(plan, between_s, runs=400, **DRAWN))
    period_s = plan.interval_s + save_s
    expected = (
        between_s
        * math.exp(plan.restart_s / between_s)
        * math.expm1(period_s / between_s)
        * plan.work_s
        / plan.interval_s
    )
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("save_s", [1.0, 20.0])
def test_the_best_interval_is_young_and_dalys(save_s: float) -> None:
    plan = replace(PLAN, save_s=save_s)
    found = spot.best_interval(plan, 10_000.0, runs=100, **DRAWN)
    assert found == pytest.approx(best_interval_s(save_s, 10_000.0), rel=0.35)


def test_a_notice_that_a_save_fits_into_loses_nothing_but_itself() -> None:
    warned = replace(PLAN, notice_s=30)
    without, with_notice = (
        spot.simulate(plan, 5000.0, runs=50, **DRAWN) for plan in (PLAN, warned)
    )
    assert all(o.lost_s <= 30 * o.interruptions for o in with_notice)
    assert spot.quantiles(with_notice, "wall_s")[1] < spot.quantiles(without, "wall_s")[1]
    short = replace(PLAN, notice_s=19)
    assert spot.simulate(short, 5000.0, runs=50, **DRAWN) == without


def test_all_time_is_accounted_for() -> None:
    plan = replace(PLAN, wait_s=50, price=2.0)
    for one in spot.simulate(plan, 4000.0, runs=20, **DRAWN):
        assert one.wall_s == pytest.approx(one.machine_s + 50 * one.interruptions)
        assert one.cost == pytest.approx(2.0 * one.machine_s / 3600)
        assert one.machine_s >= plan.work_s + one.lost_s
        assert one.goodput == plan.work_s / one.wall_s


@pytest.mark.parametrize("kind", ["poisson", "bursts", "regular"])
def test_machines_live_as_long_on_average_whatever_their_kind(kind: str) -> None:
    import random

    gap = spot.gaps(kind, 100.0, random.Random(1))
    assert statistics.fmean(gap() for _ in range(20_000)) == pytest.approx(100, rel=0.05)


def test_the_command_answers_and_refuses_what_would_never_end() -> None:
    told = ("--hours", "40", "--per-day", "8", "--save", "4", "--spot", "1", "--runs", "50")
    found = json.loads(asked(*told, "--on-demand", "3", "--json").stdout)
    low, middle, high = found["quantiles"]["goodput"]
    assert 0.8 < low < middle < high < 1
    assert found["quantiles"]["cost"][1] < found["on_demand_cost"]
    assert "nine of ten" in asked(*told).stdout
    never = asked("--hours", "40", "--per-day", "200", "--interval", "20000", "--runs", "5")
    assert never.returncode == 2
    assert "would not end" in never.stderr
    assert asked("--hours", "0", "--per-day", "1").returncode == 2
