"""Examples without padding: the same logits and gradients as with it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from encoders import config, save_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.modernbert import modeling_modernbert

from hotloop.core.finetune_config import FinetuneConfig
from hotloop.finetune.classifier import Classifier, why_not_packed
from hotloop.finetune.encoder import load_encoder
from hotloop.finetune.examples import Dataset, Examples
from hotloop.finetune.labels import OneLabel
from hotloop.finetune.packing import filled
from hotloop.finetune.start import arithmetic, build_work


def model_of(kind: str) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    settings = config(kind)
    settings.num_labels = 3
    return transformers.AutoModelForSequenceClassification.from_config(settings).eval()


def examples() -> tuple[list[np.ndarray], torch.Tensor]:
    draw = np.random.default_rng(2)
    lengths = [17, 3, 128, 40, 3, 9, 64, 25]
    tokens = [draw.integers(5, 128, length).astype(np.int32) for length in lengths]
    return tokens, torch.tensor([0, 1, 2, 2, 1, 0, 0, 1])


def padded_loss(
    model: torch.nn.Module, tokens: list[np.ndarray], labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and mean loss of the batch as everybody pads it."""
    ids = torch.zeros(len(tokens), 128, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(tokens):
        ids[row, : len(own)] = torch.from_numpy(own.astype(np.int64))
        mask[row, : len(own)] = 1
    found = model(input_ids=ids, attention_mask=mask, labels=labels)
    return found.logits, found.loss


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "gpt2"])
def test_logits_and_gradients_are_those_of_the_padded_batch(kind: str) -> None:
    model, (tokens, labels) = model_of(kind), examples()
    logits, loss = padded_loss(model, tokens, labels)
    loss.backward()
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    classifier = Classifier(model, packed=kind != "gpt2", pad_id=0)
    order, inputs = classifier.arranged(tokens)
    assert inputs[0].shape[1] == filled(sum(map(len, tokens))) or kind == "gpt2"
    torch.testing.assert_close(classifier.logits(*inputs), logits[order], atol=1e-5, rtol=0)
    (classifier(labels[order], *inputs) / len(tokens)).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=0, msg=name)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["bert", "roberta", "distilbert", "electra"]),
    lengths=st.lists(st.integers(1, 128), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
)
def test_whatever_the_lengths_no_example_reads_another(
    kind: str, lengths: list[int], seed: int
) -> None:
    """Each example packed with others has the logits that it has alone, and so has every gradient."""
    model, draw = model_of(kind), np.random.default_rng(seed)
    tokens = [draw.integers(5, 128, length) for length in lengths]
    classifier = Classifier(model, packed=True, pad_id=0)
    order, inputs = classifier.arranged(tokens)
    weights = torch.from_numpy(draw.normal(size=(len(tokens), 3))).float()
    found = classifier.logits(*inputs)
    (found * weights).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row, index in enumerate(order):
        alone = model(input_ids=torch.from_numpy(tokens[index])[None]).logits[0]
        torch.testing.assert_close(found[row], alone, atol=1e-5, rtol=0)
        (alone * weights[row]).sum().backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(gradients[name], p.grad, atol=1e-5, rtol=1e-5, msg=name)


def test_one_text_as_long_as_the_model_is_filled_up_within_its_positions() -> None:
    settings = config("bert")
    settings.max_position_embeddings = 27
    model = transformers.AutoModelForSequenceClassification.from_config(settings).eval()
    ids = np.arange(5, 32)
    classifier = Classifier(model, packed=True, pad_id=0)
    found = classifier.logits(*classifier.arranged([ids])[1])
    alone = model(input_ids=torch.from_numpy(ids)[None]).logits
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_encoders_whose_head_reads_the_first_token_are_packed(kind: str) -> None:
    assert why_not_packed(model_of(kind), examples()[0][:4]) is None


def test_classes_that_cannot_be_packed_are_found_out_and_left_as_they_were() -> None:
    tokens = examples()[0][:4]
    assert why_not_packed(model_of("xlnet"), tokens) == "it takes no position ids"
    last_token = model_of("gpt2")
    assert "other tokens of a text than the first" in (why_not_packed(last_token, tokens) or "")
    assert not any(each._forward_hooks for each in last_token.modules())


def test_packing_that_changes_logits_is_refused() -> None:
    """An encoder that adds positions of its own, as if all were one text."""
    model = model_of("bert")

    def from_zero(
        module: object, arguments: object, named: dict[str, torch.Tensor]
    ) -> tuple[tuple[()], dict[str, torch.Tensor]]:
        ids = named["input_ids"]
        return (), {**named, "position_ids": torch.arange(ids.shape[1])[None] % 140}

    model.bert.embeddings.register_forward_pre_hook(from_zero, with_kwargs=True)
    reason = why_not_packed(model, examples()[0][:4])
    assert reason is not None
    assert "logits would differ by" in reason
    model = model_of("bert")
    model.classifier.weight.data[:] = torch.nan
    assert why_not_packed(model, examples()[0][:4]) == "logits would differ by nan"


class Rounded(torch.nn.Linear):
    """As a layer with quantized weights: products of many tokens are rounded in another way than those of few."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        kind = torch.bfloat16 if input.shape[1] > 128 else torch.float32
        weight, bias = self.weight.to(kind), self.bias.to(kind)
        return F.linear(input.to(kind), weight, bias).to(input.dtype)


def test_quantized_weights_may_differ_by_their_rounding_when_packed() -> None:
    tokens, model = examples()[0][:4], model_of("bert")
    for layer in model.bert.encoder.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data *= 10
            layer.bfloat16().__class__ = Rounded
    assert why_not_packed(model, tokens) is None
    assert "logits would differ by" in (why_not_packed(model.float(), tokens) or "")


def test_a_text_longer_than_the_window_of_attention_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands: the first ones may all be short."""
    if hasattr(modeling_modernbert, "MODERNBERT_ATTENTION_FUNCTION"):
        pytest.skip("ModernBERT takes no other attention here, and is never packed")
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    short, long, told = ["the film"] * 6, ["the film " * 30], list[str]()
    head, place = OneLabel(("a", "b")), str(save_encoder("modernbert", tmp_path / "model"))
    values = {"task": "classification", "data": {"file": "x"}, "model": {"path": place}}
    config = FinetuneConfig.model_validate(values)
    for train, held_out, is_packed in ((short, short, True), (short, long, False), (short + long, short, False)):  # fmt: skip
        parts = [Examples(tuple(texts), ("a",) * len(texts)) for texts in (train, held_out)]
        dataset = Dataset(parts[0], parts[1], ("a", "b"), "")
        encoder = load_encoder(config.model, head, told.append)
        work = build_work(config, dataset, encoder, head, told.append)
        assert work.model.packed == is_packed
        in_both = [line for line in arithmetic(config, dataset, work) if "trained on, too" in line]
        assert [line.rpartition(": ")[2] for line in in_both] == ["6 examples"] * (held_out == short)  # fmt: skip
    assert "its attention has a window of 9 tokens" in told[-1]


def test_plain_padding_is_to_the_longest_of_all() -> None:
    tokens, labels = examples()
    model = model_of("bert")
    with torch.no_grad():
        wanted, _ = padded_loss(model, tokens, labels)
        classifier = Classifier(model, packed=False, pad_id=0, buckets=1)
        order, inputs = classifier.arranged(tokens)
        torch.testing.assert_close(classifier.logits(*inputs), wanted[order], atol=1e-5, rtol=0)
    assert [tuple(each.shape) for each in inputs[:2]] == [(8, 128)] * 2
    assert len(inputs) == 3
