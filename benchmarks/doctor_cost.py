"""What the doctor's probe costs: a script of 10 ms steps with and without it.

    python benchmarks/doctor_cost.py [--pairs 10] [--steps 150] [--json FILE]

Two clocks. As calls times the measured cost of a call, which the probe itself records for every step
(bar: 2 %). And as an A/B: pairs of fresh processes of `short_steps.py`, taking turns step by step
(`turns.py`), the script alone against itself first; the weights must be the same to the last bit. The
interval must not lie wholly beyond the bar. The profiled window belongs to no step that counts, so it
lies within the warm-up here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from turns import pair_log_ratio

import hotloop
from hotloop.core.census import Census
from hotloop.core.files import read_json, write_atomically
from hotloop.core.step import read_steps
from hotloop.judge.estimate import log_interval

SCRIPT = Path(__file__).with_name("short_steps.py")
WARMUP = 60
"""Beyond the probe's own warm-up and its window of profiled steps."""
BAR = 0.02
LEVEL = 0.05
CALL_RUNS, CALL_STEPS = 3, 800
PACKAGE = Path(hotloop.__file__).parent


def probed(directory: Path) -> Mapping[str, str]:
    """What makes a process watch itself, as the doctor does."""
    directory.mkdir(parents=True)
    path = [str(PACKAGE / "trial/bootstrap"), str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "HOTLOOP_DOCTOR": str(directory)}


def by_calls(directory: Path, steps: int) -> tuple[float, float]:
    """Calls times the cost of a call, over wall time, and the median step, of one run by itself."""
    subprocess.run(
        [sys.executable, str(SCRIPT), str(steps)],
        env={**os.environ, **probed(directory)},
        check=True,
    )
    census = read_json(directory / "census-0.json", Census)
    assert census.clock_read_s is not None
    records = [
        record
        for record in read_steps(directory / "steps-0.jsonl")
        if not {"warmup", "profiled"} & set(record.tags)
    ]
    reads = sum(record.clock_reads or 0 for record in records)
    wall = [record.wall_s for record in records]
    return census.clock_read_s * reads / sum(wall), median(wall)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--aa-pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    command = [str(SCRIPT), "1000000"]
    logs: dict[str, list[float]] = {"alone": [], "probed": []}
    calls = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.aa_pairs + args.pairs):
            where = Path(folder) / str(number)
            kind = "alone" if number < args.aa_pairs else "probed"
            env = probed(where / "doctor") if kind == "probed" else {}
            # seconds with over seconds without: above 0 is what it costs
            log, digests, medians = pair_log_ratio(
                [command, command], [env, {}], where / "pair",
                warmup=WARMUP, steps=args.steps, rng=rng,
            )  # fmt: skip
            if digests[0] != digests[1]:
                raise SystemExit("the weights differ with and without the probe")
            logs[kind].append(log)
            print(
                f"{kind:7} {math.expm1(log):+.2%}   steps of {1e3 * medians[1]:.2f} ms", flush=True
            )
        for number in range(CALL_RUNS):
            share, step_s = by_calls(Path(folder) / f"calls-{number}", CALL_STEPS)
            calls.append(share)
            print(
                f"calls times their cost: {share:.2%} of steps of {1e3 * step_s:.2f} ms", flush=True
            )
    same, cost = (log_interval(each, LEVEL) for each in (logs["alone"], logs["probed"]))
    low, high = math.expm1(cost.low), math.expm1(cost.high)
    print(
        f"alone against itself: {math.expm1(same.mean):+.2%} ({math.expm1(same.low):+.2%} to "
        f"{math.expm1(same.high):+.2%})"
    )
    print(f"with the probe: {math.expm1(cost.mean):+.2%} ({low:+.2%} to {high:+.2%})")
    print(
        f"calls times the cost of a call: at most {max(calls):.2%}; weights the same to the last bit"
    )
    if args.json:
        stored = {"log_ratios": logs, "by_calls": calls, "low": low, "high": high}
        write_atomically(args.json, (json.dumps(stored, indent=1) + "\n").encode())
    return int(low > BAR or max(calls) > BAR)


if __name__ == "__main__":
    sys.exit(main())
