"""hotloop's defaults, a plain loop and one sped up as guides say, a process of each: tokens/s, model FLOP/s and losses.

    python benchmarks/device_speed.py CONFIG [key=value ...] [--arms hotloop compiled plain] [--steps 20] [--out DIR]

For minutes on a rented GPU: no pairs and no verdict, as `step_speed.py` has them. CONFIG as there; what the scripts cannot
do is refused: gpt2-124m needs train.grad_accum_steps=1 optimizer.beta2=0.999 optimizer.weight_decay=0.01.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from hotloop.core.measurement import Plan
from hotloop.core.settings import load_settings
from hotloop.data.prepare import ensure_prepared
from hotloop.data.prepared import open_prepared
from hotloop.data.spec import Spec
from hotloop.hardware.ceilings import measure_ceilings
from hotloop.hardware.device import pick_device, read_environment, read_machine
from hotloop.models.shape import flops_per_token
from hotloop.optimizations.catalogue import resolve
from hotloop.quickstart.arms import Style, arms, shipped
from hotloop.train.run import decoder_shape
from hotloop.trial.arm import Arm
from hotloop.trial.measure import measure
from hotloop.trial.plan import TrialPlan

ARMS = ("hotloop", "compiled", "plain")
WARMUP = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=120, help="seconds a process may take")
    parser.add_argument("--out", type=Path, help="keep the measurements there")
    args = parser.parse_args()
    device = pick_device("auto")
    settings, notes = resolve(
        load_settings(shipped(f"configs/{args.config}.yaml"), tuple(args.overrides)),
        read_machine(device),
    )
    config = settings.config
    print(*notes, *(f"{k}={v}" for k, v in config.flat().items() if k.startswith("train.")))
    assert isinstance(config.data.source, str)
    data = ensure_prepared(Spec((config.data.source,), config.data.tokenizer or "bytes"))
    vocabulary = open_prepared(data).manifest.vocabulary_size
    flops = flops_per_token(decoder_shape(config, vocabulary))
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        threads = torch.get_num_threads()
        found = measure_ceilings(read_environment(), device, num_threads=threads, matmul_s=2)
        peak = max(each.flops_per_s for each in found.matmul)
        print(f"{found.device}: {peak / 1e12:.0f} TFLOP/s at best in {found.matmul[0].dtype}")
        plan = TrialPlan(warmup_steps=WARMUP, steps=args.steps, timeout_s=args.timeout, looks=(2,))
        for name in args.arms:
            style: Style = "plain" if name == "plain" else "compiled"
            both = arms(out / style, settings, data, plan, style=style)
            show(name, both[name == "hotloop"], out / name, args, flops, peak)
    return 0


def show(
    name: str, arm: Arm, out: Path, args: argparse.Namespace, flops: float, peak: float
) -> None:
    made = measure(
        arm,
        directory=out,
        plan=Plan(WARMUP, args.steps, args.timeout),
        seed=name,
        cache=out / "compiled",
        workdir=None,
    )
    assert arm.tokens_per_step or name == "hotloop"
    steady = made.records[WARMUP:]
    seconds = statistics.median(each.wall_s for each in steady)
    tokens = (arm.tokens_per_step or steady[0].tokens or 0) / seconds
    losses = [each.loss for each in made.records if each.loss is not None]
    memory = max((each.peak_bytes or 0 for each in made.records), default=0)
    told = f"  {memory / 1e9:.1f} GB" if memory else ""  # of the scripts nobody asks it
    print(
        f"{name:9} {tokens:12,.0f} tokens/s  {seconds * 1e3:8.1f} ms a step (mean "
        f"{statistics.mean(each.wall_s for each in steady) * 1e3:.1f})  {tokens * flops / 1e12:6.1f} TFLOP/s  "
        f"MFU {tokens * flops / peak:.1%}  loss {losses[0]:.4f} to {losses[-1]:.4f}{told}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
