from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from hotloop.models.decoder import Decoder
from hotloop.models.shape import DecoderShape, flops_per_token, num_weights

SHAPE = DecoderShape(vocabulary=50, context=16, layers=2, width=32, heads=4)
REPOSITORY = Path(__file__).parents[2]


def model(shape: DecoderShape = SHAPE, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(shape)


def plain_script(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    return importlib.import_module(name)


def test_loss_is_the_sum_over_targets_that_count() -> None:
    decoder = model()
    tokens, targets = torch.randint(0, 50, (2, 2, 16))
    targets[0, :5] = -100
    logits = decoder(tokens)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert torch.allclose(decoder(tokens, targets), expected)


LLAMA = replace(
    SHAPE, norm="rmsnorm", positions="rotary", mlp="swiglu", hidden=48, kv_heads=2, bias=False, tied=False
)  # fmt: skip


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_same_seed_gives_the_weights_and_the_logits_of_the_plain_script(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    if family == "gpt":
        theirs = plain_script(monkeypatch, "plain_gpt").GPT(50, 16, 2, 32, 4)
        ours = model(seed=3)
    else:
        theirs = plain_script(monkeypatch, "plain_llama").Llama(50, 16, 2, 32, 4, 2, 48)
        ours = model(LLAMA, seed=3)
    tokens = torch.randint(0, 50, (2, 16))
    torch.testing.assert_close(theirs(tokens), ours(tokens), rtol=1e-5, atol=1e-6)
    names = [name for name, _ in theirs.named_parameters()]
    assert names == [name for name, _ in ours.named_parameters()]
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


def test_flops_agree_with_the_palm_convention_for_gpt2() -> None:
    gpt2 = DecoderShape(vocabulary=50304, context=1024, layers=12, width=768, heads=12)
    assert flops_per_token(gpt2) == pytest.approx(854.7e6, rel=1e-3)


def test_untrained_loss_is_that_of_guessing() -> None:
    tokens, targets = torch.randint(0, 50, (2, 8, 16))
    loss = model()(tokens, targets).item() / targets.numel()
    assert loss == pytest.approx(math.log(50), rel=0.05)


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_document_is_the_same_packed_and_alone(attention: str, positions: str) -> None:
    decoder = model(replace(SHAPE, attention=attention, positions=positions))  # type: ignore[arg-type]
    lengths = (5, 1, 7, 3)
    tokens = torch.randint(0, 50, (2, 16))
    places = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    packed = decoder(tokens, None, places)
    at = 0
    for length in lengths:
        alone = decoder(tokens[:, at : at + length])
        assert torch.allclose(packed[:, at : at + length], alone, atol=1e-5)
        at += length
    changed = tokens.clone()
    changed[:, 6:13] = (changed[:, 6:13] + 1) % 50
    after = decoder(changed, None, places)
    for kept in (slice(0, 6), slice(13, 16)):
        assert torch.equal(packed[:, kept], after[:, kept])  # not a bit of the third one leaks
    assert not torch.allclose(packed[:, 6:13], after[:, 6:13])


def test_ignored_targets_are_those_of_the_data() -> None:
    from hotloop.data import loader
    from hotloop.models import decoder

    assert loader.IGNORED_TARGET == decoder.IGNORED_TARGET


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("shape", [SHAPE, LLAMA], ids=["tied", "untied"])
def test_padding_of_the_vocabulary_takes_no_part(shape: DecoderShape, chunk: int | None) -> None:
    tokens, targets = torch.randint(0, 50, (2, 2, 16))
    targets[0, :5] = -100
    found = []
    for to in (1, 64):
        decoder = model(
            replace(shape, pad_vocabulary_to=to, loss_chunk=chunk if to > 1 else None)
        ).double()
        assert sum(p.numel() for p in decoder.parameters()) == num_weights(decoder.shape)
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            loss = decoder(tokens, targets) / 27
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append((losses, decoder))
    (plain, unpadded), (padded, decoder) = found
    assert decoder.head_weight.shape == (64, 32)
    assert not decoder.head_weight[50:].any()
    assert padded == pytest.approx(plain, rel=1e-5)
    logits = decoder(tokens)
    assert logits.shape == (2, 16, 50)
    torch.testing.assert_close(logits, unpadded(tokens), rtol=5e-4, atol=5e-4)
    assert decoder(tokens, last=True).shape == (2, 1, 50)
