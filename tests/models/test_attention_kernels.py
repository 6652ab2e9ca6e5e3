"""Attention held to one kernel in the training steps, and blocks of which products are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.models.attention import NO_KERNEL
from hotloop.models.decoder import Decoder
from hotloop.models.shape import DecoderShape

SHAPE = DecoderShape(vocabulary=50, context=16, layers=2, width=32, heads=4)
LLAMA = replace(SHAPE, norm="rmsnorm", positions="rotary", mlp="swiglu", kv_heads=2, bias=False, tied=False)  # fmt: skip
FLASH = "_scaled_dot_product_flash_attention_for_cpu"


class Ran(TorchDispatchMode):
    """Counts what reaches the dispatcher, the backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def decoder(shape: DecoderShape) -> Decoder:
    torch.manual_seed(0)
    return Decoder(shape)


def learnt(shape: DecoderShape) -> tuple[Tensor, list[Tensor | None], Counter[str]]:
    torch.manual_seed(1)
    model, (tokens, targets) = decoder(shape), torch.randint(0, 50, (2, 2, 16))
    with Ran() as ran:
        loss = model(tokens, targets)
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()], ran.names


@pytest.mark.parametrize("shape", [SHAPE, LLAMA], ids=["gpt2", "llama"])
def test_a_pinned_kernel_is_the_one_that_runs_and_learns_the_same(shape: DecoderShape) -> None:
    expected, gradients, chosen = learnt(shape)
    assert chosen[FLASH] == shape.layers
    for kernel, fused in (("flash", shape.layers), ("math", 0)):
        loss, ours, ran = learnt(replace(shape, attention=kernel))
        assert ran[FLASH] == fused
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
        for a, b in zip(ours, gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_what_cannot_be_pinned_here_is_free_again_once_training_is_over() -> None:
    model, tokens = decoder(replace(SHAPE, attention="cudnn")), torch.zeros(1, 16, dtype=torch.long)
    with pytest.raises(RuntimeError, match=NO_KERNEL[0]):
        model(tokens)
    assert model.eval()(tokens).shape == (1, 16, 50)


def test_a_compiled_model_is_held_to_its_kernel() -> None:
    traced: set[str] = set()

    def look(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        traced.update(str(node.target) for node in module.graph.nodes)
        return make_boxed_func(module.forward)

    tokens = torch.zeros(1, 16, dtype=torch.long)
    for kernel, fused in (("math", False), ("flash", True)):
        traced.clear()
        model = decoder(replace(SHAPE, attention=kernel))
        model.compile(backend=aot_autograd(fw_compiler=look), fullgraph=True, dynamic=False)
        model(tokens, tokens).backward()
        assert any(FLASH in each for each in traced) == fused


def test_flex_attention_of_a_compiled_forward_is_the_same() -> None:
    """On a CPU it has no backward."""
    tokens = torch.randint(0, 50, (2, 16))
    for shape in (SHAPE, LLAMA):
        wanted = decoder(shape)(tokens, tokens)
        model, graphs = decoder(replace(shape, attention="flex")), []

        def look(module: torch.fx.GraphModule, inputs: Any, graphs: list[str] = graphs) -> Any:
            graphs.append(module.code)
            return module.forward

        assert model.state_dict().keys() == decoder(shape).state_dict().keys()
        model.compile(backend=look, fullgraph=True, dynamic=False)
        with torch.no_grad():
            torch.testing.assert_close(model(tokens, tokens), wanted, rtol=1e-5, atol=0)
        assert graphs[0].count("flex_attention(") == shape.layers


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("shape", [SHAPE, LLAMA], ids=["gpt2", "llama"])
def test_products_are_not_computed_again_and_the_bits_are_the_same(
    shape: DecoderShape, dropout: float
) -> None:
    again = replace(shape, dropout=dropout, checkpoint_every=1)
    loss, wanted, kept = learnt(replace(again, checkpoint_every=None))
    _, _, full = learnt(again)
    ours, gradients, selective = learnt(replace(again, keeps_products=True))
    assert torch.equal(ours, loss)
    assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))  # type: ignore[arg-type]
    # A CPU's flash kernel drops nothing: then attention is written out, and computed again.
    for name in ("mm", "addmm", FLASH) if not dropout else ("mm", "addmm"):
        assert selective[name] == kept[name]
    assert full["mm"] + full["addmm"] > kept["mm"] + kept["addmm"]
    assert full["native_layer_norm"] == selective["native_layer_norm"] >= kept["native_layer_norm"]
