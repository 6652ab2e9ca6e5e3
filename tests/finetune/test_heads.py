"""Heads: packed equals padded, losses and measures are those of torch, transformers and seqeval."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from encoders import config, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.settings import load_settings, store_settings
from hotloop.finetune import labels as one_label
from hotloop.finetune.classifier import Classifier, why_not_packed
from hotloop.finetune.entities import Entities, Labelled, entities_of
from hotloop.finetune.heads import head_of
from hotloop.finetune.job import settings_of
from hotloop.finetune.joint import Joint
from hotloop.finetune.labels import OneLabel, head
from hotloop.finetune.multilabel import MultiLabel
from hotloop.finetune.regression import Number
from hotloop.finetune.tagged import iob2
from hotloop.finetune.two_heads import TwoHeads
from hotloop.finetune.words import encode_words

SEQEVAL = Path(__file__).parents[1] / "golden/seqeval.json"
ENTITIES = Entities(("LOC", "PER"))


def tokens() -> list[np.ndarray]:
    draw = np.random.default_rng(2)
    return [draw.integers(5, 128, length).astype(np.int32) for length in (17, 3, 100, 40, 3, 9)]


def tags_for(ids: list[np.ndarray]) -> list[Labelled]:
    """A tag for every second token."""
    draw, names, found = random.Random(0), ENTITIES.outputs, []
    for own in ids:
        words = np.repeat(np.arange(len(own)), 2)[: len(own)]
        found.append(ENTITIES.label([draw.choice(names) for _ in own], words))
    return found


def model_of(kind: str, task: str, outputs: int) -> Any:
    torch.manual_seed(1)
    settings = config(kind)
    settings.num_labels = outputs
    return getattr(transformers, f"AutoModelFor{task}").from_config(settings).eval()


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "gpt2"])
def test_tags_and_their_gradients_are_those_of_the_padded_batch(kind: str) -> None:
    model, ids = model_of(kind, "TokenClassification", 5), tokens()
    labels = tags_for(ids)
    rows, mask, wanted_tags = (torch.full((len(ids), 100), fill) for fill in (0, 0, -100))
    for row, own in enumerate(ids):
        rows[row, : len(own)] = torch.from_numpy(own.astype(np.int64))
        mask[row, : len(own)] = 1
        wanted_tags[row, : len(own)] = torch.from_numpy(labels[row].of_tokens)
    model(input_ids=rows, attention_mask=mask, labels=wanted_tags).loss.backward()
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    packed = why_not_packed(model, ids[:4], ENTITIES) is None
    assert packed == (kind != "gpt2")  # which reads what comes before alone
    own_model = Classifier(model, packed=packed, pad_id=0, head=ENTITIES)
    order, inputs = own_model.arranged(ids)
    ordered = [labels[index] for index in order]
    loss = own_model(*ENTITIES.targets(ordered), *inputs) / ENTITIES.weight(labels)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2"])
def test_two_heads_give_what_each_gives_by_itself(kind: str) -> None:
    first, each = (
        model_of(kind, "SequenceClassification", 3),
        model_of(kind, "TokenClassification", 5),
    )
    getattr(each, each.base_model_prefix).load_state_dict(
        first.base_model.state_dict(), strict=False
    )
    both_heads, ids = Joint(OneLabel(("a", "b", "c")), ENTITIES), tokens()
    with torch.no_grad():
        rows = [torch.from_numpy(own.astype(np.int64))[None] for own in ids]
        of_texts = torch.cat([first(input_ids=row).logits for row in rows])
        of_tokens = [each(input_ids=row).logits[0] for row in rows]
        model = TwoHeads(first, each).eval()
        packed = why_not_packed(model, ids[:4], both_heads) is None
        assert packed == (kind != "gpt2")
        own = Classifier(model, packed=packed, pad_id=0, head=both_heads)
        order, inputs = own.arranged(ids)
        found = own.logits(*inputs)
    torch.testing.assert_close(found[0], of_texts[order], atol=1e-5, rtol=0)
    torch.testing.assert_close(
        found[1], torch.cat([of_tokens[i] for i in order]), atol=1e-5, rtol=0
    )
    with model.whole_token_model() as whole:
        torch.testing.assert_close(whole(input_ids=rows[0]).logits[0], of_tokens[0])
    assert sum("word_embeddings" in name or "wte" in name for name, _ in model.named_parameters()) == 1  # fmt: skip


def test_a_step_in_microbatches_has_the_loss_of_the_whole_step() -> None:
    both, draw = Joint(OneLabel(("a", "b")), ENTITIES), torch.Generator().manual_seed(0)
    ids = tokens()
    labels = list(zip([0, 1, 1, 0, 1, 0], tags_for(ids), strict=True))
    logits = torch.randn(6, 2, generator=draw), torch.randn(sum(map(len, ids)), 5, generator=draw)
    balance = both.balance(labels)
    whole = both.loss(logits, *both.targets(labels, balance))
    words = torch.cat([torch.from_numpy(tags.of_tokens) for _, tags in labels])
    mean = F.cross_entropy(logits[0], torch.tensor([0, 1, 1, 0, 1, 0])) + F.cross_entropy(logits[1], words)  # fmt: skip
    torch.testing.assert_close(whole / 6, mean)
    at = sum(map(len, ids[:2]))
    parts = [
        both.loss((logits[0][:2], logits[1][:at]), *both.targets(labels[:2], balance)),
        both.loss((logits[0][2:], logits[1][at:]), *both.targets(labels[2:], balance)),
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    found = head(["a", "b"], ["a"] * 9 + ["b"] * 3, "balanced")
    assert found.weights is not None
    assert found.weights.tolist() == pytest.approx([12 / (2 * 9), 12 / (2 * 3)])
    logits, classes = torch.tensor([[1.0, -1.0], [0.5, 0.0]]), torch.tensor([0, 1])
    wanted = F.cross_entropy(logits, classes, weight=found.weights, reduction="sum")
    torch.testing.assert_close(found.loss(logits, classes), wanted)
    given_by_name = head(["a", "b"], ["a", "b"], {"b": 3.0}).weights
    assert given_by_name is not None
    assert given_by_name.tolist() == [1.0, 3.0]
    with pytest.raises(UsageError, match=r"`train.class_weights` has the label `x`"):
        head(["a", "b"], ["a", "b"], {"x": 3.0})


@pytest.mark.parametrize("task", ["classification", "classification+tokens"])
def test_class_weights_of_a_config_are_those_of_the_loss(task: str) -> None:
    both = task != "classification"
    chosen = FinetuneConfig.model_validate(
        {"task": task, "data": {"file": "x"}, "model": {"path": "y"}, "train": {"class_weights": {"b": 3.0}}}
    )  # fmt: skip
    labels: list[Any] = [("a", ("B-X",)), ("b", ("O",))] if both else ["a", "b"]
    found = head_of(chosen, ["a", "b"], ["X"], labels)
    first = found.first if isinstance(found, Joint) else found
    assert isinstance(first, OneLabel)
    assert first.weights is not None
    assert first.weights.tolist() == [1.0, 3.0]


def test_weights_are_of_labels_as_they_are_written(tmp_path: Path) -> None:
    """Whole numbers, words that YAML takes for something else, and dots."""
    path = tmp_path / "a.yaml"
    path.write_text("task: classification\ndata: {file: x}\nmodel: {path: y}\ntrain:\n  class_weights: {0: 1.0, no: 2, 1.5: 3, null: 4}\n")  # fmt: skip
    wanted = {"0": 1.0, "no": 2.0, "1.5": 3.0, "null": 4.0}
    settings = settings_of("classification", path, [])
    assert settings.config.train.class_weights == wanted
    words = ["task=classification", "data.file=x", "model.path=y"]
    flag = "train.class_weights={0: 1.0, no: 2, 1.5: 3, null: 4}"
    assert settings_of("classification", None, [*words, flag]).config.train.class_weights == wanted
    store_settings(settings, tmp_path / "config.yaml")
    again = load_settings(tmp_path / "config.yaml", kind=FinetuneConfig)
    assert again.config == settings.config
    labels = ["0", "no", "1.5", "null"]
    assert head(labels, labels, wanted).weights.tolist() == [1, 2, 3, 4]  # type: ignore[union-attr]
    path.write_text("task: classification\ndata: {file: x}\nmodel: {path: y}\ntrain: {1: 2}\n")
    with pytest.raises(UsageError, match=r"unknown key `train.1`\n.*:4"):
        settings_of("classification", path, [])


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2"])
def test_a_number_is_not_rounded_to_the_eight_bits_of_bf16(kind: str) -> None:
    model, ids, number = model_of(kind, "SequenceClassification", 1), tokens(), Number(("year",))
    last = [each for each in model.modules() if isinstance(each, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.weight.mul_(50)
        offset = torch.tensor([1987.0])
        last.bias = torch.nn.Parameter(offset)
        packed = why_not_packed(model, ids[:4], number) is None
        own = Classifier(model, packed=packed, pad_id=0, head=number)
        _, inputs = own.arranged(ids)
        wanted = own.logits(*inputs)
        with torch.autocast("cpu", torch.bfloat16):
            found = own.logits(*inputs)
    assert found.dtype == torch.float32
    assert len({round(float(each), 2) for each in found}) > 3  # of bf16 all are 1984 or 1992
    assert float((found - wanted).abs().max()) < 1


def test_of_very_many_labels_the_measures_are_those_of_every_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand labels have a hundred million pairs, which are counted for no one."""
    draw = torch.Generator().manual_seed(0)
    names = tuple("abcdefg")
    logits, targets = torch.randn(40, 7, generator=draw), torch.randint(0, 6, (40,), generator=draw)
    found = []
    for most in (7, 6):
        monkeypatch.setattr(one_label, "MOST_PAIRED", most)
        tally = OneLabel(names).tally()
        for begin in (0, 25):
            tally.add(logits[begin : begin + 25], (targets[begin : begin + 25],), [])
        found.append(OneLabel(names).scores(tally.metrics()))
    every, few = found
    assert every.confusion is not None
    assert few == replace(every, confusion=None)
    assert few.accuracy == pytest.approx(float((logits.argmax(1) == targets).float().mean()))
    tally = OneLabel(tuple(map(str, range(200_000)))).tally()  # 320 GB of pairs
    tally.add(torch.eye(3, 200_000), (torch.arange(3),), [])
    assert tally.metrics()["accuracy"] == 1


def test_losses_are_those_of_transformers() -> None:
    """Of the class itself, which takes labels."""
    ids = torch.randint(5, 128, (4, 12), generator=torch.Generator().manual_seed(0))
    several, number = MultiLabel(("a", "b", "c")), Number(("x",))
    labels = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]
    model = model_of("bert", "SequenceClassification", 3)
    model.config.problem_type = several.problem
    out = model(input_ids=ids, labels=torch.tensor(labels))
    torch.testing.assert_close(several.loss(out.logits, *several.targets(labels)) / 4, out.loss)
    model = model_of("bert", "SequenceClassification", 1)
    out = model(input_ids=ids, labels=torch.tensor([1.0, 2.0, -1.0, 0.5]))
    found = number.loss(out.logits, *number.targets([1.0, 2.0, -1.0, 0.5])) / 4
    torch.testing.assert_close(found, out.loss)


def test_entities_are_counted_as_seqeval_counts_them() -> None:
    """Recorded: `python tests/finetune/record_seqeval.py` makes the file, with seqeval installed."""
    cases = json.loads(SEQEVAL.read_text())
    assert len(cases) >= 40
    for case in cases:
        assert [list(each) for each in entities_of(case["predicted"][0])] == case["entities"]
        tally = ENTITIES.tally()
        for predicted, true in zip(case["predicted"], case["true"], strict=True):
            tally.count(predicted, true)
        found = tally.metrics()
        for name in ("precision", "recall", "f1", "accuracy"):
            assert found[name] == pytest.approx(case[name], abs=1e-12), (name, case)
        by_kind = {each.label: each.f1 or 0.0 for each in ENTITIES.scores(found).by_class}
        assert all(by_kind[kind] == pytest.approx(f1) for kind, f1 in case["by_kind"].items())


@given(st.lists(st.sampled_from(["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]), max_size=12))
def test_tags_of_a_file_come_out_as_iob2_with_the_same_entities(tags: list[str]) -> None:
    found = iob2(tags, "a:1")
    assert entities_of(found) == entities_of(tags)
    before = ""
    for tag in found:
        assert not tag.startswith("I-") or before[2:] == tag[2:]
        before = tag


def test_other_schemes_are_read_as_iob2() -> None:
    bilou = ["U-LOC", "B-PER", "I-PER", "L-PER", "U-PER", "O"]
    assert iob2(bilou, "a:1") == ("B-LOC", "B-PER", "I-PER", "I-PER", "B-PER", "O")
    assert iob2(["U-PER", "I-PER", "L-PER", "I-PER"], "a:1") == ("B-PER", "B-PER", "I-PER", "B-PER")
    assert iob2([t.replace("U-", "S-").replace("L-", "E-") for t in bilou], "a:1") == iob2(
        bilou, "a:1"
    )


def test_the_first_token_of_a_word_has_its_tag_and_a_cut_word_has_none() -> None:
    words = ["the", "anna", "oslo", "film"]
    ids, of_words = (each[0] for each in encode_words(tokenizer(), [words], 7))
    found = ENTITIES.label(["O", "B-PER", "B-LOC", "O"], of_words)
    assert len(ids) == 7
    labelled = found.of_tokens != -100
    assert not labelled[0]
    assert not labelled[-1]  # special tokens
    assert [ENTITIES.outputs[n] for n in found.of_tokens[labelled]] == ["O", "B-PER", "B-LOC"][: found.num_labelled]  # fmt: skip
    assert found.num_labelled < 4
    first = [of_words.tolist().index(word) for word in found.word_of]
    assert np.flatnonzero(labelled).tolist() == first
    tally = ENTITIES.tally()
    logits = F.one_hot(torch.from_numpy(np.where(labelled, found.of_tokens, 0)), 5).float()
    tally.add(torch.cat([logits, logits]), ENTITIES.targets([found, found]), [found, found])
    cut = tally.metrics()
    assert cut["precision"] == 1
    assert cut["recall"] == (1 if found.num_labelled == 3 else 0.5)  # what was cut off is missed


def test_measures_of_numbers() -> None:
    assert Number(("x",)).label(3.0, None) == 3.0
    tally = Number(("x",)).tally()
    tally.add(torch.tensor([[1.0], [2.0]]), (torch.tensor([0.0, 2.0]),), [])
    tally.add(torch.tensor([[5.0]]), (torch.tensor([4.0]),), [])
    found = tally.metrics()
    assert found["mae"] == pytest.approx(2 / 3)
    assert found["rmse"] == pytest.approx((2 / 3) ** 0.5)
    assert found["r2"] == pytest.approx(1 - 2 / 8)


def test_measures_of_several_labels() -> None:
    assert MultiLabel(("a", "b")).label(["a"], None) == [1.0, 0.0]
    tally = MultiLabel(("a", "b")).tally()
    tally.add(torch.tensor([[0.1, -0.1], [0.1, 0.1]]), (torch.tensor([[1.0, 0.0], [0.0, 1.0]]),), [])  # fmt: skip
    found = tally.metrics()
    assert found["accuracy"] == 0.5
    assert found["counts"] == [[1, 2, 1], [1, 1, 1]]
    assert found["micro_f1"] == pytest.approx(4 / 5)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    tally = MultiLabel(("a", "b", "c")).tally()  # of c scikit-learn counts 0
    tally.add(torch.tensor([[0.1, -0.1, -0.1], [0.1, 0.1, -0.1]]), (torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),), [])  # fmt: skip
    assert tally.metrics()["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"task": "tokens", "eval": {"metric": "macro_f1"}}, "`eval.metric` macro_f1 is none of"),
        ({"task": "tokens", "train": {"class_weights": "balanced"}}, "has no effect with"),
        ({"task": "sentiment", "data": {"file": "x", "label": ["a", "b"]}}, "is one column with"),
        ({"data": {"file": "x", "held_out": 0}, "eval": {"patience": 2}}, "`data.held_out` 0"),
        ({"eval": {"export": "best", "every_steps": 0}}, "`eval.every_steps` 0"),
    ],
)
def test_settings_of_another_task_are_refused(settings: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        FinetuneConfig.model_validate({"task": "classification", "data": {"file": "x"}, "model": {"path": "y"}} | settings)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "task"),
    [("sentiment", "classification"), ("entities", "tokens"), (["ner", "sentiment"], "classification+tokens")],
)  # fmt: skip
def test_other_names_of_a_task(names: Any, task: str) -> None:
    found = FinetuneConfig.model_validate(
        {"task": names, "data": {"file": "x"}, "model": {"path": "y"}}
    )
    assert found.task == task
    labels: list[Any] = [("a", ("B-X",)), ("b", ("O",))] if "+" in task else ["a", "b"]
    outputs = head_of(found, ["a", "b"], ["X"], labels).outputs
    assert outputs == (("O", "B-X", "I-X") if task == "tokens" else ("a", "b"))
