"""hotloop's trainer with every technique off against examples/plain_gpt.py: the trainer's own cost.

    python benchmarks/off_against_plain.py [--pairs 8] [--steps 20] [--out DIR] [--json FILE]

The two do the same arithmetic, so the ratio is 1 but for what the trainer itself costs or saves, and
the weights are the same to the last bit. Pairs of fresh processes, each pair taking turns step by step
(`turns.py`); pairs of the plain script against itself come first.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from functools import partial
from pathlib import Path

from turns import log_ratios

from hotloop.cli.progress import progress_bar
from hotloop.core.files import write_json
from hotloop.core.settings import load_settings
from hotloop.data.prepare import ensure_prepared
from hotloop.data.spec import Spec
from hotloop.hardware.device import pick_device, read_machine
from hotloop.judge.estimate import log_interval
from hotloop.optimizations.catalogue import resolve
from hotloop.quickstart.arms import arms, shipped
from hotloop.trial.plan import TrialPlan

BAR = 0.03
LEVEL = 0.05
"""Two-sided error of the interval."""
WARMUP = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--aa-pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/off-against-plain"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    # Steps to spare: the processes are ended, they do not end.
    plan = TrialPlan(
        warmup_steps=WARMUP, steps=args.steps + 5, timeout_s=600, looks=(args.pairs,), aa_pairs=0
    )
    settings = load_settings(shipped("configs/quickstart-plain.yaml"))
    settings, _ = resolve(settings, read_machine(pick_device("auto")))
    with progress_bar() as progress:
        source = settings.config.data.source
        assert source is not None
        data = ensure_prepared(
            Spec((source,), settings.config.data.tokenizer or "bytes"), progress=progress
        )
        plain, ours = arms(args.out, settings, data, plan)

        compare = partial(
            log_ratios,
            directory=args.out / "turns",
            warmup=WARMUP,
            steps=args.steps,
            rng=random.Random(args.seed),
            progress=progress,
            same_weights=True,
        )
        same = compare(plain, plain, args.aa_pairs)
        logs = compare(plain, ours, args.pairs)
    interval = log_interval(logs, LEVEL)
    ratio, low, high = (math.exp(x) for x in (interval.mean, interval.low, interval.high))
    print(
        f"hotloop with everything off: {ratio:.4f}x the plain loop's speed, {1 - LEVEL:.0%} interval "
        f"{low:.4f} to {high:.4f}, {args.pairs} pairs of fresh processes in turns of one step; "
        f"weights identical to the last bit"
    )
    print("the plain loop against itself:", *(f"{math.exp(x):.4f}" for x in same))
    if args.json:
        stored = {
            "ratios": [math.exp(x) for x in logs],
            "aa_ratios": [math.exp(x) for x in same],
            "ratio": ratio,
            "ratio_low": low,
            "ratio_high": high,
        }
        write_json(args.json, stored)
    return ending(low, high)


def ending(low: float, high: float) -> int:
    """0 when the whole interval is within the bar, 1 when it is beyond, else 3."""
    inside = low >= 1 - BAR and high <= 1 + BAR
    beyond = high < 1 - BAR or low > 1 + BAR
    word = (
        "proven" if inside else "missed" if beyond else "not proven, the interval reaches past it"
    )
    print(f"within {BAR:.0%} of the plain loop: {word}")
    return 0 if inside else 1 if beyond else 3


if __name__ == "__main__":
    sys.exit(main())
