"""Examples of a decoder without padding: the same logits and gradients as with it."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from decoders import model_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.finetune.causal import CausalLearner, why_not_packed
from hotloop.finetune.sequences import Example

LLAMA = model_of("llama")
LENGTHS = [17, 3, 120, 40, 2, 9, 64, 25]


def examples() -> list[Example]:
    """Of which a part is learned: answers behind prompts, and several turns."""
    draw = np.random.default_rng(2)
    found = []
    for length in LENGTHS:
        learned = np.arange(length) >= length // 2
        learned[length // 3 : length // 3 + 2] = True
        learned[0], learned[-1] = False, True
        found.append(Example(draw.integers(0, 328, length).astype(np.int32), learned))
    return found


def padded_loss(model: Any, batch: list[Example]) -> torch.Tensor:
    """The mean loss as everybody computes it: padded at the right to the longest, labels -100 where nothing is learned."""
    width = max(len(each.ids) for each in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, each in enumerate(batch):
        own = torch.from_numpy(each.ids.astype(np.int64))
        ids[row, : len(own)], mask[row, : len(own)] = own, 1
        labels[row, : len(own)] = own.where(torch.from_numpy(each.learned), torch.tensor(-100))
    logits = model(input_ids=ids, attention_mask=mask).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "pythia", "mistral"])
def test_loss_and_gradients_are_those_of_the_padded_batch(kind: str, layout: str) -> None:
    model, batch = model_of(kind).eval(), examples()
    wanted_loss = padded_loss(model, batch)
    wanted_loss.backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()

    learner = CausalLearner(model, packed=layout == "packed", longest=160)
    targets, *inputs = learner.arranged(batch)
    if layout == "packed":
        assert inputs[0].shape == (1, sum(LENGTHS) - len(LENGTHS))
    assert len(targets) == sum(each.num_targets for each in batch)
    loss = learner(targets, *inputs) / len(targets)
    torch.testing.assert_close(loss, wanted_loss, atol=1e-6, rtol=0)
    loss.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "pythia", "mistral"])
def test_decoders_are_packed(kind: str) -> None:
    model = model_of(kind)
    assert why_not_packed(model, examples()[:4], 160) is None
    assert model.training
    assert model.config._attn_implementation == "sdpa"


@given(lengths=st.lists(st.integers(2, 60), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_no_example_sees_another(lengths: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    batch = [
        Example(draw.integers(0, 328, each).astype(np.int32), np.arange(each) > 0)
        for each in lengths
    ]
    assert why_not_packed(LLAMA, batch, 160) is None


def test_decoders_that_cannot_be_packed_are_found_out() -> None:
    batch = examples()[:4]
    assert why_not_packed(model_of("bloom"), batch, 160) == "it takes no position ids"
    reason = why_not_packed(model_of("gemma2"), batch, 160)
    assert reason == "it does not take them: its attention has `softcap`"


def test_packing_that_lets_examples_see_each_other_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hotloop.finetune import packed_attention

    monkeypatch.setattr(packed_attention.Row, "each", property(lambda row: [int(row.lengths.sum())]))  # fmt: skip
    reason = why_not_packed(model_of("llama"), examples()[:4], 160)
    assert reason is not None
    assert "logits would differ by" in reason
