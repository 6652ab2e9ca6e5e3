"""How near a training step comes to its own matrix products alone, measured side by side.

    python benchmarks/ceiling_share.py CONFIG [key=value ...] [--rounds 20] [--json FILE]

The ceiling of a step is the time that its matrix products take when nothing else is done: each of its
shapes (forward, gradient of the inputs, gradient of the weights; attention's at half, for a causal
model needs no score of the future), in the run's dtype, alone. The share is that time over the step's.
There are two: with the same operands again and again, which stay in the caches, and with others each
time, more than the caches hold, which come from memory. A real step lies between them: a product finds
some of its operands where the operation before left them. Steps and products alternate in one process, so a machine that slows down
slows both; the interval is over rounds (their medians, by bootstrap), and says nothing of other
processes or machines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matrix_products import Product, step_products
from torch import Tensor

from hotloop.cli.progress import progress_bar
from hotloop.core.settings import load_settings
from hotloop.data.prepare import ensure_prepared
from hotloop.data.prepared import Corpora, open_prepared
from hotloop.data.spec import Spec
from hotloop.hardware.device import pick_device, read_machine
from hotloop.optimizations.catalogue import resolve
from hotloop.probe.phases import PhaseClock
from hotloop.quickstart.arms import shipped
from hotloop.train.interruption import StopRequest
from hotloop.train.loop import gradients
from hotloop.train.run import Run, build_run
from hotloop.train.update import update

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WARMUP = 4
TIMED = 3
"""Repetitions of a product in a round, after one that warms it up; the fastest counts."""
COLD_BYTES = 1 << 27
"""Of operands and results that a product takes in turn: several times the caches."""
COLD_TIMED = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    settings = load_settings(shipped(f"configs/{args.config}.yaml"), tuple(args.overrides))
    device = pick_device("cpu")
    settings, _ = resolve(settings, read_machine(device))
    config = settings.config
    assert config.data.source is not None
    with progress_bar() as progress, tempfile.TemporaryDirectory() as scratch:
        data = ensure_prepared(
            Spec((config.data.source,), config.data.tokenizer or "bytes"), progress=progress
        )
        run = build_run(config, Corpora((open_prepared(data),), (1.0,)), Path(scratch), device)
        run.model.train()
        dtype = DTYPES.get(config.train.precision, torch.float32)
        products = step_products(run.shape, config.sequences_per_step)
        timers = [timer(product, dtype) for product in products]
        cold_timers = [timer(product, dtype, spread_over=COLD_BYTES) for product in products]
        for step in range(WARMUP):
            one_step(run, step)
        steps: list[float] = []
        alone: list[list[float]] = [[] for _ in products]
        cold: list[list[float]] = [[] for _ in products]
        for number in range(args.rounds):
            progress("steps and products in turn", number, args.rounds, "")
            steps.append(one_step(run, WARMUP + number))
            for times, timed in zip(alone, timers, strict=True):
                times.append(min(timed() for _ in range(TIMED + 1)))
            for times, timed in zip(cold, cold_timers, strict=True):
                times.append(statistics.median(timed() for _ in range(COLD_TIMED)))
        progress("steps and products in turn", args.rounds, args.rounds, "")
    print(
        f"{'product':<16}{'kind':<17}{'m x k x n':>22}{'count':>7}{'ms':>9}{'GFLOP/s':>9}{'cold ms':>9}"
    )
    for product, times, cold_times in zip(products, alone, cold, strict=True):
        took = statistics.median(times)
        size = f"{product.m} x {product.k} x {product.n}"
        rate = product.flops / product.count / took / 1e9
        print(
            f"{product.name:<16}{product.kind:<17}{size:>22}{product.count:>7g}"
            f"{took * 1e3:>9.2f}{rate:>9.0f}{statistics.median(cold_times) * 1e3:>9.2f}"
        )
    flops = sum(product.flops for product in products)
    step = statistics.median(steps)
    print(f"a step took {step * 1e3:.0f} ms, {flops / step / 1e9:.0f} GFLOP/s of products")
    stored: dict[str, object] = {"steps_s": steps}
    for name, times_of, what in (
        ("warm", alone, "operands in the caches"),
        ("cold", cold, "operands from memory"),
    ):
        floors = floors_of(products, times_of)
        shares = [floor / step for floor, step in zip(floors, steps, strict=True)]
        share, (low, high) = statistics.median(shares), bootstrap(shares)
        print(
            f"share of the ceiling, {what}: {share:.1%} (95 % {low:.1%} to {high:.1%}); "
            f"products alone {statistics.median(floors) * 1e3:.0f} ms, "
            f"{flops / statistics.median(floors) / 1e9:.0f} GFLOP/s"
        )
        stored[name] = {"share": share, "low": low, "high": high, "products_s": floors}
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


def floors_of(products: Sequence[Product], times: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of all products of a step, a figure per round."""
    return [
        sum(product.count * seconds for product, seconds in zip(products, one_round, strict=True))
        for one_round in zip(*times, strict=True)
    ]


def one_step(run: Run, step: int) -> float:
    """Seconds of a whole step by the trainer's own functions, without the books."""
    began = time.perf_counter()
    data = run.work.read(step, own=range(run.config.train.grad_accum_steps), pinned=False)
    loss = gradients(run, data, PhaseClock(), StopRequest(run))["loss"]
    update(run, run.config.optimizer.learning_rate / 10, loss)
    loss.item()
    return time.perf_counter() - began


def timer(product: Product, dtype: torch.dtype, *, spread_over: int = 0) -> Callable[[], float]:
    """Operands laid out as in a decoder: a linear layer's weight is stored as (n x k).

    spread_over: bytes of operands and results that are used in turn; at least one set.
    """
    sets = [operands_of(product, dtype)]
    size = sum(tensor.numel() * tensor.element_size() for tensor in sets[0])
    sets += [operands_of(product, dtype) for _ in range(spread_over // size)]
    operands = itertools.cycle(sets)

    def timed() -> float:
        left, right, out = next(operands)
        began = time.perf_counter()
        torch.matmul(left, right, out=out)
        return time.perf_counter() - began

    return timed


def operands_of(product: Product, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    shape = () if product.batch == 1 else (product.batch,)
    left = torch.randn(*shape, product.m, product.k).to(dtype)
    if product.kind == "weight gradient":  # both operands are stored with the tokens first
        left = torch.randn(product.k, product.m).to(dtype).t()
    right = torch.randn(*shape, product.k, product.n).to(dtype)
    if product.kind == "forward" and product.name != "mixing":
        right = torch.randn(*shape, product.n, product.k).to(dtype).mT
    out = torch.full((*shape, product.m, product.n), 0, dtype=dtype)  # its pages are there
    return left, right, out


def bootstrap(values: list[float], draws: int = 10_000) -> tuple[float, float]:
    """95 % percentile interval of the median."""
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(values, size=(draws, len(values))), axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


if __name__ == "__main__":
    sys.exit(main())
