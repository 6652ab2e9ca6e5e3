"""hotloop's settings for this machine against the two plain styles, on the same work.

    python benchmarks/step_speed.py CONFIG [key=value ...] [--styles plain compiled] [--pairs 6]
                                    [--steps 16] [--out DIR] [--json FILE]

CONFIG is one of `configs/` whose model the scripts in `examples/` can train: quickstart, llama-32k,
gpt2-124m-cpu. Each style is compared in its own session of interleaved fresh processes, by the same
judge as everywhere. With `--turns` both processes of a pair are alive and take turns step by step
(`turns.py`), which a shared machine's drift can hardly touch; losses are not compared then.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from functools import partial
from pathlib import Path
from typing import get_args

from turns import log_ratios

from hotloop.cli.progress import progress_bar
from hotloop.core.files import write_json
from hotloop.core.progress import Progress
from hotloop.core.settings import load_settings
from hotloop.data.prepare import ensure_prepared
from hotloop.data.spec import Spec
from hotloop.hardware.device import pick_device, read_machine
from hotloop.judge.estimate import log_interval
from hotloop.optimizations.catalogue import parity_class_of, resolve
from hotloop.quickstart.arms import Style, arms, shipped
from hotloop.report.terminal import render_verdict
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import compare_arms

LEVEL = 0.05
"""Two-sided error of the interval with `--turns`."""
SPARE = 5
"""Steps that processes which take turns do not reach: they are ended, they do not end."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--styles", nargs="+", choices=get_args(Style), default=get_args(Style))
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not counted")
    parser.add_argument("--turns", action="store_true", help="pairs that take turns step by step")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a process may take")
    parser.add_argument("--out", type=Path, default=Path("runs/step-speed"))
    parser.add_argument("--json", type=Path, help="directory for one verdict per style")
    args = parser.parse_args()
    plan = TrialPlan(
        warmup_steps=args.warmup,
        steps=args.steps + (SPARE if args.turns else 0),
        timeout_s=args.timeout,
        looks=(args.pairs,),
        aa_pairs=1,
    )
    settings = load_settings(shipped(f"configs/{args.config}.yaml"), tuple(args.overrides))
    settings, notes = resolve(settings, read_machine(pick_device("auto")))
    for note in notes:
        print(note, file=sys.stderr)
    with progress_bar() as progress:
        source = settings.config.data.source
        assert source is not None
        data = ensure_prepared(
            Spec((source,), settings.config.data.tokenizer or "bytes"), progress=progress
        )
        for style in args.styles:
            directory = args.out / args.config / style
            baseline, candidate = arms(directory, settings, data, plan, style=style)
            print(f"\n{args.config} against the {style} style", flush=True)
            if args.turns:
                take_turns(baseline, candidate, directory, args, progress)
                continue
            result = compare_arms(
                baseline,
                candidate,
                directory=directory / "trials",
                plan=plan,
                parity_class=parity_class_of(settings.config.flat()),
                progress=progress,
            )
            print(render_verdict(result.verdict))
            if args.json:
                args.json.mkdir(parents=True, exist_ok=True)
                write_json(args.json / f"{args.config}-{style}.json", result.verdict)
    return 0


def take_turns(
    baseline: Arm,
    candidate: Arm,
    directory: Path,
    args: argparse.Namespace,
    progress: Progress,
) -> None:
    compare = partial(
        log_ratios,
        directory=directory / "turns",
        warmup=args.warmup,
        steps=args.steps,
        rng=random.Random(0),
        progress=progress,
    )
    same = compare(baseline, baseline, 1)
    logs = compare(baseline, candidate, args.pairs)
    interval = log_interval(logs, LEVEL)
    ratio, low, high = (math.exp(x) for x in (interval.mean, interval.low, interval.high))
    print(
        f"{ratio:.3f}x the {baseline.name} style's speed, {1 - LEVEL:.0%} interval {low:.3f} to {high:.3f}, "
        f"{args.pairs} pairs of fresh processes in turns of one step; the {baseline.name} style against "
        f"itself: {math.exp(same[0]):.3f}"
    )
    if args.json:
        args.json.mkdir(parents=True, exist_ok=True)
        stored = {"ratio": ratio, "ratio_low": low, "ratio_high": high, "log_ratios": logs}
        write_json(args.json / f"{directory.parent.name}-{baseline.name}-turns.json", stored)


if __name__ == "__main__":
    sys.exit(main())
