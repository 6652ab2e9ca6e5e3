"""What a step of fine-tuning leaves out does not change what is learned."""

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from encoders import config, save_encoder, write_csv
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.finetune import encoder_layer
from hotloop.finetune.classifier import ONE_LABEL, Classifier, why_not_packed
from hotloop.finetune.dropout import Dropout, drawn, dropout, kept_units, replace_dropout
from hotloop.finetune.encoder_layer import as_written, narrow_gradients
from hotloop.finetune.entities import Entities
from hotloop.finetune.packing import filled
from hotloop.finetune.vocabulary import keep_used_rows
from hotloop.optimizations.precision.autocast import autocast
from hotloop.train import loop
from hotloop.train.optimizer import AdamW, decayed_apart


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_keeps_as_many_as_asked_for_and_the_mean(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 999, requires_grad=True)
    y = dropout(x, p)
    assert float((y == 0).float().mean()) == pytest.approx(p, abs=0.002)
    assert float(y.detach().mean()) == pytest.approx(1, abs=0.003)
    for offset in range(4):  # of each number drawn, every part
        assert float((y.flatten()[offset::4] == 0).float().mean()) == pytest.approx(p, abs=0.004)
    y.sum().backward()
    assert torch.equal(x.grad, y)


def test_dropout_draws_again_after_the_same_seed_and_leaves_extremes_to_their_meaning() -> None:
    x = torch.randn(7, 5)
    torch.manual_seed(3)
    first = dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.3))
    assert not dropout(x, 1.0).any()
    assert torch.equal(dropout(x, 1e-9), x)


def test_one_draw_gives_what_a_draw_for_each_gives() -> None:
    shapes = [(3, 5, 7), (4, 4), (1,), (6, 11)]
    for rates in ([0.3] * 4, [0.3, 0.0, 0.5, 0.3], [0.0] * 4):
        torch.manual_seed(5)
        wanted = [
            kept_units(torch.Size(s), p) if p else None for s, p in zip(shapes, rates, strict=True)
        ]
        torch.manual_seed(5)
        for units, one in zip(drawn(shapes, rates), wanted, strict=True):
            assert (units is None) == (one is None)
            assert units is None or torch.equal(units, one)


def test_every_dropout_of_a_model_is_replaced_and_its_weights_keep_their_names() -> None:
    model = transformers.AutoModelForSequenceClassification.from_config(config("bert"))
    names = list(model.state_dict())
    replace_dropout(model.eval())
    kinds = {type(each) for each in model.modules() if isinstance(each, nn.Dropout)}
    assert kinds == {Dropout}
    assert not any(each.training for each in model.modules())
    assert list(model.state_dict()) == names


@pytest.mark.parametrize(("optimizer", "lowest"), [(torch.optim.AdamW, 2), (torch.optim.SGD, 0)])
def test_training_the_used_rows_alone_gives_the_weights_of_training_all(
    optimizer: type, lowest: int
) -> None:
    """lowest: the first row that is kept; 0 is that of padding, which has no gradient."""
    torch.manual_seed(0)
    whole = transformers.AutoModelForSequenceClassification.from_config(config("bert")).eval()
    draw = np.random.default_rng(0)
    tokens = [draw.choice([lowest, 3, 7, 50, 51, 127], n).astype(np.int32) for n in (4, 30, 9)]
    trimmed = copy.deepcopy(whole)
    used = keep_used_rows(trimmed.get_input_embeddings(), tokens)
    assert trimmed.get_input_embeddings().weight.shape == (6, 32)
    for model, own in ((whole, tokens), (trimmed, used.renumbered(tokens))):
        classifier = Classifier(model, packed=True, pad_id=0)
        step = optimizer(model.parameters(), lr=1e-3, weight_decay=0.0)
        for chosen in ([0, 1], [2], [1]):
            step.zero_grad()
            _, inputs = classifier.arranged([own[index] for index in chosen])
            classifier(torch.zeros(len(chosen), dtype=torch.int64), *inputs).backward()
            step.step()
    with used.whole():
        found, wanted = trimmed.state_dict(), whole.state_dict()
        for name, weight in wanted.items():
            assert torch.equal(found[name], weight), name
    assert trimmed.get_input_embeddings().weight.shape == (6, 32)
    again = used.token_ids(used.renumbered(tokens))
    assert all(np.array_equal(a, b) for a, b in zip(again, tokens, strict=True))


class Rows(TorchDispatchMode):
    """Rows of the products that widen to the inner width."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "addmm" and result.shape[-1] == 48:
            self.seen.append(len(result))
        return result


def test_last_layer_computes_first_tokens_alone() -> None:
    """The feed-forward of all but the last layer sees every token; that of the last one row per example."""
    model = transformers.AutoModelForSequenceClassification.from_config(config("bert")).eval()
    classifier = Classifier(model, packed=True, pad_id=0)
    _, inputs = classifier.arranged([np.full(n, 9, dtype=np.int32) for n in (20, 5, 33)])
    with torch.no_grad(), Rows() as rows:
        classifier.logits(*inputs)
    assert rows.seen == [60, 3]


def as_transformers_has_it(model: nn.Module) -> None:
    for each in model.modules():
        if hasattr(each, "fused_parts"):
            as_written(each)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "electra"])
@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fused_layer_learns_what_the_layer_of_transformers_learns(
    kind: str, task: str, precision: str
) -> None:
    """With the same seed the same units are dropped, where the last layer of both computes all tokens."""
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config(kind))
    model.train(task.startswith("T"))
    replace_dropout(model)
    head = Entities(("A",)) if task.startswith("T") else ONE_LABEL
    classifier = Classifier(model, packed=True, pad_id=0, head=head)
    assert any(hasattr(each, "fused_parts") for each in model.modules())
    draw = np.random.default_rng(0)
    tokens = [draw.integers(5, 128, n).astype(np.int32) for n in (17, 3, 90, 40, 3, 9)]
    _, inputs = classifier.arranged(tokens)
    found = []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(1)
        with autocast("cpu", precision):
            logits = classifier.logits(*inputs).float()
        logits.square().sum().backward()
        found.append([logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
        as_transformers_has_it(model)
    fused, plain = found
    assert len(fused) == len(plain) > 30
    for own, wanted in zip(fused, plain, strict=True):
        off = float((own - wanted).norm() / (wanted.norm() + 1e-3))
        assert off < (1e-5 if precision == "fp32" else 3e-2)


def test_copy_of_a_model_computes_with_its_own_weights() -> None:
    model = transformers.AutoModelForSequenceClassification.from_config(config("bert")).eval()
    unused = copy.deepcopy(model)
    classifier = Classifier(model, packed=True, pad_id=0)
    _, inputs = classifier.arranged([np.full(9, 7, dtype=np.int32)])
    before = classifier.logits(*inputs)
    copied = copy.deepcopy(classifier)
    for weight in model.bert.encoder.parameters():
        weight.data.zero_()
    assert torch.equal(copied.logits(*inputs), before)
    assert not torch.equal(classifier.logits(*inputs), before)
    for weight in copied.parameters():
        weight.data.normal_(0, 0.1)
    anew = Classifier(unused, packed=True, pad_id=0)
    anew.load_state_dict(copied.state_dict())
    assert torch.equal(copied.logits(*inputs), anew.logits(*inputs))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fused_layer_computes_with_the_weights_of_the_moment(precision: str) -> None:
    """Its copies of them stay in memory: from an evaluation on, through updates, and with two forwards before their backwards."""
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config("bert")).eval()
    classifier = Classifier(model, packed=True, pad_id=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    texts = [np.arange(5, n, dtype=np.int32) for n in (30, 31)]
    inputs = [classifier.arranged([text])[1] for text in texts]
    with torch.inference_mode(), autocast("cpu", precision):
        classifier.logits(*classifier.arranged(texts[:1])[1])

    def gradients(model: Classifier, *, at_once: bool) -> list[torch.Tensor]:
        model.zero_grad()
        with autocast("cpu", precision):
            losses = (model.logits(*each).float().square().sum() for each in inputs)
            for loss in [sum(losses)] if at_once else losses:
                loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for _ in range(2):
        anew = Classifier(copy.deepcopy(model), packed=True, pad_id=0)  # reads them into others
        wanted = gradients(anew, at_once=False)
        for at_once in (False, True):
            for own, other in zip(gradients(classifier, at_once=at_once), wanted, strict=True):
                off = float((own - other).norm() / other.norm())
                assert off < (1e-5 if precision == "fp32" else 1e-2)
        optimizer.step()


@pytest.mark.parametrize(("num", "wanted"), [(1, 4), (57, 60), (128, 128), (129, 144), (150, 160)])
def test_rows_are_filled_to_few_different_numbers(num: int, wanted: int) -> None:
    assert filled(num) == wanted


def bert_with(activation: str) -> Any:
    settings = config("bert")
    settings.hidden_act = activation
    return transformers.AutoModelForSequenceClassification.from_config(settings).eval()


def test_layer_with_another_activation_or_more_weights_is_left_as_it_is() -> None:
    model = bert_with("gelu_new")
    assert why_not_packed(model, [np.arange(5, n, dtype=np.int32) for n in (9, 30)]) is None
    assert not any(hasattr(each, "fused_parts") for each in model.modules())
    model = bert_with("gelu")
    for layer in model.bert.encoder.layer[1:]:
        layer.attention.self.distance_embedding = nn.Embedding(3, 16)
    Classifier(model, packed=True, pad_id=0)
    assert [hasattr(each, "fused_parts") for each in model.bert.encoder.layer] == [True, False]


def test_attention_that_takes_no_other_is_replaced_while_examples_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of transformers 4, which asks for no function of attention."""

    def not_asked_for(*given: object, **named: object) -> None:
        raise ValueError

    monkeypatch.setattr("hotloop.finetune.encoder_layer._is_open", lambda module: False)
    monkeypatch.setattr("hotloop.finetune.classifier.attention", not_asked_for)
    tokens = [np.arange(5, n, dtype=np.int32) for n in (9, 30)]
    model = bert_with("gelu_new")
    plain = copy.deepcopy(model)
    assert why_not_packed(model, tokens) is None
    monkeypatch.setattr("hotloop.finetune.encoder_layer.ATTENTIONS", ())
    assert why_not_packed(plain, tokens) is not None


def packed_bert() -> tuple[Any, Any]:
    """A classifier of fused layers in training, and what it reads of three texts."""
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config("bert"))
    replace_dropout(model)
    classifier = Classifier(model.train(), packed=True, pad_id=0)
    texts = [np.arange(5, n, dtype=np.int32) for n in (30, 12, 17)]
    return classifier, classifier.arranged(texts)[1]


def test_weights_are_the_same_whether_gradients_stay_narrow_or_not() -> None:
    """Those of products are bf16 then; with one part of the update for each weight, and with one for all."""
    found = []
    for narrow, part_bytes in ((False, 0), (True, 0), (True, 1 << 30)):
        classifier, inputs = packed_bert()
        if narrow:
            narrow_gradients(classifier)
        optimizer = AdamW(decayed_apart(classifier.parameters()), fused=True, weight_decay=0.1)  # fmt: skip
        optimizer.PART_BYTES = part_bytes
        for _ in range(3):
            optimizer.zero_grad()
            with autocast("cpu", "bf16"):
                classifier.logits(*inputs).float().square().sum().backward()
            optimizer.step()
        kinds = {p.grad.dtype for p in classifier.parameters() if p.grad is not None}
        assert (torch.bfloat16 in kinds) == narrow
        found.append(copy.deepcopy(classifier.state_dict()))
    for name, weight in found[0].items():
        assert all(torch.equal(weight, other[name]) for other in found[1:]), name


def test_hook_of_one_layer_sees_what_that_layer_gives() -> None:
    """Layers are computed together, and those apart that somebody looks at."""
    classifier, inputs = packed_bert()
    classifier.eval()
    seen, found = list[torch.Tensor](), list[torch.Tensor]()
    with torch.no_grad():
        wanted = classifier.logits(*inputs)
        hook = classifier.model.bert.encoder.layer[0].register_forward_hook(
            lambda layer, given, output: seen.append(output[0] if isinstance(output, tuple) else output)
        )  # fmt: skip
        found.append(classifier.logits(*inputs))
        as_transformers_has_it(classifier)
        found.append(classifier.logits(*inputs))
        hook.remove()
    assert torch.allclose(seen[0], seen[1], atol=1e-5)
    assert all(torch.allclose(each, wanted, atol=1e-5) for each in found)


def test_layers_below_the_first_that_is_trained_are_not_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = []
    real = encoder_layer._layer_backward
    monkeypatch.setattr(encoder_layer, "_layer_backward", lambda *given: gone.append(1) or real(*given))  # fmt: skip
    classifier, inputs = packed_bert()
    *below, last = classifier.model.bert.encoder.layer
    assert below
    for each in (classifier.model.bert.embeddings, *below):
        each.requires_grad_(False)
    torch.manual_seed(1)
    loss = classifier.logits(*inputs).square().sum()
    loss.backward(retain_graph=True)
    assert len(gone) == 1
    assert all(p.grad is None for each in below for p in each.parameters())
    own = [p.grad.clone() for p in last.parameters()]
    with pytest.raises(RuntimeError, match="second backward"):
        loss.backward()
    classifier.requires_grad_(True)
    torch.manual_seed(1)
    classifier.zero_grad()
    classifier.logits(*inputs).square().sum().backward()
    assert all(torch.allclose(p.grad, g) for p, g in zip(last.parameters(), own, strict=True))
    assert len(gone) == 2 + len(below)


@pytest.mark.parametrize("learns", [True, False, "the last layer"])
def test_what_no_backward_reads_is_not_kept(
    learns: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    real = encoder_layer._layer

    def layer(*given: Any) -> Any:
        assert [each() is not None for each in kept] == [learns is True] * len(kept)
        output, saved = real(*given)
        kept.append(weakref.ref(saved[6]))
        return output, saved

    monkeypatch.setattr(encoder_layer, "_layer", layer)
    classifier, inputs = packed_bert()
    layers = classifier.model.bert.encoder.layer
    classifier.requires_grad_(learns is True)
    layers[-1].requires_grad_(bool(learns))
    with torch.set_grad_enabled(bool(learns)):
        logits = classifier.logits(*inputs)
    assert len(kept) == len(layers) > 1
    assert (kept[-1]() is not None) == bool(learns)
    gc.disable()  # what it holds is free with it, without backward as well
    try:
        del logits
        assert all(each() is None for each in kept)
    finally:
        gc.enable()


def test_layers_of_many_weights_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients would all be in memory at once."""
    found = []
    for most in (encoder_layer.TOGETHER_BYTES, 1):
        monkeypatch.setattr(encoder_layer, "TOGETHER_BYTES", most)
        classifier, inputs = packed_bert()
        torch.manual_seed(1)
        loss = classifier.logits(*inputs).square().sum()
        layers = {len(each.fused_along) for each in classifier.model.bert.encoder.layer}
        assert layers == {len(classifier.model.bert.encoder.layer)} if not found else {1}
        loss.backward()
        found.append([loss, *(p.grad for p in classifier.parameters() if p.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_change_between_layers_that_nobody_announced_is_an_error() -> None:
    """As by a wrapper of the container that they are in."""
    classifier, inputs = packed_bert()
    layers = classifier.model.bert.encoder.layer
    real = layers[0].__call__
    changed = {"__call__": lambda self, *given, **named: real(*given, **named) * 2}
    layers[0].__class__ = type("Changed", (type(layers[0]),), changed)
    with pytest.raises(RuntimeError, match="between the layers"):
        classifier.logits(*inputs)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (("train.precision=bf16", "train.clip_norm=null"), torch.bfloat16),
        (("train.precision=fp32", "train.clip_norm=null"), torch.float32),
        (("train.precision=bf16",), torch.float32),
        (("train.precision=bf16", "train.clip_norm=null", "stability.nonfinite=skip"), torch.float32),
        (("train.precision=bf16", "train.clip_norm=null", "train.grad_accum_steps=2"), torch.float32),
        (("train.precision=bf16", "train.clip_norm=null", "train.microbatch_tokens=64"), torch.float32),
        (("train.precision=bf16", "train.clip_norm=null", "optimizer.fused=false"), torch.float32),
        (("train.precision=bf16", "train.clip_norm=null", "optimizer.name=sgd"), torch.float32),
        (("train.precision=bf16", "train.clip_norm=null", "model.packed=false"), torch.float32),
    ],
)  # fmt: skip
def test_gradients_stay_narrow_where_the_update_alone_reads_them(
    settings: tuple[str, ...],
    wanted: torch.dtype,
    tmp_path: Path,
    run: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = set()
    real = loop.update

    def update(own: Any, *given: Any) -> Any:
        (weight,) = (p for name, p in own.model.named_parameters() if name.endswith("layer.0.output.dense.weight"))  # fmt: skip
        found.add(weight.grad.dtype)
        return real(own, *given)

    monkeypatch.setattr(loop, "update", update)
    words = ["train", "--task", "classification", "--data", str(write_csv(tmp_path / "a.csv", 40))]
    words += ["--model", str(save_encoder("bert", tmp_path / "model")), "train.steps=2"]
    run([*words, "logging.tensorboard=false", *settings, "--out", str(tmp_path / "out")])  # fmt: skip
    assert found == {wanted}
