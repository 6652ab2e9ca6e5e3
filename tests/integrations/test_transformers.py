"""`TransformersWatch` in the real Trainer, in this process: a watch leaves nothing behind, and that is tested, too."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from planted_training import BATCH, Model, Rows, entries

import hotloop
import hotloop.checkpoint
from hotloop import integrations
from hotloop.core.errors import UsageError

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
transformers = pytest.importorskip("transformers")

from hotloop.integrations import TransformersWatch  # noqa: E402


class Logger(transformers.TrainerCallback):  # type: ignore[misc]
    """Stands where those of TensorBoard and Weights & Biases do: before the callbacks of the user."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
        self.logged.append(dict(logs))


def trainer(directory: Path, *callbacks: Any, steps: int = 40, **kwargs: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(directory),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        logging_steps=10,
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
    )
    rows = kwargs.pop("rows", Rows(10_000))
    return transformers.Trainer(
        model=Model(), args=arguments, train_dataset=rows, callbacks=[*callbacks], **kwargs
    )


def losses(made: Any) -> list[float]:
    return [each["loss"] for each in made.state.log_history if "loss" in each]


def test_it_finds_what_was_planted_logs_where_the_loss_goes_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = entries()
    logger, callback = Logger(), TransformersWatch(steps=None)
    made = trainer(tmp_path / "watched", logger, callback)
    made.train()
    assert entries() == before
    plain = trainer(tmp_path / "plain")
    plain.train()
    assert losses(made) == losses(plain)
    assert "HL106" in [each.code for each in callback.findings]
    assert any("planted_training.py" in str(each.site) for each in callback.findings)
    assert callback.seen.diagnosis.breakdown["data_wait"] > 0.5
    said = capsys.readouterr().err
    assert said.count("HL106") >= 1
    assert said.count("watching took") == 1
    logged = [each for each in logger.logged if "hotloop/step_s" in each]
    kept = [each for each in made.state.log_history if "hotloop/step_s" in each]
    assert [{k: v for k, v in each.items() if k != "step"} for each in kept] == logged
    for each in logged:
        fractions = [v for k, v in each.items() if k.startswith("hotloop/") and k.endswith("_fraction") and "cost" not in k]  # fmt: skip
        assert sum(fractions) == pytest.approx(1, abs=0.01)
    assert len(logged) >= 2
    # Ten steps in which the machine stood still may be those of one log.
    assert median(each["hotloop/data_wait_fraction"] for each in logged) > 0.5
    assert 0 < logger.logged[-1]["hotloop/watch_cost_fraction"] < 0.2


def test_a_bound_ends_it_in_the_midst_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, ended_at = entries(), []

    class Look(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if entries() == before:
                ended_at.append(state.global_step)

    callback = TransformersWatch(steps=10)
    trainer(tmp_path, callback, Look(), steps=60).train()
    assert 20 <= ended_at[0] < 50
    assert ended_at == [*range(ended_at[0], 60)]
    assert callback.seen.diagnosis.steps.measured >= 10
    assert capsys.readouterr().err.count("watching took") == 1


def test_counting_tokens_does_not_end_it_at_the_first_log(tmp_path: Path) -> None:
    """Trainer then adds to each log what else the last one alone has."""
    callback = TransformersWatch(steps=None, show=False)
    made = trainer(tmp_path, callback)
    made.args.include_num_input_tokens_seen = "all"
    made.train()
    steps = callback.seen.diagnosis.steps
    # A machine that watching delays more has more of them left out.
    assert 35 < steps.warmup + steps.measured + steps.left_out <= 40
    assert any("hotloop/watch_cost_fraction" in each for each in made.state.log_history[-1:])


def test_what_follows_a_training_that_another_one_looks_at_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")  # of several processes not the first
    callback = TransformersWatch(out=tmp_path / "kept")
    made = trainer(tmp_path / "model", callback, steps=20)
    made.train()
    assert callback.findings == ()
    callback.seen.save(tmp_path / "page.html")
    assert not any(key.startswith("hotloop/") for each in made.state.log_history for key in each)
    assert not (tmp_path / "kept").exists()
    assert "page.html is not written" in capsys.readouterr().err


def test_a_training_that_raises_is_let_go_of_and_the_next_one_is_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = entries()
    callback = TransformersWatch(steps=None, out=tmp_path / "kept")
    made = trainer(tmp_path / "model", callback, rows=Rows(30 * BATCH, breaks_at=20))
    with pytest.raises(RuntimeError, match="row 20 is broken"):
        made.train()
    assert entries() == before
    first = callback.seen
    assert first.to_dict()["doctor"]["ended"] == "failed"
    made.train_dataset = Rows(1000)
    made.train()
    assert callback.seen is not first
    assert callback.seen.to_dict()["doctor"]["ended"] == "by_itself"
    assert (tmp_path / "kept-2" / "diagnosis.json").is_file()
    assert capsys.readouterr().err.count("watching took") >= 1


def test_two_at_once_are_refused_at_the_start_of_the_second(tmp_path: Path) -> None:
    callback = TransformersWatch(show=False)
    inner = trainer(tmp_path / "inner", callback)
    other = trainer(tmp_path / "other", TransformersWatch())
    seen: list[str] = []

    class Nests(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if state.global_step == 3:
                for each in (inner, other):
                    with pytest.raises(UsageError) as error:
                        each.train()
                    seen.append(str(error.value))

    trainer(tmp_path / "outer", callback, Nests()).train()
    assert "this TransformersWatch watches another training" in seen[0]
    assert "hotloop.watch inside hotloop.watch" in seen[1]
    assert callback.seen.to_dict()["doctor"]["ended"] == "by_itself"
    with (
        hotloop.watch(show=False),
        pytest.raises(UsageError, match=r"hotloop.watch inside hotloop.watch"),
    ):
        other.train()


def test_its_training_keeps_it_also_after_its_bound(tmp_path: Path) -> None:
    before, callback = entries(), TransformersWatch(steps=10, show=False)
    inner, refused = trainer(tmp_path / "inner", callback, steps=5), list[int]()

    class Nests(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if state.global_step == 59:
                assert entries() == before
                with pytest.raises(UsageError, match="watches another training, which has not"):
                    inner.train()
                refused.append(state.global_step)

    trainer(tmp_path / "outer", callback, Nests(), steps=60).train()
    assert refused == [59]
    first = callback.seen
    inner.train()
    assert callback.seen is not first


def test_what_it_cannot_do_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="steps=0 is no number of steps"):
        TransformersWatch(steps=0)
    with pytest.raises(UsageError, match="no training has begun"):
        _ = TransformersWatch().findings


def test_what_saves_checkpoints_in_a_trainer_is_imported_from_beside_it() -> None:
    assert integrations.TransformersCallback is hotloop.checkpoint.TransformersCallback
