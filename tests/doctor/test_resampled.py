"""Whole doctor's runs over recorded processes and fixes that do nothing: nothing is claimed."""

from __future__ import annotations

import random
from pathlib import Path

import doctor_aa
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.at_once(3)
@pytest.mark.parametrize(
    ("toggled", "num_fixes", "budget_s"),
    [(False, 5, None), (True, 5, None), (False, 5, 120.0), (False, 1, None)],
)
@pytest.mark.parametrize("name", ["this script", "two_threads", "one_thread"])
def test_fixes_that_do_nothing_are_never_kept(
    name: str, toggled: bool, num_fixes: int, budget_s: float | None
) -> None:
    """A part of `benchmarks/results/doctor_fixes.md`; seeds are fixed."""
    runs = doctor_aa.recordings(ROOT / "benchmarks" / "results" / "doctor_aa_runs.json")[name]
    deal = doctor_aa.Deal(runs, random.Random(f"test {name}"), in_order=True)
    how = {"toggled": toggled, "num_fixes": num_fixes, "budget_s": budget_s}
    found = doctor_aa.tally([doctor_aa.resampled(deal, **how) for _ in range(6)])
    assert found["comparisons"] == 6 * num_fixes
    assert found["improved"] <= 3
    assert found["doctor_runs_that_claim"] == 0
