"""What the doctor's probe costs: a script of 10 ms steps with and without it.

    python benchmarks/doctor_cost.py [--pairs 10] [--steps 400] [--out DIR] [--json FILE]

Two clocks. As calls times the measured cost of a call, which the probe itself records for every step
(bar: 2 %). And as an A/B by hotloop's own judge: interleaved pairs of fresh processes of
`short_steps.py` under the step clock alone, and with the doctor's probe beside it; it must not be
`regressed`, and the losses must be the same to the last bit. Steps before and in the probe's profiled
window are warm-up here, since none of them counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import hotloop
from hotloop.cli.progress import progress_bar
from hotloop.core.census import Census
from hotloop.core.files import read_json, to_plain, write_atomically
from hotloop.core.step import read_steps
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import compare_arms

SCRIPT = Path(__file__).with_name("short_steps.py").resolve()
WARMUP = 60
BAR = 0.02
CALL_RUNS, CALL_STEPS = 3, 800
PACKAGE = Path(hotloop.__file__).parent
PROBED = 'HOTLOOP_DOCTOR=$(mktemp -d) && export HOTLOOP_DOCTOR && exec "$@"'
ALONE = 'exec "$@"'


def arm(name: str, shell: str) -> Arm:
    """The script under the step clock; its ending comes from there."""
    script = (sys.executable, str(SCRIPT), "1000000")
    return Arm(name, ("sh", "-c", shell, "sh", *script), "step_clock", env={"OMP_NUM_THREADS": "1"})


def probed(directory: Path) -> Mapping[str, str]:
    """What makes a process watch itself, as the doctor does."""
    directory.mkdir(parents=True)
    path = [str(PACKAGE / "trial/bootstrap"), str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HOTLOOP_DOCTOR": str(directory),
        "OMP_NUM_THREADS": "1",
    }


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
    parser.add_argument("--aa-pairs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("runs/doctor-cost"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    calls = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(CALL_RUNS):
            share, step_s = by_calls(Path(folder) / f"calls-{number}", CALL_STEPS)
            calls.append(share)
            print(
                f"calls times their cost: {share:.2%} of steps of {1e3 * step_s:.2f} ms", flush=True
            )
    plan = TrialPlan(
        warmup_steps=WARMUP, steps=args.steps, timeout_s=300, looks=(args.pairs,),
        aa_pairs=args.aa_pairs,
    )  # fmt: skip
    with progress_bar() as progress:
        result = compare_arms(
            arm("alone", ALONE), arm("probed", PROBED), directory=args.out, plan=plan,
            parity_class="bitwise", progress=progress,
        )  # fmt: skip
    verdict = result.verdict
    print(
        f"with the probe: {verdict.outcome}, {verdict.ratio} times the speed "
        f"({verdict.ratio_low} to {verdict.ratio_high}), {verdict.num_pairs} pairs; "
        f"losses: {verdict.parity.result}"
    )
    for reason in verdict.reasons:
        print(f"  {reason}")
    if args.json:
        stored = {"by_calls": calls, "verdict": to_plain(verdict)}
        write_atomically(args.json, (json.dumps(stored, indent=1) + "\n").encode())
    return int(verdict.outcome == "regressed" or max(calls) > BAR)


if __name__ == "__main__":
    sys.exit(main())
