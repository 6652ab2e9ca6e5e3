"""Planted delays under the doctor's probe: does each second land in its own phase, and what does the probe cost?

Usage: python benchmarks/probe_delays.py

For each phase a training of tests/probe/attach/planted_delays.py that sleeps 20 or 100 ms per step in
it. Printed: how far the phase's seconds, less what it takes where the same was slept in another phase, are
from what was slept (medians over the counted steps); the bar is 2 %. The runs that sleep elsewhere are the
control because every phase of a step is slower after a sleep, whose caches others have used meanwhile. Then
the probe's cost: calls times the measured cost of a call, over wall time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import hotloop
from hotloop.core.census import Census
from hotloop.core.files import read_json
from hotloop.core.step import StepRecord, read_steps

SCRIPT = Path(__file__).parents[1] / "tests" / "probe" / "attach" / "planted_delays.py"
PHASES = (
    "data_wait", "forward", "backward", "optimizer", "logging", "eval", "checkpoint", "unattributed",
)  # fmt: skip
DELAYS = (0.02, 0.1)
STEPS = 34
BAR = 0.02
PACKAGE = Path(hotloop.__file__).parent


def measure(where: str, delay: float) -> tuple[list[StepRecord], list[float], float]:
    """Counted steps, seconds slept in each of them, and the measured cost of a clock read."""
    with tempfile.TemporaryDirectory() as directory:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PACKAGE / "trial/bootstrap"), str(PACKAGE.parent)]),
            "HOTLOOP_DOCTOR": directory,
            "DELAY": str(delay),
            "WHERE": where,
            "STEPS": str(STEPS),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, check=True
        )
        slept = json.loads(done.stdout.splitlines()[-1])
        records = list(read_steps(Path(directory) / "steps-0.jsonl"))
        census = read_json(Path(directory) / "census-0.json", Census)
    counted = [record for record in records if "warmup" not in record.tags]
    assert counted
    assert census.clock_read_s is not None
    return counted, slept[-len(counted) :], census.clock_read_s


def seconds_in(phase: str, records: list[StepRecord]) -> float:
    return median(record.host.get(phase, 0.0) for record in records)


def main() -> int:
    failed = False
    print("phase          delay     slept    landed    error   probe")
    for delay in DELAYS:
        runs = {phase: measure(phase, delay) for phase in PHASES}
        for phase, (records, slept, read_s) in runs.items():
            planted = median(slept)
            elsewhere = median(seconds_in(phase, runs[p][0]) for p in PHASES if p != phase)
            landed = seconds_in(phase, records) - elsewhere
            error = landed / planted - 1
            cost = read_s * sum(r.clock_reads for r in records) / sum(r.wall_s for r in records)
            failed |= abs(error) > BAR
            print(
                f"{phase:13} {delay * 1e3:4.0f} ms {planted * 1e3:8.2f} {landed * 1e3:9.2f} "
                f"{error:+8.2%} {cost:8.2%}"
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
