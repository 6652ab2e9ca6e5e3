"""hotloop's trainer with every technique off against examples/plain_gpt.py: the trainer's own cost.

    python benchmarks/off_against_plain.py [--pairs 10] [--out DIR] [--json FILE]

The same interleaved fresh processes and the same judge as everywhere. The two do the same arithmetic,
so the ratio is 1 but for what the trainer itself costs or saves, and the losses agree to rounding.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hotloop.cli.progress import progress_bar
from hotloop.core.files import write_json
from hotloop.core.judgement import Verdict
from hotloop.core.settings import load_settings
from hotloop.data.cache import ensure_prepared
from hotloop.hardware.device import pick_device, read_machine
from hotloop.optimizations.resolve import resolve
from hotloop.quickstart.arms import arms
from hotloop.quickstart.shipped import shipped
from hotloop.report.terminal import render_verdict
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import compare_arms

BAR = 0.03


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/off-against-plain"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    plan = TrialPlan(
        warmup_steps=2, steps=args.steps, timeout_s=600, looks=(args.pairs,), aa_pairs=0
    )
    settings = load_settings(shipped("configs/quickstart-plain.yaml"))
    settings, _ = resolve(settings, read_machine(pick_device("auto")))
    with progress_bar() as progress:
        source = settings.config.data.source
        assert source is not None
        data = ensure_prepared(source, settings.config.data.tokenizer, progress=progress)
        baseline, candidate = arms(args.out, settings, data, plan)
        result = compare_arms(
            baseline,
            candidate,
            directory=args.out / "trials",
            plan=plan,
            parity_class="reduction_order",
            progress=progress,
        )
    verdict = result.verdict
    print(render_verdict(verdict))
    if args.json:
        write_json(args.json, verdict)
    return ending(verdict)


def ending(verdict: Verdict) -> int:
    """0 when the whole interval is within the bar, 1 when it is beyond or the losses differ, else 3."""
    if verdict.ratio_low is None or verdict.ratio_high is None or verdict.ratio is None:
        print("no interval: not proven")
        return 3
    inside = verdict.ratio_low >= 1 - BAR and verdict.ratio_high <= 1 + BAR
    beyond = verdict.ratio_high < 1 - BAR or verdict.ratio_low > 1 + BAR
    word = (
        "proven" if inside else "missed" if beyond else "not proven, the interval reaches past it"
    )
    print(f"{verdict.ratio - 1:+.1%} from the plain loop, bar {BAR:.0%}: {word}")
    if beyond or verdict.parity.result == "different":
        return 1
    return 0 if inside else 3


if __name__ == "__main__":
    sys.exit(main())
