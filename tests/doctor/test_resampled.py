"""Whole doctor's runs over recorded processes and fixes that do nothing: nothing is claimed."""

from __future__ import annotations

import random
from pathlib import Path

import doctor_aa
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.at_once(3)
@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("name", ["this script", "two_threads", "one_thread"])
def test_fixes_that_do_nothing_are_never_kept(name: str, switched: bool) -> None:
    """A part of `benchmarks/results/doctor_fixes.md`; seeds are fixed."""
    runs = doctor_aa.recordings(ROOT / "benchmarks" / "results" / "doctor_aa_runs.json")[name]
    deal = doctor_aa.Deal(runs, random.Random(f"test {name}"), in_order=True)
    found = doctor_aa.tally([doctor_aa.doctor_run(deal, switched=switched) for _ in range(6)])
    assert found["comparisons"] == 30
    assert found["improved"] <= 3
    assert found["doctor_runs_that_claim"] == 0
