"""What a step of fine-tuning leaves out does not change what is learned."""

import copy

import numpy as np
import pytest
import torch
import transformers
from encoders import config
from torch import nn

from hotloop.finetune.classifier import Classifier
from hotloop.finetune.dropout import Dropout, dropout, replace_dropout
from hotloop.finetune.packing import FULL
from hotloop.finetune.vocabulary import keep_used_rows


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


def test_last_layer_computes_first_tokens_alone() -> None:
    """The feed-forward of all but the last layer sees every token; that of the last one row per example."""
    model = transformers.AutoModelForSequenceClassification.from_config(config("bert")).eval()
    classifier = Classifier(model, packed=True, pad_id=0)
    seen: list[int] = []
    for layer in model.bert.encoder.layer:
        layer.intermediate.register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs[0].shape[1])
        )
    _, inputs = classifier.arranged([np.full(n, 9, dtype=np.int32) for n in (20, 5, 33)])
    classifier.logits(*inputs)
    assert seen == [-(-58 // FULL) * FULL, 3]
