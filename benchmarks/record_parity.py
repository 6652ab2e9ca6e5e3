"""Record losses of a tiny byte-level GPT with harmless changes and with planted mistakes.

    python benchmarks/record_parity.py tests/golden/parity_losses.json

The judge's parity bands are calibrated on this file (`tests/judge/test_parity.py`): harmless changes
must pass the band of their class, mistakes must fall outside it. 120 steps, 5 seeds, about 5 minutes
on 2 cores. Losses depend on the machine in the last digits only.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS = 120
SEEDS = (0, 1, 2, 3, 4)
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 8, 128, 4, 2
SOURCES = ("argparse.py", "typing.py", "inspect.py", "tarfile.py", "pickle.py", "doctest.py")


@dataclass(frozen=True)
class Variant:
    """One training; the defaults are the baseline."""

    threads: int = 2
    autocast: torch.dtype | None = None
    dtype: torch.dtype = torch.float32
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    beta2: float = 0.999
    clip: float | None = 1.0
    skipped: int | None = None
    """A step whose update is left out."""
    perturbation: float = 0.0
    """Relative size of a random change of the initial weights."""
    fused: bool = False
    foreach: bool = False
    order_seed: int | None = None
    """Other data order than the seed's."""
    init_seed: int | None = None
    warmup: int = 20
    shift: int = 1
    """Distance of the target from the input; 1 is right."""
    loss_scale: float = 1.0


HARMLESS: dict[str, tuple[str, Variant]] = {
    "repeat": ("bitwise", Variant()),
    "foreach": ("bitwise", Variant(foreach=True)),
    "one_thread": ("reduction_order", Variant(threads=1)),
    "fused": ("reduction_order", Variant(fused=True)),
    "perturbed_1e-7": ("reduction_order", Variant(perturbation=1e-7)),
    "fp64": ("reduction_order", Variant(dtype=torch.float64)),
    "bf16": ("reduced_precision", Variant(autocast=torch.bfloat16)),
    "bf16_one_thread": ("reduced_precision", Variant(autocast=torch.bfloat16, threads=1)),
    "bf16_fused": ("reduced_precision", Variant(autocast=torch.bfloat16, fused=True)),
}
"""Name -> (the parity class that the change claims, the change)."""

MISTAKES: dict[str, Variant] = {
    "no_weight_decay": Variant(weight_decay=0.0),
    "weight_decay_0.01_more": Variant(weight_decay=0.11),
    "no_clipping": Variant(clip=None),
    "learning_rate_x1.1": Variant(learning_rate=1.1e-3),
    "learning_rate_x1.01": Variant(learning_rate=1.01e-3),
    "one_skipped_step": Variant(skipped=60),
    "one_skipped_step_late": Variant(skipped=110),
    "beta2_0.99": Variant(beta2=0.99),
    "no_warmup": Variant(warmup=1),
    "loss_halved": Variant(loss_scale=0.5),
    "other_order": Variant(order_seed=99),
    "other_init": Variant(init_seed=99),
    "wrong_targets": Variant(shift=2),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class TinyGpt(nn.Module):
    """2 layers x 128 wide over bytes: about 0.45 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def corpus() -> Tensor:
    """A megabyte of the standard library's own sources, as bytes."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join((folder / name).read_bytes() for name in SOURCES)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def train(
    variant: Variant,
    seed: int,
    *,
    steps: int = STEPS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Losses in nats and wall seconds, one of each per step."""
    torch.set_num_threads(variant.threads)
    text = corpus()
    torch.manual_seed(seed if variant.init_seed is None else variant.init_seed)
    model = TinyGpt()
    if variant.perturbation:
        noise = torch.Generator().manual_seed(12345)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + variant.perturbation * torch.randn(p.shape, generator=noise))
    model = copy.deepcopy(model).to(variant.dtype)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=variant.learning_rate,
        betas=(0.9, variant.beta2),
        weight_decay=variant.weight_decay,
        fused=variant.fused or None,
        foreach=variant.foreach or None,
    )
    order = torch.Generator().manual_seed(
        1000 + (seed if variant.order_seed is None else variant.order_seed)
    )
    losses: list[float] = []
    seconds: list[float] = []
    before = clock()
    for step in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 2, (BATCH, 1), generator=order)
        places = starts + torch.arange(CONTEXT)
        for group in optimizer.param_groups:
            group["lr"] = variant.learning_rate * min(1.0, (step + 1) / variant.warmup)
        with torch.autocast("cpu", variant.autocast, enabled=variant.autocast is not None):
            loss = model(text[places], text[places + variant.shift])
        (loss * variant.loss_scale).backward()
        if variant.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), variant.clip)
        if step != variant.skipped:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        after = clock()
        seconds.append(after - before)
        before = after
    return losses, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    target: Path = parser.parse_args().file
    runs: dict[str, dict[str, list[float]]] = {}
    variants = {"baseline": Variant(), **{k: v for k, (_, v) in HARMLESS.items()}, **MISTAKES}
    for name, variant in variants.items():
        runs[name] = {str(seed): train(variant, seed)[0] for seed in SEEDS}
        print(f"{name}: last loss {runs[name]['0'][-1]:.4f}", file=sys.stderr)
    # Weight decay as small as torch's default, and without it: does so small a mistake show?
    for name, decay in {"decay_0.01": 0.01, "decay_0": 0.0}.items():
        weak = replace(Variant(), weight_decay=decay)
        runs[name] = {str(seed): train(weak, seed)[0] for seed in SEEDS}
    document = {
        "schema": "hotloop.golden.parity/1",
        "command": "python benchmarks/record_parity.py tests/golden/parity_losses.json",
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "sources": list(SOURCES),
        },
        "harmless": {name: claimed for name, (claimed, _) in HARMLESS.items()},
        "mistakes": list(MISTAKES),
        "losses": runs,
    }
    target.write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
