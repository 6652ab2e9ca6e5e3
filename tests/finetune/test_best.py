"""Early stopping and the best evaluation: the same end again, and the weights of that evaluation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from encoders import save_encoder, write_csv

from hotloop.checkpoint import store
from hotloop.checkpoint.entries import best_step, held_out_losses
from hotloop.finetune import labels
from hotloop.train.averaging import load_average

Run = Callable[..., str]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    data, model = write_csv(tmp_path / "a.csv", 80), save_encoder("bert", tmp_path / "bert")
    words = ["train", "--task", "sentiment", "--data", str(data), "--model", str(model)]
    words += ["optimizer.learning_rate=2e-2", "logging.tensorboard=false", "train.epochs=8"]
    return [*words, "eval.every_epochs=1", "--out", str(tmp_path / "run")]


def test_a_training_that_no_longer_gets_better_ends_and_exports_its_best_weights(
    job: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, planted = labels._Tally.metrics, iter([0.2, 0.5, 0.3, 0.4, 0.3, 0.4, 0.6])
    monkeypatch.setattr(
        labels._Tally, "metrics", lambda own: real(own) | {"macro_f1": next(planted)}
    )
    job += ["eval.patience=2", "eval.export=best", "eval.metric=macro_f1"]
    said = run(job)
    out = tmp_path / "run"
    scores = held_out_losses(out / "evals.jsonl", "macro_f1")
    best, steps = best_step(scores), sorted(scores)
    assert (steps, best) == ([5, 10, 15, 20], 10)
    assert "`macro_f1` no longer gets better" in said
    task = json.loads((out / "task.json").read_text())
    assert (task["step"], task["stopped_early"], task["macro_f1"]) == (best, True, -scores[best])
    kept = store.load(store.of_step(out / "checkpoints", best), ("model",))[0]["model"]
    exported = safetensors.torch.load_file(out / "model/model.safetensors")
    for name, weight in exported.items():
        own = kept[f"model.{name}"]
        if "word_embeddings" in name:  # the checkpoint has the rows that the examples read
            assert len(own) < len(weight)
            rows = {row.numpy().tobytes() for row in weight}
            assert all(row.numpy().tobytes() in rows for row in own)
        else:
            assert torch.equal(own, weight), name
    newest = store.load(store.of_step(out / "checkpoints", steps[-1]), ("model",))[0]["model"]
    assert any(not torch.equal(newest[f"model.{name}"], own) for name, own in exported.items())

    shown = run(["report", str(out)])
    assert "Ended early, after 20 of 40 steps: no better `macro_f1` in 2 evaluations (`eval.patience`)" in shown  # fmt: skip
    assert "unfinished" not in shown
    assert "HL302" not in shown  # what cannot be set here is no advice
    assert '"state": "finished"' in run(["monitor", str(out), "--once", "--json", "-"])

    run(["checkpoints", "prune", str(out), "--yes"])  # by the same measure, not by the loss
    assert best in store.steps(out / "checkpoints")
    again = run(job)
    assert f"already finished: {steps[-1]} of 40 steps" in again
    assert held_out_losses(out / "evals.jsonl", "macro_f1") == scores
    assert json.loads((out / "task.json").read_text()) == task
    said = run([*job, "--from-step", str(best)])  # what came after it is no reason to end there
    assert "already finished" not in said
    assert held_out_losses(out / "evals.jsonl", "macro_f1") == scores


@pytest.mark.parametrize("choosing", ["eval.patience=1", "eval.export=best"])
def test_choosing_among_evaluations_makes_one_each_epoch(
    choosing: str, job: list[str], tmp_path: Path, run: Run
) -> None:
    job.remove("eval.every_epochs=1")  # the default, 250 steps, is more than all of them
    job += ["train.epochs=2", "optimizer.learning_rate=1e-3", choosing]
    run(job)
    assert sorted(held_out_losses(tmp_path / "run/evals.jsonl", "loss")) == [5, 10]
    run([*job, "eval.every_steps=3", "--out", str(tmp_path / "own")])  # what is asked for stays
    assert 3 in held_out_losses(tmp_path / "own/evals.jsonl", "loss")


def test_averaged_weights_are_those_of_the_best_evaluation(
    job: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of each evaluation with the last weights and with their mean, which counts.
    real, planted = labels._Tally.metrics, iter([0.1, 0.5, 0.9, 0.2])
    monkeypatch.setattr(
        labels._Tally, "metrics", lambda own: real(own) | {"macro_f1": next(planted)}
    )
    job += ["averaging.name=ema", "averaging.decay=0.5", "averaging.every_steps=1"]
    run([*job, "train.epochs=2", "eval.export=best", "eval.metric=macro_f1"])
    out = tmp_path / "run"
    means = [load_average(store.of_step(out / "checkpoints", step)) for step in (5, 10)]
    exported = safetensors.torch.load_file(out / "model/model.safetensors")
    names = [name for name in exported if "word_embeddings" not in name]
    for mean, is_best in zip(means, (True, False), strict=True):
        assert mean is not None
        assert all(torch.equal(exported[n], mean[f"model.{n}"]) for n in names) == is_best


def test_more_patience_goes_on_with_the_same_run(job: list[str], tmp_path: Path, run: Run) -> None:
    job += ["optimizer.learning_rate=1e-9", "eval.metric=macro_f1"]  # nothing gets better
    run([*job, "eval.patience=1"])
    first = (tmp_path / "run/evals.jsonl").read_text()
    assert len(first.splitlines()) == 2
    said = run([*job, "train.epochs=1"], code=2)
    assert "this run has done 10 steps, more than `train.epochs: 1` (5 steps)" in said
    assert "leave `train.epochs` as it was" in said
    assert "continues from step 10 of 40" in run(job)
    assert "Finished: 40 steps" in run(["report", str(tmp_path / "run")])
    whole = (tmp_path / "run/evals.jsonl").read_text()
    assert whole.startswith(first)
    assert len(whole.splitlines()) == 8


def test_an_evaluation_that_was_cut_short_ends_a_training_as_it_would_have_before(
    job: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, planted = labels._Tally.metrics, iter([0.5, 0.3, 0.3, 0.4])
    monkeypatch.setattr(
        labels._Tally, "metrics", lambda own: real(own) | {"macro_f1": next(planted)}
    )
    out, told = tmp_path / "run", tmp_path / "told.json"
    job += ["eval.patience=1", "eval.metric=macro_f1", "--json", str(told)]
    run(job)
    left = [out / name for name in ("evals.jsonl", "task.json", "model/model.safetensors")]
    whole = [path.read_bytes() for path in left]
    first = json.loads(told.read_text())["training"]
    assert (first["steps"], len(whole[0].splitlines())) == (10, 2)
    # As a stop leaves it that comes while it evaluates: the steps are saved.
    left[0].write_bytes(whole[0].splitlines(keepends=True)[0])
    said = run(job)
    assert "ended early, after 10 of 40 steps: `macro_f1` no longer gets better" in said
    assert [path.read_bytes() for path in left] == whole
    again = json.loads(told.read_text())["training"]
    assert again["loss"] is not None
    for name in ("steps", "loss", "held_out_loss"):
        assert again[name] == first[name], name
    assert "already finished: 10 of 40 steps" in run(job)


def test_every_example_is_trained_on_when_none_is_held_out(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    said = run([*job, "data.held_out=0", "train.epochs=1"])
    assert "80 examples to train on and 0 held out" in said
    assert "leaves no example" in said
    assert not (tmp_path / "run/task.json").exists()
    assert (tmp_path / "run/model/model.safetensors").exists()


def test_report_has_the_classes_and_what_is_mistaken_for_what(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    run([*job, "train.epochs=1"])
    said = run(["report", str(tmp_path / "run"), "--html", str(tmp_path / "a.html")])
    assert "by label: precision, recall, F1, examples" in said
    page = (tmp_path / "a.html").read_text()
    assert "Confusion matrix" in page
    for name in ("bad", "good", "so-so"):
        assert f"<td>{name}</td>" in page
    (tmp_path / "run/task.json").write_text('{"schema": "hotloop.task/1", "task": 3}')
    assert "damaged" in run(["report", str(tmp_path / "run")], code=2)
