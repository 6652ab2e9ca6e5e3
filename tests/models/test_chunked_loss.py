from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.models import chunked_loss as module
from hotloop.models.chunked_loss import chunked_loss
from hotloop.models.decoder import IGNORED_TARGET, Decoder
from hotloop.models.shape import DecoderShape

TOKENS, WIDTH, VOCABULARY, ROWS = 50, 16, 90, 96
SHAPE = DecoderShape(vocabulary=VOCABULARY, context=16, layers=2, width=32, heads=4)


@pytest.fixture(autouse=True)
def _strips_of_three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRIP_BYTES", 3 * 4 * VOCABULARY)


def inputs() -> tuple[Tensor, nn.Parameter, Tensor]:
    """Large logits, some targets without a say, some in the last and the shorter chunk."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (TOKENS,))
    targets[::7] = IGNORED_TARGET
    return hidden, nn.Parameter(torch.randn(ROWS, WIDTH)), targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)[:, :VOCABULARY].float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORED_TARGET, reduction="sum")


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor, most: int = 13) -> Tensor:
    return chunked_loss(
        hidden, weight, targets, most=most, vocabulary=VOCABULARY, ignored=IGNORED_TARGET
    )


@contextmanager
def bf16(on: bool) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        yield


@pytest.mark.parametrize("most", [1, 13, 49, TOKENS, 1000])
def test_loss_and_gradients_are_those_of_torch(most: int) -> None:
    hidden, weight, targets = inputs()
    expected = plain(hidden, weight, targets)
    wanted = torch.autograd.grad(expected / 3, (hidden, weight))
    loss = chunked(hidden, weight, targets, most)
    found = torch.autograd.grad(loss / 3, (hidden, weight))
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert not found[0][::7].any()  # nothing is learned from what does not count
    assert not found[1][VOCABULARY:].any()
    with torch.no_grad():
        torch.testing.assert_close(chunked(hidden, weight, targets, most), expected, rtol=1e-6, atol=0)  # fmt: skip


def test_under_autocast_the_logits_are_rounded_as_torch_rounds_them() -> None:
    hidden, weight, targets = inputs()
    with bf16(True):
        expected, loss = plain(hidden, weight, targets), chunked(hidden, weight, targets)
        with torch.no_grad():
            evaluated = chunked(hidden, weight, targets)
    exact = plain(hidden, weight, targets)
    for each in (loss, evaluated):
        assert abs(each - expected) < 1e-6 * expected < abs(exact - expected)
    for a, b in zip(
        torch.autograd.grad(loss, (hidden, weight)),
        torch.autograd.grad(expected, (hidden, weight)),
        strict=True,
    ):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.01 * b.norm()


def test_logits_of_a_chunk_are_the_largest_tensors() -> None:
    """Seen below the operator, where each of its products is one of torch's."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            if isinstance(made, Tensor):
                largest = max(largest, made.untyped_storage().nbytes() // 4)
            return made

    hidden, weight, targets = inputs()
    with Watch(), torch.no_grad():
        module._with_gradients._init_fn(hidden, weight, targets, 10, VOCABULARY, IGNORED_TARGET)
        assert largest == ROWS * WIDTH  # the gradient: the logits of ten tokens are smaller
        chunked(hidden, weight, targets, most=25)
        assert largest == 25 * ROWS
        plain(hidden, weight, targets)
        assert largest == TOKENS * ROWS


LLAMA = replace(SHAPE, norm="rmsnorm", positions="rotary", mlp="swiglu", kv_heads=2, bias=False, tied=False)  # fmt: skip


@pytest.mark.parametrize("reduced", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [SHAPE, LLAMA], ids=["tied", "untied"])
@pytest.mark.parametrize("compiled", [False, True])
def test_decoder_learns_the_same(shape: DecoderShape, compiled: bool, reduced: bool) -> None:
    tokens, targets = torch.randint(0, VOCABULARY, (2, 2, 16))
    targets[0, :5] = IGNORED_TARGET
    found = []
    for chunk in (None, 7):
        torch.manual_seed(0)
        decoder = Decoder(replace(shape, loss_chunk=chunk))
        if compiled and chunk:
            decoder.compile(backend="aot_eager", fullgraph=True, dynamic=False)
        for _ in range(2):  # gradients add up over microbatches
            with bf16(reduced):
                loss = decoder(tokens, targets) / 27
            loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in decoder.named_parameters()}))
    (loss, wanted), (ours, gradients) = found
    torch.testing.assert_close(ours, loss, rtol=1e-6, atol=0)
    tolerance = 0.02 if reduced else 1e-5
    for name, gradient in gradients.items():
        other = wanted[name]
        assert gradient is not None
        assert other is not None
        assert (gradient - other).norm() <= tolerance * other.norm() + 1e-7, name


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_activations_computed_again_give_the_same_bits(every: int, dropout: float) -> None:
    tokens, targets = torch.randint(0, VOCABULARY, (2, 2, 16))
    found = []
    for each in (None, every):
        torch.manual_seed(0)
        decoder = Decoder(replace(LLAMA, layers=3, dropout=dropout, checkpoint_every=each))
        calls: list[nn.Module] = []
        for block in decoder.blocks:
            block.norm1.register_forward_hook(lambda norm, *_, calls=calls: calls.append(norm))  # type: ignore[misc]
        loss = decoder(tokens, targets)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in decoder.parameters()], len(calls)))
    (loss, wanted, once), (ours, gradients, twice) = found
    assert torch.equal(ours, loss)
    assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))  # type: ignore[arg-type]
    assert (once, twice) == (3, 3 + len(range(0, 3, every)))
    decoder.eval()
    calls.clear()
    decoder(tokens, targets).backward()
    assert len(calls) == 3
