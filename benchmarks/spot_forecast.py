"""The forecast of `examples/spot_machines.py` against real trainings that are killed with SIGKILL at random.

    python benchmarks/spot_forecast.py DIR --rounds 6 --between 6 --json benchmarks/results/spot_forecast.json

Each round first trains a little without kills, which tells what steps, saves and restarts cost at this moment; from that
alone the goodput is forecast. Then the training is killed after times drawn from an exponential distribution, and started
again at once, until it ends; `sessions.jsonl` tells the goodput that it had. Processes are forked from one that has loaded
torch (`--fresh`: are started anew), so that a minute holds many kills.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "resume"))

import forked_trainings  # noqa: E402

from hotloop.core.step import read_steps  # noqa: E402
from hotloop.resume import kills  # noqa: E402
from hotloop.runs.stored_run import read_run  # noqa: E402

SETTINGS = (
    *("train.compile=false", "train.precision=fp32", "train.num_threads=1", "eval.every_steps=0"),
    *("schedule.warmup_steps=1", "logging.tensorboard=false", "train.host_memory=default"),
)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def goodput_of(run: Path) -> Any:
    found = read_run(run).goodput
    assert found is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument(
        "--between", type=float, default=6.0, help="seconds between kills, on average"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    spot = load(ROOT / "examples" / "spot_machines.py")
    launch = kills.launch if given.fresh else forked_trainings.launch
    generator = random.Random(given.seed)
    given.directory.mkdir(parents=True)

    def start(run: Path, steps: int) -> Any:
        words = ["train", str(ROOT / "configs" / "tiny.yaml"), "--out", str(run), *SETTINGS]
        words += [f"train.steps={steps}", f"checkpoint.every_steps={given.every}"]
        command = [sys.executable, "-m", "hotloop", *words]
        return launch(command, dict(os.environ), run.with_suffix(".log"))

    start(given.directory / "warm", 10).wait()  # whatever the first one alone does
    rounds = []
    for number in range(given.rounds):
        before = given.directory / f"before-{number}"
        assert start(before, given.steps // 5).wait() == 0, before
        records = list(read_steps(before / "steps.jsonl"))[5:]
        saves = [r.host.get("checkpoint", 0.0) for r in records if "checkpoint" in r.tags]
        step_s = statistics.fmean(r.wall_s - r.host.get("checkpoint", 0.0) for r in records)
        plan = spot.Plan(
            work_s=given.steps * step_s,
            interval_s=given.every * step_s,
            save_s=statistics.fmean(saves),
            restart_s=goodput_of(before).seconds["startup"],
        )
        drawn = {"kind": "poisson", "runs": 2000, "seed": given.seed}
        outcomes = spot.simulate(plan, given.between, **drawn)
        run = given.directory / f"run-{number}"
        while True:
            process = start(run, given.steps)
            ends_at = time.monotonic() + generator.expovariate(1 / given.between)
            while process.poll() is None and time.monotonic() < ends_at:
                time.sleep(0.002)
            if process.poll() is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert process.wait() == 0, run
        found = goodput_of(run)
        low, middle, high = spot.quantiles(outcomes, "goodput")
        one = {
            "plan": asdict(plan),
            "forecast": [low, middle, high],
            "measured": found.seconds["productive"] / found.wall_s,
            "killed": found.killed,
            "killed_forecast": spot.quantiles(outcomes, "interruptions"),
            "wall_s": found.wall_s,
            "wall_s_forecast": spot.quantiles(outcomes, "wall_s"),
            "seconds": found.seconds,
            "lost_steps": found.lost_steps,
        }
        rounds.append(one)
        inside = low <= one["measured"] <= high
        print(
            f"{number}: goodput {one['measured']:.3f}, forecast {middle:.3f} ({low:.3f} to {high:.3f})"
            f"{'' if inside else ' OUTSIDE'}; {found.killed} kills, {found.wall_s:.0f} s",
            flush=True,
        )
        if given.json is not None:
            document = {"options": {k: str(v) for k, v in vars(given).items()}, "rounds": rounds}
            given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
