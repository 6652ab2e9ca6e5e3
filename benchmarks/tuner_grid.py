"""What `hotloop tune CONFIG` comes to, beside the best of a grid of settings that is tried whole.

    python benchmarks/tuner_grid.py CONFIG DIRECTORY [KEY=VALUE ...] [--budget 15m] [--steps 16] [--rounds 6] [--best 3]

The grid (`AXES`) is run once, a fresh process of `hotloop train --stop-after` each; its data stays in DIRECTORY/grid.jsonl.
Then the config is tuned, and the tuned config and the best of the grid take turns, in fresh processes again, since the
fastest of many single runs is the luckiest, too. `ratio` is how fast the tuned config is beside that one of these that is
fastest then, with a 95 % interval over the rounds, in each of which the tuned one is run twice (their geometric mean counts);
`beside_itself` is how far the second run of it is from the first. Called again it goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hotloop.judge.student_t import quantile

AXES = {
    "train.precision": ("fp32", "bf16"),
    "train.compile": ("false", "true"),
    "train.attention": ("sdpa", "plain"),
    "train.host_memory": ("default", "keep"),
    "optimizer.fused": ("false", "true"),
    "train.loss": ("plain", "chunked"),
}
WARMUP = 6
"""Steps of a process that do not count."""
QUIET = ("logging.tensorboard=false",)


def step_s(config: Path, settings: Sequence[str], steps: int) -> float | None:
    """The median seconds of a step in a fresh process; `None` where it fails."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        command = [sys.executable, "-m", "hotloop", "train", str(config), *settings, *QUIET]
        command += ["--out", str(out), "--stop-after", str(WARMUP + steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{' '.join(settings)}: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
        lines = (out / "steps.jsonl").read_text().splitlines()
        return statistics.median(json.loads(line)["wall_s"] for line in lines[WARMUP:])


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def grid(config: Path, file: Path, pinned: Sequence[str], steps: int) -> list[dict[str, Any]]:
    """Each combination of `AXES`, but for what is pinned, once."""
    axes = {key: values for key, values in AXES.items() if all(not each.startswith(f"{key}=") for each in pinned)}  # fmt: skip
    done = {tuple(each["settings"]) for each in lines_of(file)}
    for values in itertools.product(*axes.values()):
        settings = tuple(f"{key}={value}" for key, value in zip(axes, values, strict=True))
        if settings in done:
            continue
        found = step_s(config, (*pinned, *settings), steps)
        with file.open("a") as out:
            out.write(json.dumps({"settings": settings, "step_s": found}) + "\n")
        print(f"{found or math.nan:8.4f} s  {' '.join(settings)}", flush=True)
    return sorted((each for each in lines_of(file) if each["step_s"]), key=lambda each: each["step_s"])  # fmt: skip


def tuned(config: Path, directory: Path, pinned: Sequence[str], budget: str) -> float:
    """Tune into DIRECTORY/tuned.yaml; returns the seconds that took."""
    target, took = directory / "tuned.yaml", directory / "tune_s"
    if not target.exists():
        began = time.monotonic()
        command = [sys.executable, "-m", "hotloop", "tune", str(config.resolve()), *pinned, "--budget", budget]  # fmt: skip
        done = subprocess.run(
            [*command, "--out", str(target.resolve())], cwd=directory, check=False
        )
        if not target.exists():
            raise SystemExit(f"error: tune ended with {done.returncode} and wrote no config")
        took.write_text(str(time.monotonic() - began))
    return float(took.read_text())


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times as fast ours is, with a 95 % interval, of rounds in turns."""
    logs = [math.log(other / own) for own, other in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs)) * quantile(0.975, len(logs) - 1)
    return {
        "ratio": math.exp(mean),
        "low": math.exp(mean - spread),
        "high": math.exp(mean + spread),
    }


def turns(
    arms: dict[str, tuple[Path, tuple[str, ...]]], file: Path, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Seconds of a step of each arm in each round."""
    names = list(arms)
    for number in range(len(lines_of(file)), rounds):
        seen = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            config, settings = arms[name]
            found = step_s(config, settings, steps)
            if found is None:
                raise SystemExit(f"error: {name} fails")
            seen[name] = found
        with file.open("a") as out:
            out.write(json.dumps(seen) + "\n")
        print({name: round(each, 4) for name, each in seen.items()}, flush=True)
    return {name: [each[name] for each in lines_of(file)[:rounds]] for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("pinned", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--budget", default="15m")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--best", type=int, default=3, help="so many of the grid take turns")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    config = given.directory / given.config.name
    if not config.exists():
        shutil.copy(given.config, config)
    found = grid(config, given.directory / "grid.jsonl", given.pinned, given.steps)
    took_s = tuned(config, given.directory, given.pinned, given.budget)
    start = (*given.pinned,)
    target = given.directory / "tuned.yaml"
    arms = {"tuned": (target, ()), "as given": (config, start), "tuned again": (target, ())}
    for each in found[: given.best]:
        arms[" ".join(each["settings"])] = (config, (*start, *each["settings"]))
    seconds = turns(arms, given.directory / "turns.jsonl", given.rounds, given.steps)
    best = min(
        (name for name in seconds if name not in ("tuned", "as given", "tuned again")),
        key=lambda name: statistics.fmean(map(math.log, seconds[name])),
    )
    both = [math.sqrt(a * b) for a, b in zip(seconds["tuned"], seconds["tuned again"], strict=True)]
    result = {
        "config": given.config.name,
        "pinned": given.pinned,
        "grid": len(lines_of(given.directory / "grid.jsonl")),
        "tune_s": round(took_s),
        "best_of_grid": best,
        "beside_best_of_grid": ratio_of(both, seconds[best]),
        "beside_itself": ratio_of(seconds["tuned"], seconds["tuned again"]),
        "beside_as_given": ratio_of(both, seconds["as given"]),
        "seconds_of_a_step": seconds,
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, torch {torch.__version__}",
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("ONEDNN_", "OMP_", "ATEN_"))
        },
    }
    (given.directory / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "seconds_of_a_step"}, indent=1))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
