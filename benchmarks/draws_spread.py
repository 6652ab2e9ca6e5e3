"""How often a run whose batches only draw other random numbers is called something else (`judge/rng_parity.py`).

    python benchmarks/draws_spread.py [--runs 24] [--scripts NAME ...] [--out FILE]

Each of the scripts of `parity_scripts.py` is trained so many times, alike but for the numbers that augment. Of these
runs four as the script is and a candidate are drawn, again and again, and judged: every rejection is false. The same with
mistakes, which this half of the judgement need not find (`held` does, to the last bit): what it finds is told.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from parity_scripts import MISTAKES, SCRIPTS, Change, run

from hotloop.core.judgement import Parity
from hotloop.judge.calibrated_parity import ComparedRun
from hotloop.judge.rng_parity import OTHER_RNG_RUNS, _judge_spread

DRAWS = 400
TOLD = ("learning rate x 0.9", "dropout off", "labels shifted", "augmentation skipped")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--scripts", nargs="+", default=list(SCRIPTS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [of_script(name, given.runs) for name in given.scripts]
    if given.out is not None:
        values = {
            "command": f"python {' '.join(sys.argv)}",
            "torch": torch.__version__,
            "rows": rows,
        }
        given.out.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return 0


def of_script(name: str, num_runs: int) -> dict[str, object]:
    runs = [seen(name, Change(draws=number)) for number in range(1, num_runs + 1)]
    draw = random.Random(0)
    judged: Counter[str] = Counter()
    for _ in range(DRAWS):
        candidate, *others = draw.sample(runs, OTHER_RNG_RUNS + 1)
        parity = _judge_spread(others, candidate)
        judged[parity.result + told_by(parity)] += 1
    mistakes = {
        what: _judge_spread(runs[:OTHER_RNG_RUNS], seen(name, mistaken(MISTAKES[what]))).result
        for what in TOLD
    }
    print(name, dict(judged), mistakes, flush=True)
    return {
        "script": name,
        "runs": num_runs,
        "draws": DRAWS,
        "judged": dict(judged),
        "mistakes": mistakes,
    }


def told_by(parity: Parity) -> str:
    if parity.result != "different" or parity.max_difference is None or parity.band is None:
        return ""
    return ", losses" if parity.max_difference > parity.band else ", weights"


def mistaken(change: Change) -> Change:
    return replace(change, draws=1000)


def seen(name: str, change: Change) -> ComparedRun:
    found = run(name, change)
    return ComparedRun(found.records, found.weights)


if __name__ == "__main__":
    sys.exit(main())
