"""One optimizer step of Muon: hotloop's, batched by shape, against torch.optim.Muon with AdamW beside it.

    python benchmarks/muon_step.py [--models quickstart gpt2-124m] [--rounds 15] [--precision bf16]
                                   [--threads N] [--json FILE]

Both update the same matrices of the blocks by Muon and everything else by fused AdamW, with the same
random gradients, in one process: each round takes one step of every arm, in an order that turns. The
ratio is torch's seconds over the arm's, the median over rounds of the ratio within a round, with the
interval of a sign test (95 %). Steps alone: no forward, no backward. Queries, keys and values stand in one
weight; torch's Muon gets them as three, so that both orthogonalize the same matrices.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hotloop.core.config import OptimizerConfig
from hotloop.core.files import write_json
from hotloop.hardware.device import pick_device, why_compile_cannot_run
from hotloop.models.decoder import Decoder, num_parameters
from hotloop.models.shape import DecoderShape
from hotloop.train import optimizer as optimizers
from hotloop.train.optimizer import build_optimizer

MODELS = {
    "tiny": DecoderShape(vocabulary=300, context=64, layers=2, width=64, heads=2),
    "quickstart": DecoderShape(vocabulary=8192, context=256, layers=6, width=384, heads=6),
    "gpt2-124m": DecoderShape(vocabulary=50304, context=1024, layers=12, width=768, heads=12),
}
REFERENCE = "torch"


@dataclass(frozen=True, slots=True)
class Row:
    """One arm on one model."""

    model: str
    arm: str
    parameters: int
    rounds: int
    median_s: float
    ratio: float
    """The reference's seconds over this arm's."""
    ratio_low: float | None
    """`None` with fewer than 6 rounds: no interval of 95 % can be had."""
    ratio_high: float | None


@dataclass(frozen=True, slots=True)
class Result:
    torch: str
    device: str
    threads: int
    precision: str
    rows: tuple[Row, ...]
    schema: str = "hotloop.muon_step/1"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["quickstart", "gpt2-124m"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.threads:
        torch.set_num_threads(args.threads)
    device = pick_device(args.device)
    rows: list[Row] = []
    for name in args.models:
        rows += measure(name, MODELS[name], device, rounds=args.rounds, precision=args.precision)
    result = Result(
        torch.__version__, str(device), torch.get_num_threads(), args.precision, tuple(rows)
    )
    print(
        f"torch {result.torch}, {device}, {result.threads} threads, hotloop's products in {args.precision}"
    )
    print(f"{'model':<12} {'arm':<18} {'step':>10}   ratio to torch.optim.Muon + AdamW")
    for row in rows:
        interval = (
            "(no interval: fewer than 6 rounds)"
            if row.ratio_low is None
            else f"({row.ratio_low:.2f} to {row.ratio_high:.2f})"
        )
        ratio = "" if row.arm == REFERENCE else f"{row.ratio:.2f}x {interval}"
        print(f"{row.model:<12} {row.arm:<18} {row.median_s * 1e3:>7.1f} ms   {ratio}")
    if args.json:
        write_json(args.json, result)
    return 0


def measure(
    name: str, shape: DecoderShape, device: torch.device, *, rounds: int, precision: str
) -> list[Row]:
    """Every arm on one model."""
    torch.manual_seed(0)
    model = Decoder(shape)
    gradients = {
        weight: torch.randn(p.shape, device=device) * 1e-3 for weight, p in model.named_parameters()
    }
    arms: dict[str, Callable[[], None]] = {
        REFERENCE: torchs(shape, gradients, device),
        "hotloop": ours(shape, gradients, device, precision),
    }
    if why_compile_cannot_run(device) is None:
        arms["hotloop, compiled"] = ours(shape, gradients, device, precision, compiled=True)
    for step in arms.values():  # state is allocated, and what is compiled is compiled
        step()
        step()
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    order = list(arms)
    for number in range(rounds):
        turned = order[number % len(order) :] + order[: number % len(order)]
        for arm in turned:
            times[arm].append(seconds(arms[arm], device))
    parameters = num_parameters(model)
    rows = []
    for arm, found in times.items():
        ratios = [a / b for a, b in zip(times[REFERENCE], found, strict=True)]
        low, high = interval(ratios)
        median = statistics.median(found)
        rows.append(
            Row(name, arm, parameters, rounds, median, statistics.median(ratios), low, high)
        )
    return rows


def ours(
    shape: DecoderShape,
    gradients: dict[str, torch.Tensor],
    device: torch.device,
    precision: str,
    *,
    compiled: bool = False,
) -> Callable[[], None]:
    model = placed(shape, gradients, device)
    config = OptimizerConfig(name="muon", fused=True, weight_decay=0.1)
    optimizer = build_optimizer(model, config, precision=precision)
    if not compiled:
        return optimizer.step
    fast = torch.compile(optimizers.orthogonalize, dynamic=False)

    def step() -> None:
        eager, optimizers.orthogonalize = optimizers.orthogonalize, fast
        try:
            optimizer.step()
        finally:
            optimizers.orthogonalize = eager

    return step


def torchs(
    shape: DecoderShape, gradients: dict[str, torch.Tensor], device: torch.device
) -> Callable[[], None]:
    model = placed(shape, gradients, device)
    chosen = {id(p) for p, _ in model.block_matrices()}
    matrices: list[torch.nn.Parameter] = []
    for p, rows in model.block_matrices():
        assert p.grad is not None
        pieces = rows or (p.shape[0],)
        for piece, gradient in zip(p.detach().split(pieces), p.grad.split(pieces), strict=True):
            matrices.append(torch.nn.Parameter(piece.clone()))
            matrices[-1].grad = gradient.clone()
    others = [p for p in model.parameters() if id(p) not in chosen]
    both = (
        torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(optimizers.decayed_apart(others), lr=1e-3, weight_decay=0.1, fused=True),
    )

    def step() -> None:
        for optimizer in both:
            optimizer.step()

    return step


def placed(
    shape: DecoderShape, gradients: dict[str, torch.Tensor], device: torch.device
) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(shape).to(device)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    return model


def seconds(step: Callable[[], None], device: torch.device) -> float:
    wait(device)
    before = time.perf_counter()
    step()
    wait(device)
    return time.perf_counter() - before


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interval(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    """The distribution-free 95 % interval of the median: the k-th from either end of the sorted values."""
    n, ordered = len(ratios), sorted(ratios)
    outside = 0.0
    k = 0
    while k < n // 2:
        outside += math.comb(n, k) / 2**n
        if 2 * outside > 0.05:
            break
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else (None, None)


if __name__ == "__main__":
    sys.exit(main())
