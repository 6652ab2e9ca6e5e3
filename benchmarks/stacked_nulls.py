"""How often a fix that does nothing is kept beside one that helps, and what finding that out costs.

    python benchmarks/stacked_nulls.py --json benchmarks/results/stacked_nulls.json

Whole doctor's runs through the real `run_campaign`: losses, pairs, stack, fresh pairs. Only the processes are made up:
each session gets recorded runs in a row (`benchmarks/results/doctor_aa_runs.json`), or log times of one of the noises of
`judge_noises.py`, divided by what its fixes bring. A session has the same noise whatever ran before it, so two versions
of the doctor are compared on the same machine. `--second 1.08` gives one of the five a gain of its own, which is then
counted apart; with `--redundant` the five bring as much as the first, and nothing beside another.
About 6 minutes on two free cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
from doctor_aa import Deal, doctor_run, recordings
from judge_noises import NOISES
from null_fixes import NULL_FIXES
from scipy import stats

from hotloop.core.files import write_json
from hotloop.core.ledger import Ledger
from hotloop.core.measurement import Measurement, Plan
from hotloop.doctor.fixes import Fix
from hotloop.judge.runs import RunTimes, run_times
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.arm import Arm

GAIN = 1.3
BAR = 0.02
"""Share of doctor's runs that may keep a fix that does nothing."""
STEPS, STEP_S, MOST_PROCESSES = 40, 0.02, 40
RECORDINGS = ("this script", "two_threads", "one_thread")
RECORDED = Path(__file__).parent / "results" / "doctor_aa_runs.json"
RUNS = {
    "this script": 1000,
    "two speeds, half": 200,
    "student t, 2 degrees": 200,
    "memory 0.95, 3 %": 200,
    "telegraph, 0.5": 800,
}
"""Doctor's runs of each kind of noise; the first is recorded."""


@dataclass(frozen=True)
class Case:
    kind: str
    gain: float = GAIN
    second: float = 1.0
    redundant: bool = False
    budget_s: float | None = None

    def ratio(self, fixes: set[str]) -> float:
        """What these bring together."""
        if self.redundant:
            return self.gain if fixes else 1.0
        return (self.gain if "true" in fixes else 1.0) * (self.second if "null_1" in fixes else 1.0)

    @property
    def nulls(self) -> set[str]:
        """Those that bring nothing on top of the first."""
        return set(NULL_FIXES) - ({"null_1"} if self.second > 1 else set())


class Machine(Deal):
    """Deals processes whose noise depends on the run and the session alone."""

    def __init__(self, case: Case, number: int) -> None:
        runs = [[STEP_S] * STEPS] if case.kind in NOISES else recorded(case.kind)
        super().__init__(runs, random.Random(), in_order=True)
        self.case, self.number = case, number
        self.known: dict[int, tuple[Measurement, RunTimes | None]] = {}

    def seed(self, name: str) -> int:
        return crc32(f"{self.case.kind} {self.number} {name}".encode())

    def order(self, name: bytes) -> int:
        return self.seed(f"order {name!r}")

    def __call__(self, arm: Arm, place: Path, *, plan: Plan, **rest: Any) -> Measurement:
        if place in self.finished:
            return self.finished[place]
        if place.parent != self.session:
            seed = self.seed(place.parent.name)
            self.generator = random.Random(seed)
            if (noise := NOISES.get(self.case.kind)) is not None:
                levels = noise(MOST_PROCESSES, np.random.default_rng(seed))
                self.runs = [[STEP_S * math.exp(level)] * STEPS for level in levels]
                self.session, self.place = place.parent, 0
        return super().__call__(arm, place, plan=plan, **rest)

    def ratio(self, arm: Arm) -> float:
        return self.case.ratio(set(arm.fixes))

    def run_times(self, run: Measurement) -> RunTimes | None:
        """Once for each process: a comparison asks for them at every look."""
        if id(run) not in self.known:
            self.known[id(run)] = run, run_times(run)
        return self.known[id(run)][1]


@cache
def recorded(kind: str) -> list[list[float]]:
    return recordings(RECORDED)[kind]


def dealt(case: Case, number: int) -> tuple[Ledger, Machine]:
    machine = Machine(case, number)
    true = replace(NULL_FIXES["null_1"], name="true")
    tried = [Fix(true, True, ("HL000",), 1.5)]
    tried += [Fix(fix, True, ("HL000",), 1.2) for fix in NULL_FIXES.values()]
    with (
        patch.dict(CATALOGUE, {**NULL_FIXES, "true": true}),
        patch("hotloop.judge.compare.run_times", machine.run_times),
    ):
        return doctor_run(machine, tried, order=machine.order, budget_s=case.budget_s), machine


def counted(case: Case, number: int) -> dict[str, int]:
    """What came of one doctor's run."""
    ledger, machine = dealt(case, number)
    kept = set(ledger.kept)
    wrong = bool(kept & case.nulls) if not case.redundant else len(kept) > 1
    entries = [fix for fix in ledger.fixes if fix.name in case.nulls]
    return {
        "doctor_runs": 1,
        "keep_a_null_fix": wrong,
        "keep_the_true_fix": "true" in kept or (case.redundant and bool(kept)),
        "keep_the_second": "null_1" in kept and not case.redundant,
        "nulls_improved_alone": sum(
            entry.verdict is not None and entry.verdict.outcome == "improved" for entry in entries
        ),
        "nulls_on_top": sum(entry.added is not None for entry in entries),
        "processes": len(machine.finished),
    }


def row(case: Case, runs: int, pool: ProcessPoolExecutor) -> dict[str, float]:
    """Sums over doctor's runs, and the shares that matter."""
    total = Counter[str]()
    for each in pool.map(partial(counted, case), range(runs), chunksize=5):
        total.update(each)
    wrong = total["keep_a_null_fix"]
    bounds = stats.binomtest(wrong, runs).proportion_ci(0.9, "exact")
    return {
        **total,
        "null_kept": wrong / runs,
        "null_kept_at_most": float(bounds.high),
        "true_kept": total["keep_the_true_fix"] / runs,
        "second_kept": total["keep_the_second"] / runs,
        "processes": total["processes"] / runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=[*NOISES, *RECORDINGS])
    parser.add_argument("--runs", type=int, help="of each kind")
    parser.add_argument("--gain", type=float, default=GAIN)
    parser.add_argument("--second", type=float, default=1.0)
    parser.add_argument("--redundant", action="store_true")
    parser.add_argument("--budget", type=float, help="seconds of each doctor's run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {}
    with ProcessPoolExecutor(args.jobs) as pool:
        for kind in args.only or RUNS:
            case = Case(kind, args.gain, args.second, args.redundant, args.budget)
            found[kind] = row(case, args.runs or RUNS.get(kind, 200), pool)
            print(kind, json.dumps(found[kind]), file=sys.stderr, flush=True)
    if args.json:
        write_json(args.json, {"gain": args.gain, "second": args.second, "kinds": found})
    return int(max(each["null_kept"] for each in found.values()) > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
