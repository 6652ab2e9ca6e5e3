"""Through the real compiler, on the CPU, which takes most of a minute: GPT-2 is compiled in every run of the
tests, in `train/test_train_command.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from hotloop.hardware.device import why_compile_cannot_run
from hotloop.models.decoder import Decoder
from hotloop.models.shape import DecoderShape
from hotloop.optimizations.compiling.trainer import compile_counts, compile_model

LLAMA = DecoderShape(
    vocabulary=61, context=16, layers=1, width=32, heads=4, kv_heads=2, hidden=48, qk_norm=True,
    norm="rmsnorm", positions="rotary", mlp="swiglu", bias=False, tied=False,
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    if (why_not := why_compile_cannot_run(torch.device("cpu"))) is not None:
        pytest.skip(why_not)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.slow  # `train/test_train_command.py` has a Llama's one graph and its losses
def test_compiled_llama_is_one_graph_with_the_losses_and_gradients_of_eager() -> None:
    torch.manual_seed(0)
    eager, compiled = Decoder(LLAMA), Decoder(LLAMA)
    compiled.load_state_dict(eager.state_dict())
    compile_model(compiled)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):  # the second shows that nothing is compiled again
        tokens, targets = torch.randint(0, 61, (2, 2, 16), generator=generator)
        losses = [model(tokens, targets) for model in (eager, compiled)]
        for model, loss in zip((eager, compiled), losses, strict=True):
            model.zero_grad()
            loss.backward()
        assert torch.allclose(losses[1], losses[0], rtol=1e-5)
        for (name, a), b in zip(eager.named_parameters(), compiled.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert torch.allclose(a.grad, b.grad, atol=1e-4, rtol=1e-3), name
    counts = compile_counts()
    assert (counts.graphs, counts.graph_breaks) == (1, 0)
