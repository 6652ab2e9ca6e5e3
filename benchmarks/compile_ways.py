"""What `train.compile` costs until the first step has ended, and in a later step: fresh processes, in turns.

    python benchmarks/compile_ways.py CONFIG [key=value ...] --ways true true blocks [--rounds 2] [--steps 8] [--warm DIR]

CONFIG is one of `configs/`. A way that stands twice is compared with itself. Each process begins with an empty cache of
the compiler, or with `--warm` all of a way with that in DIR, which tells of later steps only. CPU seconds beside those
of the clock: where other programs run, the clock tells of them. The process compiles what it needs itself, one after
the other (TORCHINDUCTOR_COMPILE_THREADS=1), so that all of that is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

BEGAN = time.monotonic()
SETTLING = 2
"""Steps that are not counted."""


def cpu_s() -> float:
    """Of this process and the children that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def train(config: str, words: list[str], steps: int, directory: Path) -> dict[str, Any]:
    from hotloop.core.settings import load_settings
    from hotloop.core.step import read_steps
    from hotloop.quickstart.arms import shipped
    from hotloop.train import loop
    from hotloop.train.start import start

    ends: list[tuple[float, float]] = []
    real = loop.tag_compiles

    def tag_compiles(*given: Any) -> Any:  # called once in each step, after its update
        ends.append((time.monotonic() - BEGAN, cpu_s()))
        return real(*given)

    loop.tag_compiles = tag_compiles
    start(load_settings(shipped(f"configs/{config}.yaml"), words), directory, stop_after=steps)
    census = json.loads((directory / "census.json").read_text())
    later = list(zip(ends[SETTLING:-1], ends[SETTLING + 1 :], strict=True))
    return {
        "first_s": ends[0][0],
        "first_cpu_s": ends[0][1],
        "step_s": median(after[0] - before[0] for before, after in later),
        "step_cpu_s": median(after[1] - before[1] for before, after in later),
        "peak_mb": census["host_peak_bytes"] / 1e6,
        "graphs": census["num_graphs"],
        "loss": list(read_steps(directory / "steps.jsonl"))[-1].loss,
    }


def fresh(way: str, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        cache = args.warm.resolve() / way if args.warm else Path(directory) / "cache"
        command = [sys.executable, __file__, args.config, *args.overrides, f"train.compile={way}"]
        command += ["--steps", str(args.steps), "--child", str(Path(directory) / "run")]
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, env={**os.environ, **variables}, text=True, check=True
        )
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--ways", nargs="+", default=["true", "true", "blocks"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm", type=Path, help="directory that keeps the compiler's caches")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(train(args.config, args.overrides, args.steps, args.child)))
        return 0
    for number in range(args.rounds):
        ways = args.ways if number % 2 == 0 else args.ways[::-1]
        for way in ways:
            found = fresh(way, args)
            shown = "  ".join(f"{key} {value:.4g}" for key, value in found.items())
            print(f"{number}  {way:<28} {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
