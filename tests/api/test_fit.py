"""`hotloop.fit`: a module and examples of one's own, and a directory of transformers, from a program."""

import csv
import json
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoders import save_encoder
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset, default_collate

import hotloop
from hotloop.api import run as hotloop_run
from hotloop.checkpoint.entries import best_step, held_out_losses
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.finetune.module_examples import divided

PLAIN = {
    "train.precision": "fp32",
    "optimizer.learning_rate": 0.05,
    "train.num_threads": 1,
    "logging.tensorboard": False,
    "checkpoint.background": False,
}


def points(num: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 6, generator=draw)
    return TensorDataset(x, (x[:, 0] > x[:, 1]).long())


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def test_a_module_learns_in_place_and_its_run_is_kept(tmp_path: Path) -> None:
    model, held_out = classifier(), points(64, 1)
    out = tmp_path / "run"
    run = hotloop.fit(
        model, points(250, 0), loss=F.cross_entropy, validation=held_out, epochs=5, out=out, settings=PLAIN
    )  # fmt: skip
    assert run.steps == 5 * 8  # the last step of an epoch takes the 26 that are left
    x, y = held_out.tensors
    with torch.no_grad():
        assert run.held_out_loss == pytest.approx(float(F.cross_entropy(model(x), y)), abs=1e-6)
    assert run.held_out_loss < 0.3
    again = classifier(7)
    from safetensors.torch import load_model

    load_model(again, str(run.model))
    assert_same(again, model)
    assert "hotloop" in run._repr_html_()
    assert "samples/s" in str(run)
    assert "tokens/s" not in str(run)  # its examples are no tokens


def test_each_step_is_that_of_a_plain_loop_over_the_same_examples(tmp_path: Path) -> None:
    data, model, plain = points(40, 0), classifier(), classifier()
    settings = PLAIN | {"optimizer.name": "sgd", "optimizer.momentum": 0.0, "schedule.name": "constant", "train.clip_norm": None}  # fmt: skip
    hotloop.fit(model, data, loss=F.cross_entropy, epochs=2, batch=16, out=tmp_path / "run", settings=settings)  # fmt: skip
    from hotloop.finetune.work import epoch_order

    step = torch.optim.SGD(plain.parameters(), lr=0.05)
    x, y = data.tensors
    for epoch in range(2):
        order = epoch_order(0, epoch, 40)
        for begin in range(0, 40, 16):
            chosen = order[begin : begin + 16]
            step.zero_grad()
            F.cross_entropy(plain(x[chosen]), y[chosen]).backward()
            step.step()
    for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def normed(seed: int = 0) -> nn.Module:
    """Its first layer is not trained, and the statistics of its second are no weights."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    layers[0].requires_grad_(False)
    return layers


class PartlyUsed(nn.Module):
    """A layer of it is trained by name, and never gets a gradient."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.used = classifier(seed)
        self.aux = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


class Interrupting(TensorDataset):
    """Ends the training once, at some example."""

    left: int = 0

    def __getitem__(self, index: Any) -> Any:
        Interrupting.left -= 1
        if Interrupting.left == 0:
            self.end()
        return super().__getitem__(index)

    def end(self) -> None:
        raise KeyboardInterrupt


class Noisy(Interrupting):
    """Draws from each generator, and ends by Ctrl-C, which saves."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.standard_normal() / 9 + random.random() / 9 + torch.rand(()) / 9, y

    def end(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("build", "kind"),
    [(classifier, Interrupting), (normed, Interrupting), (PartlyUsed, Interrupting), (classifier, Noisy)],
)  # fmt: skip
def test_the_same_call_goes_on_after_an_interruption_and_ends_with_the_same_model(
    build: Callable[[int], nn.Module], kind: type[Interrupting], tmp_path: Path
) -> None:
    data = kind(*points(64, 0).tensors)
    settings = PLAIN | {"checkpoint.every_steps": 2}

    def fit(out: Path, seed: int) -> nn.Module:
        model = build(seed)
        hotloop.fit(model, data, loss=F.cross_entropy, epochs=4, batch=16, out=out, settings=settings)  # fmt: skip
        return model

    wanted = fit(tmp_path / "whole", 0)
    Interrupting.left = 160  # of a step that no checkpoint is saved before
    with pytest.raises((KeyboardInterrupt, hotloop_interrupted())):
        fit(tmp_path / "cut", 0)
    found = fit(tmp_path / "cut", 1)  # its weights are those of the run
    kept = (tmp_path / "cut" / "model.safetensors").read_bytes()
    finished = fit(tmp_path / "cut", 2)
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == kept
    for model in (found, finished):
        assert_same(model, wanted)


def hotloop_interrupted() -> type[BaseException]:
    from hotloop.core.errors import Interrupted

    return Interrupted


def assert_same(found: nn.Module, wanted: nn.Module) -> None:
    for own, other in zip(found.state_dict().values(), wanted.state_dict().values(), strict=True):
        assert torch.equal(own, other)


def test_the_best_weights_are_exported_with_the_statistics_of_their_step(tmp_path: Path) -> None:
    data, model = points(64, 0), normed()
    x, y = points(64, 1).tensors
    wrong = TensorDataset(x, 1 - y)  # what is learned makes these worse
    settings = PLAIN | {"eval.every_steps": 4, "eval.export": "best"}
    hotloop.fit(
        model, data, loss=F.cross_entropy, validation=wrong, epochs=5, batch=16, out=tmp_path / "run", settings=settings
    )  # fmt: skip
    losses = held_out_losses(tmp_path / "run/evals.jsonl", "loss")
    assert best_step(losses) < max(losses)
    with torch.no_grad():
        found = float(F.cross_entropy(model.eval()(x), 1 - y))
    assert found == pytest.approx(min(losses.values()), abs=1e-5)


def test_an_evaluation_of_examples_that_draw_changes_no_step(tmp_path: Path) -> None:
    data = Noisy(*points(64, 0).tensors)
    losses = {
        hotloop.fit(
            classifier(), data, loss=F.cross_entropy, validation=data, epochs=1, batch=16, out=tmp_path / f"{every}", settings=PLAIN | {"eval.every_steps": every}
        ).loss
        for every in (1, 4)
    }  # fmt: skip
    assert len(losses) == 1


class Late(nn.Module):
    """A layer that is reached by the later examples alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.late, self.calls = nn.Linear(6, 2), nn.Linear(6, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        made: torch.Tensor = self.first(x) + (self.late(x) if self.calls > 3 else 0)
        return made


def test_a_weight_may_have_its_first_gradient_later_than_others(tmp_path: Path) -> None:
    made = []
    for fused in (True, False):
        model, settings = Late(), {**PLAIN, "optimizer.name": "sgd", "optimizer.fused": fused}
        hotloop.fit(model, points(250, 0), loss=F.cross_entropy, epochs=2, out=tmp_path / str(fused), settings=settings)  # fmt: skip
        made.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    torch.testing.assert_close(*made)


def test_more_epochs_go_on_in_the_same_run_where_that_is_asked_for(tmp_path: Path) -> None:
    def fit(**change: Any) -> Any:
        return hotloop.fit(classifier(), points(64, 0), loss=F.cross_entropy, batch=16, out=tmp_path / "run", settings=PLAIN, **change)  # fmt: skip

    assert fit(epochs=1).steps == 4
    with pytest.raises(UsageError, match="`stretch_schedule=True`"):
        fit(epochs=2)
    assert fit(epochs=2, stretch_schedule=True).steps == 8


def test_a_part_of_the_examples_is_held_out(tmp_path: Path) -> None:
    def fit(validation: float) -> Any:
        out = tmp_path / f"{validation}"
        return hotloop.fit(classifier(), points(40, 0), loss=F.cross_entropy, validation=validation, epochs=1, batch=10, out=out, settings=PLAIN)  # fmt: skip

    some, none = fit(0.25), fit(0)
    assert (some.steps, none.steps, none.held_out_loss) == (3, 4, None)
    (evaluation,) = map(json.loads, (tmp_path / "0.25/evals.jsonl").read_text().splitlines())
    assert evaluation["num_targets"] == 10
    assert fit(0.25).loss == some.loss  # the same are held out
    train, held_out = divided(range(40), 0.25, seed=0)
    assert sorted([*train, *held_out]) == [*range(40)]
    assert [*divided(range(40), 0.25, seed=1)[1]] != [*held_out]


def doubled(examples: list[Any]) -> Any:
    x, y = default_collate(examples)
    return 2 * x, y


class Halved(nn.Sequential):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) / 2


CORRECTED = points(64, 0)
CORRECTED.tensors[1][37] ^= 1


@pytest.mark.parametrize(
    "change",
    [
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        {"loss": F.multi_margin_loss},
        {"collate": doubled},
        {"model": Halved(*classifier())},
        {"model": nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))},
        {"data": CORRECTED},
        {"validation": CORRECTED},
    ],
)
def test_another_loss_collate_forward_or_label_is_another_training(
    change: dict[str, Any], tmp_path: Path
) -> None:
    def fit(**change: Any) -> Any:
        given = {"model": classifier(), "data": points(64, 0), "loss": nn.CrossEntropyLoss(), "validation": points(64, 0)}  # fmt: skip
        given |= {"epochs": 1, "out": tmp_path / "run", "settings": PLAIN} | change
        return hotloop.fit(given.pop("model"), given.pop("data"), **given)

    loss = fit().loss
    assert fit().loss == loss
    with pytest.raises(UsageError, match="a run of another loss, `collate` or forward"):
        fit(**change)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        class Output:
            loss = F.cross_entropy(self.layer(x), labels)

        return Output


def test_examples_may_be_dicts_of_a_model_that_computes_its_loss(tmp_path: Path) -> None:
    x, y = points(40, 0).tensors
    examples = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    run = hotloop.fit(Named(), examples, epochs=6, batch=8, out=tmp_path / "run", settings=PLAIN)
    assert run.loss is not None
    assert run.loss < 0.5


def padded_rows(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """As collators of transformers do: rows of one length, and `label` becomes `labels`."""
    rows = nn.utils.rnn.pad_sequence([each["x"] for each in examples], batch_first=True)
    return {"x": rows, "labels": torch.tensor([each["label"] for each in examples])}


class Summed(Named):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return super().forward(x.sum(1), labels)


def test_a_collator_may_pad_examples_and_rename_what_they_hold(tmp_path: Path) -> None:
    x, y = points(40, 0).tensors
    examples = [{"x": row.repeat(1 + n % 3, 1), "label": int(label), "text": "a"} for n, (row, label) in enumerate(zip(x, y, strict=True))]  # fmt: skip
    run = hotloop.fit(
        Summed(), examples, validation=examples[:8], collate=padded_rows, epochs=6, batch=8, out=tmp_path / "run", settings=PLAIN
    )  # fmt: skip
    assert run.loss is not None
    assert run.loss < 0.5


def across(examples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Time before the examples, as recurrent layers take it."""
    return torch.stack([each for each, _ in examples], 1), torch.stack(
        [each for _, each in examples]
    )


class Across(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dim = nn.Linear(3, 2), dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mean(self.dim))


def test_a_batch_whose_first_dimension_is_another_has_the_same_loss(tmp_path: Path) -> None:
    x, y = points(40, 0).tensors
    data = TensorDataset(x.view(40, 2, 3), y)
    runs = [
        hotloop.fit(
            Across(dim), data, loss=F.cross_entropy, collate=collate, validation=data, batch=16, epochs=1, out=tmp_path / f"run{dim}", settings=PLAIN
        )
        for dim, collate in ((1, None), (0, across))
    ]  # fmt: skip
    assert runs[0].loss == pytest.approx(runs[1].loss, abs=1e-5)
    assert runs[0].held_out_loss == pytest.approx(runs[1].held_out_loss, abs=1e-5)


NAN = points(16, 0)
NAN.tensors[0][5, 2] = float("nan")


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        while True:
            yield torch.zeros(6), 0


class Loss(nn.Linear):
    """Its output is its loss."""

    def __init__(self) -> None:
        super().__init__(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": 3}, "the model is of type int"),
        ({"model": nn.ReLU()}, "no weights to train"),
        ({"data": Endless()}, "no length"),
        ({"data": []}, "there are no examples"),
        (
            {"data": {7: (torch.zeros(6), 0)}},
            "the first example cannot be drawn by its number: KeyError(0)",
        ),
        ({"data": [("a", "b")] * 4}, "a batch has to be of tensors"),
        ({"data": [{"x": torch.zeros(6), "text": "a"}] * 4}, "is of x: Tensor, text: list"),
        (
            {"data": [(torch.zeros(6 + n), 0) for n in range(4)]},
            "these examples do not make a batch: ",
        ),
        (
            {
                "data": [{"x": torch.zeros(6)}, {"y": torch.zeros(6)}]
                + [{"x": torch.zeros(6)}] * 6,
                "model": Loss(),
                "loss": None,
            },
            "do not make a batch: 'x'",
        ),
        (
            {
                "data": [{"x": torch.zeros(6)}] * 4,
                "model": Loss(),
                "loss": None,
                "validation": [{"y": torch.zeros(6)}] * 4,
            },
            "a batch has y, and the first one had x",
        ),
        (
            {"batch": 9},
            "one step takes 9 examples, and there are 8 to train on\n  at `data`, TensorDataset",
        ),
        (
            {"data": NAN, "settings": PLAIN | {"train.steps": 4}},
            "example 5 holds a value that is no number",
        ),
        (
            {"data": NAN, "validation": 0.25, "settings": PLAIN | {"train.steps": 4}},
            "example 5 holds a value that is no number",
        ),
        ({"validation": 1.5}, "1.5 is no part of the examples"),
        ({"loss": None}, "takes 2 positional arguments but 3 were given"),
        ({"loss": lambda output, target: output}, "no single number came out as the loss"),
        ({"settings": {"train.step": 3}}, "train.step"),
        ({"task": "classification"}, "is of model directories"),
    ],
)
def test_what_cannot_be_fitted_is_said(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = {"model": classifier(), "data": points(8, 0), "loss": F.cross_entropy, "out": tmp_path / "run"}  # fmt: skip
    given |= {"settings": PLAIN, "epochs": 1, "batch": 4} | change
    with pytest.raises(UsageError) as raised:
        hotloop.fit(given.pop("model"), given.pop("data"), **given)
    assert words in str(raised.value)


def test_a_directory_of_transformers_is_fine_tuned_from_a_program(tmp_path: Path) -> None:
    save_encoder("bert", tmp_path / "model")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        rows.writerows([f"{'good' if n % 2 else 'bad'} thing {n}", "yes" if n % 2 else "no"] for n in range(40))  # fmt: skip
    given: Any = {"task": "sentiment", "epochs": 1, "batch": 8, "settings": {"logging.tensorboard": False}}  # fmt: skip
    run = hotloop.fit(tmp_path / "model", tmp_path / "rows.csv", validation=0.25, out=tmp_path / "run", **given)  # fmt: skip
    assert run.scores is not None
    assert run.scores.task == "classification"
    assert sum(map(sum, run.scores.confusion or ())) == 10
    assert json.loads((run.model / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}  # fmt: skip
    import hotloop.fit as room

    assert callable(room)
    run = hotloop.fit(tmp_path / "model", tmp_path / "rows.csv", validation=0, out=tmp_path / "all", **given)  # fmt: skip
    assert run.steps == 5  # of all 40
    assert run.scores is None
    with pytest.raises(UsageError, match="no such file"):
        hotloop.fit(tmp_path / "model", tmp_path / "rows.csv", validation="0", out=tmp_path / "no", **given)  # fmt: skip


def test_settings_may_be_numbers_of_torch_and_paths(tmp_path: Path) -> None:
    settings = PLAIN | {"optimizer.learning_rate": torch.tensor(0.05), "train.epochs": torch.tensor(2)}  # fmt: skip
    run = hotloop.fit(classifier(), points(32, 0), loss=F.cross_entropy, batch=16, out=tmp_path / "run", settings=settings)  # fmt: skip
    assert run.steps == 4


class Greedy(nn.Module):
    """Asks for more memory than any machine has, behind its second step or in its export."""

    def __init__(self, out: Path, *, steps: int = 0, exports: bool = False) -> None:
        super().__init__()
        self.layers, self.steps = classifier(), steps
        self.trained = out / "checkpoints" if exports else None

    def forward(self, x: torch.Tensor) -> Any:
        self.steps += len(x) > 4  # not the few examples that are looked at before
        if self.trained is None and self.steps > 2:
            torch.empty(1 << 46)
        return self.layers(x)

    def state_dict(self, *args: Any, **named: Any) -> Any:
        if self.trained is not None and any(self.trained.glob("step-00000012-*")):
            torch.empty(1 << 46)
        return super().state_dict(*args, **named)


def test_a_training_that_runs_out_of_memory_says_where_and_what_takes_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, data = tmp_path / "run", points(64, 0)
    settings = PLAIN | {"train.host_memory": "default"}

    def fit(model: nn.Module, **named: Any) -> hotloop_run.Run:
        return hotloop.fit(model, data, loss=F.cross_entropy, out=out, **({"batch": 16, "settings": settings} | named))  # fmt: skip

    def ended(model: nn.Module) -> EnvironmentFailed:
        with pytest.raises(EnvironmentFailed) as caught:
            fit(model)
        assert str(caught.value).startswith(f"out of memory\n  at {out}\n  It ran out of memory, ")
        return caught.value

    at_once = str(ended(Greedy(out, steps=9)))
    assert "It ran out of memory, before its first step.\n" in at_once
    assert "can't allocate memory" in at_once
    way = "train.microbatch=8 train.grad_accum_steps=2: the same steps in more, smaller products, in which batch norm"
    assert way in at_once

    later = ended(Greedy(out))
    text = str(later)
    assert "in forward of step 2" in text
    assert way in text
    assert " weights " in text
    assert "the process before training" in text
    assert not any(other in text for other in ("hotloop fit", "train.loss", "model."))
    found = hotloop_run.read_run(out).out_of_memory
    assert found is not None
    assert found.certainty == "said"

    monkeypatch.setattr(sys, "last_value", later, raising=False)  # as a notebook has it
    less = {"batch": 8, "settings": settings | {"train.grad_accum_steps": 2}}
    exports = Greedy(out, exports=True)
    with pytest.raises(EnvironmentFailed, match="out of memory") as caught:
        fit(exports, **less)
    assert "in export of step " in str(caught.value)
    assert "the same command again: it has trained" in str(caught.value)
    exports.trained = None
    exports.steps = -100
    assert fit(exports, **less).model.exists()
    assert json.loads((out / "memory-0.json").read_text())["failed"] is None
    assert hotloop_run.read_run(out).out_of_memory is None
