"""Every way to compute attention learns what the written-out product learns. `pytest tests/gpu -m gpu`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from device_trainings import MARKS, losses
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_or_cpu import DEVICE, ON_GPU, only_there
from hotloop.models.decoder import Decoder
from hotloop.models.sampling import sample
from hotloop.models.shape import DecoderShape
from hotloop.optimizations.precision.autocast import autocast, set_tf32

pytestmark = MARKS
SHAPE = DecoderShape(vocabulary=300, context=200, layers=2, width=128, heads=4, attention="plain")
LLAMA = replace(SHAPE, norm="rmsnorm", positions="rotary", mlp="swiglu", kv_heads=2, bias=False, tied=False)  # fmt: skip
FUSED = ("flash", "efficient", "cudnn")
WIDE = ("model.width=64", "model.heads=2", "model.context=64")
SHARED = (*WIDE, "model.family=llama", "model.heads=4", "model.kv_heads=2")
HERE = [pytest.param("flash", "bf16"), pytest.param("math", "fp32"), pytest.param("sdpa", "fp32")]
THERE = [
    *(pytest.param(name, "bf16", marks=only_there) for name in ("efficient", "cudnn")),
    pytest.param("efficient", "fp32", marks=only_there),
    pytest.param("math", "bf16"),
    pytest.param("sdpa", "bf16"),
]


class Ran(TorchDispatchMode):
    """Counts the kernels of attention that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith("_scaled_dot_product_"):
            self.names[name.split("_")[4] + ("_backward" if "backward" in name else "")] += 1
        return func(*args, **(kwargs or {}))


def places() -> Tensor:
    """Of documents of several lengths in each row."""
    return torch.stack([torch.arange(200) % length for length in (70, 200)]).to(DEVICE)


def learnt(
    shape: DecoderShape, precision: str, *, masked: bool = False
) -> tuple[Tensor, Tensor, Counter[str]]:
    """The loss, all gradients in one vector, and what ran."""
    set_tf32("fp32")  # an earlier test may have left it on
    torch.manual_seed(0)
    model = Decoder(shape).to(DEVICE)
    tokens, targets = torch.randint(0, 300, (2, 2, 200)).to(DEVICE)
    with Ran() as ran:
        with autocast(DEVICE, precision):
            loss = model(tokens, targets, places() if masked else None)
        loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return loss.detach(), torch.cat([each.flatten() for each in grads]), ran.names


def assert_same(ours: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], within: float) -> None:
    torch.testing.assert_close(ours[0], wanted[0], rtol=within, atol=0)
    assert (ours[1] - wanted[1]).norm() <= within * wanted[1].norm()


@pytest.mark.parametrize("shape", [SHAPE, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize(("name", "precision"), [*HERE, *THERE])
def test_a_kernel_runs_forward_and_backward_as_the_written_out_product(
    shape: DecoderShape, name: str, precision: str
) -> None:
    *wanted, _ = learnt(shape, "fp32")
    *found, ran = learnt(replace(shape, attention=name), precision)
    assert_same(found, wanted, 2e-2 if precision == "bf16" else 1e-4)
    if name in FUSED:
        assert ran == {name: shape.layers, f"{name}_backward": shape.layers}
    elif name == "math":
        assert not ran
    elif ON_GPU:  # torch's own choice never writes the scores out
        assert set(ran) <= {*FUSED, *(f"{each}_backward" for each in FUSED)}
        assert sum(ran.values()) == 2 * shape.layers


@pytest.mark.parametrize("shape", [SHAPE, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("sdpa", "fp32"),
        ("sdpa", "bf16"),
        *(pytest.param(name, "bf16", marks=only_there) for name in ("efficient", "cudnn")),
    ],
)
def test_documents_of_a_row_are_masked_by_a_fused_kernel(
    shape: DecoderShape, name: str, precision: str
) -> None:
    *wanted, _ = learnt(shape, "fp32", masked=True)
    *found, ran = learnt(replace(shape, attention=name), precision, masked=True)
    assert_same(found, wanted, 2e-2 if precision == "bf16" else 1e-4)
    if ON_GPU:
        assert sum(ran.values()) == 2 * shape.layers
    *unmasked, _ = learnt(shape, "fp32")
    assert (unmasked[1] - wanted[1]).norm() > 5e-2 * wanted[1].norm()


@pytest.mark.parametrize(
    "more", [WIDE, SHARED, (*WIDE, "data.layout=pack"), (*SHARED, "data.layout=pack")], ids=" ".join
)
@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-4), ("bf16", 1e-2)])
def test_a_training_by_torchs_kernel_has_the_losses_of_the_product(
    tiny_config: Path, tmp_path: Path, more: tuple[str, ...], precision: str, within: float
) -> None:
    plain = losses(tiny_config, tmp_path / "plain", *more, "train.attention=plain")
    words = (*more, "train.attention=sdpa", f"train.precision={precision}")
    assert losses(tiny_config, tmp_path / "sdpa", *words) == pytest.approx(plain, rel=within)
    assert plain[-1] < plain[0] - 0.1


@only_there
@pytest.mark.parametrize(
    "more", [(*WIDE, "model.context=128"), (*SHARED, "model.context=80")], ids=" ".join
)
def test_flex_attention_has_the_losses_of_the_product(
    tiny_config: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """Two sequences in a microbatch: the corpus is small."""
    more = (*more, "train.microbatch=2")
    plain = losses(tiny_config, tmp_path / "plain", *more, "train.attention=plain")
    words = (*more, "train.attention=flex", "train.compile=true", "train.precision=bf16")
    assert losses(tiny_config, tmp_path / "flex", *words) == pytest.approx(plain, rel=1e-2)


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("shape", [SHAPE, LLAMA], ids=["gpt2", "llama"])
def test_text_with_kept_keys_is_that_without(shape: DecoderShape, temperature: float) -> None:
    set_tf32("fp32")
    torch.manual_seed(0)
    model = Decoder(replace(shape, attention="sdpa")).to(DEVICE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # away from ties
    prompts, seeds, made = [[1, 2, 3], [4]], [5, 6], 40
    found: list[list[int]] = [[], []]
    drawn = sample(model, prompts, seeds=seeds, num_tokens=made, temperature=temperature)
    for row, number in drawn:
        if number is not None:
            found[row].append(number)
    for prompt, seed, ours in zip(prompts, seeds, found, strict=True):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        ids = list(prompt)
        for _ in range(made):
            with torch.inference_mode():
                logits = model.eval()(torch.tensor([ids], device=DEVICE), last=True)[0, -1]
            if temperature:
                logits = logits / temperature
                logits = logits.masked_fill(logits < logits.topk(50).values[-1], float("-inf"))
                ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
            else:
                ids.append(int(logits.argmax()))
        assert ours == ids[len(prompt) :]
