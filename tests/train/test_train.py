from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from trainings import losses, records, scalars, train, weights

from hotloop.checkpoint import store
from hotloop.checkpoint.state import FILES
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.settings import load_settings
from hotloop.hardware import device, environment
from hotloop.train import loop
from hotloop.train.stability import TrainingDiverged
from hotloop.train.start import start

Dies = Callable[[int], AbstractContextManager[None]]


def same_weights(a: Path, b: Path) -> bool:
    left, right = weights(a), weights(b)
    return all(
        torch.equal(left[f][k], right[f][k]) for f in ("model", "optimizer") for k in left[f]
    )


def test_training_learns_and_leaves_every_stage_behind(tiny_config: Path, tmp_path: Path) -> None:
    finished = train(
        tiny_config, tmp_path / "run", "train.steps=60", "optimizer.learning_rate=1e-2"
    )
    found = losses(tmp_path / "run")
    assert len(found) == finished.steps == 60
    assert found[-1] is not None
    assert found[0] is not None
    assert found[-1] < found[0] - 1.0
    assert finished.held_out_loss == pytest.approx(found[-1], abs=0.7)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.yaml", "steps.jsonl", "census.json", "environment.json", "evals.jsonl"} <= names
    evaluations = (tmp_path / "run/evals.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in evaluations] == [*range(6, 61, 6)]


def test_phases_are_never_negative_and_add_up_to_wall_time(
    tiny_config: Path, tmp_path: Path
) -> None:
    train(tiny_config, tmp_path / "run")
    kept = records(tmp_path / "run")
    assert min(min(record.host.values()) for record in kept) >= 0
    phases = sum(sum(record.host.values()) for record in kept)
    # Two clocks, read one after the other: only their distance may remain.
    assert phases == pytest.approx(sum(record.wall_s for record in kept), rel=5e-3)


def test_a_run_is_continued_as_it_began_on_a_machine_where_auto_is_another(
    tiny_config: Path, tmp_path: Path, dies_after: Dies, monkeypatch: pytest.MonkeyPatch
) -> None:
    amd = {"vendor_id": "AuthenticAMD", "flags": "avx512_bf16"}
    monkeypatch.setattr(environment, "_cpu_fields", lambda: amd)
    auto = ("train.precision=auto", "train.gelu=auto", "train.compile=false")
    train(tiny_config, tmp_path / "whole", *auto)
    with dies_after(7):
        train(tiny_config, tmp_path / "cut", *auto)
    monkeypatch.setattr(environment, "_cpu_fields", dict)
    notes: list[str] = []
    train(tiny_config, tmp_path / "cut", *auto, warn=notes.append)
    assert any("continues from step" in note for note in notes)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    stored = load_settings(tmp_path / "cut/config.yaml")
    assert stored.config.train.precision == "bf16"
    why = stored.origin("train.precision")
    assert why == load_settings(tmp_path / "whole/config.yaml").origin("train.precision")
    assert why.startswith("detected: ")
    train(tiny_config, tmp_path / "new", *auto)
    assert load_settings(tmp_path / "new/config.yaml").config.train.precision == "fp32"
    with pytest.raises(UsageError, match=r"holds a run with `train\.precision: bf16`, not fp32"):
        train(tiny_config, tmp_path / "cut", *auto[1:], "train.precision=fp32")


LLAMA = ("model.family=llama", "model.kv_heads=1", "model.qk_norm=true")


@pytest.mark.parametrize(
    ("killed_after", "settings"),
    [
        *((after, ()) for after in (1, 4, 7, 11)),
        (7, ("optimizer.name=muon", *LLAMA)),
        (7, ("optimizer.name=muon", "optimizer.fused=false", "train.precision=bf16")),
        (7, ("optimizer.name=sgd", "optimizer.nesterov=true", "optimizer.learning_rate=0.1")),
        (7, ("schedule.name=wsd", "schedule.decay_fraction=0.4", *LLAMA)),
    ],
)
def test_killed_run_continues_to_the_same_losses_and_weights(
    tiny_config: Path,
    tmp_path: Path,
    killed_after: int,
    settings: tuple[str, ...],
    dies_after: Dies,
) -> None:
    settings = ("model.dropout=0.1", *settings)
    train(tiny_config, tmp_path / "whole", *settings)
    with dies_after(killed_after):
        train(tiny_config, tmp_path / "killed", *settings)
    train(tiny_config, tmp_path / "killed", *settings)
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert same_weights(tmp_path / "killed", tmp_path / "whole")
    assert (tmp_path / "killed/evals.jsonl").read_text() == (
        tmp_path / "whole/evals.jsonl"
    ).read_text()


@pytest.mark.parametrize(
    "settings",
    [
        ("optimizer.name=muon", "optimizer.learning_rate=1e-2"),
        ("optimizer.name=sgd", "optimizer.learning_rate=0.3", "train.clip=builtin"),
        ("model.family=llama", "optimizer.learning_rate=1e-2"),
        ("model.mlp=relu2", "model.qk_norm=true", "optimizer.learning_rate=1e-2"),
        ("schedule.name=onecycle", "optimizer.learning_rate=1e-2"),
    ],
    ids=lambda settings: settings[0],
)
def test_every_family_optimizer_and_schedule_learns(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    train(tiny_config, tmp_path / "run", "train.steps=40", "eval.every_steps=40", *settings)
    found = losses(tmp_path / "run")
    assert found[0] is not None
    assert found[-1] is not None
    assert found[-1] < found[0] - 0.8


def test_one_microbatch_of_four_equals_four_of_one(tiny_config: Path, tmp_path: Path) -> None:
    train(tiny_config, tmp_path / "one", "train.microbatch=4")
    train(tiny_config, tmp_path / "four", "train.microbatch=1", "train.grad_accum_steps=4")
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_accumulation_is_normalised_by_the_targets_of_the_step(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Microbatches with unequal numbers of targets: a mean of means would be another loss."""
    from hotloop.data.loader import Loader

    real = Loader.batch

    def masked(self: Loader, position: int, num_sequences: int):  # type: ignore[no-untyped-def]
        batch = real(self, position, num_sequences)
        targets = batch.targets.copy()
        for row in range(num_sequences):
            targets[row, : (position + row) % 4 * 4] = -100
        return dataclasses.replace(batch, targets=targets, num_targets=int((targets >= 0).sum()))

    monkeypatch.setattr(Loader, "batch", masked)
    train(tiny_config, tmp_path / "one", "train.microbatch=4")
    train(tiny_config, tmp_path / "four", "train.microbatch=1", "train.grad_accum_steps=4")
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


@pytest.mark.parametrize(
    ("shared", "settings", "tolerance"),
    [
        ((), ("optimizer.fused=true", "train.clip=fused"), 1e-6),
        ((), ("optimizer.fused=true",), 1e-6),
        ((), ("train.attention=plain",), 1e-6),
        ((), ("train.precision=bf16",), 5e-3),
        ((), ("train.precision=fp16",), 5e-3),
        (("optimizer.name=sgd",), ("optimizer.fused=true", "train.clip=fused"), 1e-6),
        (("optimizer.name=muon",), ("optimizer.fused=true",), 1e-6),
        (("optimizer.name=muon",), ("train.precision=bf16",), 5e-3),
        ((*LLAMA, "model.width=32"), ("train.attention=plain",), 1e-6),
        (LLAMA, ("train.precision=bf16",), 5e-3),
    ],
)
def test_optimization_trains_to_the_same_losses_within_its_class(
    tiny_config: Path,
    tmp_path: Path,
    shared: tuple[str, ...],
    settings: tuple[str, ...],
    tolerance: float,
) -> None:
    base = (
        "optimizer.fused=false", "train.attention=sdpa", "train.clip_norm=0.1",
        "train.clip=builtin", *shared,
    )  # fmt: skip
    train(tiny_config, tmp_path / "off", *base)
    train(tiny_config, tmp_path / "on", *base, *settings)
    assert losses(tmp_path / "on") == pytest.approx(losses(tmp_path / "off"), rel=tolerance)


def test_muon_is_clipped_in_a_pass_of_its_own(tiny_config: Path, tmp_path: Path) -> None:
    train(tiny_config, tmp_path / "run", "optimizer.name=muon")
    assert json.loads((tmp_path / "run/census.json").read_text())["clipping"] == "builtin"
    with pytest.raises(UsageError, match="muon takes no factor"):
        train(tiny_config, tmp_path / "other", "optimizer.name=muon", "train.clip=fused")


def test_fused_clipping_clips(tiny_config: Path, tmp_path: Path) -> None:
    base = ("optimizer.fused=true", "optimizer.epsilon=1.0", "train.clip=fused")
    train(tiny_config, tmp_path / "clipped", *base, "train.clip_norm=1e-3")
    train(tiny_config, tmp_path / "free", *base, "train.clip_norm=1e3")
    assert losses(tmp_path / "clipped")[-1] != pytest.approx(
        losses(tmp_path / "free")[-1], rel=1e-4
    )


def test_measuring_neither_saves_nor_evaluates(tiny_config: Path, tmp_path: Path) -> None:
    finished = train(tiny_config, tmp_path / "run", stop_after=5)
    assert finished.steps == 5
    assert finished.held_out_loss is None
    assert not (tmp_path / "run/checkpoints").exists()


def test_run_that_compiles_nothing_asks_no_compiler(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take 0.3 s to answer, at every start."""
    asked: list[object] = []
    monkeypatch.setattr(device, "why_compile_cannot_run", lambda it: asked.append(it) or "none")
    train(tiny_config, tmp_path / "eager", stop_after=1)
    assert not asked
    train(tiny_config, tmp_path / "auto", "train.compile=auto", stop_after=1)
    assert asked


def test_finished_run_is_not_trained_again_and_tells_what_it_found(
    tiny_config: Path, tmp_path: Path
) -> None:
    files = (tmp_path / "run/census.json", tmp_path / "run/steps.jsonl")
    first = train(tiny_config, tmp_path / "run")
    before = [file.read_bytes() for file in files]
    again = train(tiny_config, tmp_path / "run")
    assert [file.read_bytes() for file in files] == before
    assert (again.steps, again.loss) == (first.steps, first.loss)
    assert again.held_out_loss == first.held_out_loss
    assert again.tokens_per_s is not None


WILD = ("optimizer.learning_rate=1e30", "train.clip_norm=null", "schedule.warmup_steps=0")


def test_poisoned_weights_are_never_saved(tiny_config: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged):
        train(tiny_config, tmp_path / "run", *WILD, "checkpoint.every_steps=1")
    found, _ = store.latest(tmp_path / "run/checkpoints")
    if found is not None:
        saved = store.load(found, FILES)[0]["model"]
        assert all(torch.isfinite(weight).all() for weight in saved.values())


def test_measured_process_records_a_divergence_for_the_judge(
    tiny_config: Path, tmp_path: Path
) -> None:
    train(tiny_config, tmp_path / "run", *WILD, stop_after=12)
    assert any(
        loss != loss or abs(loss) == float("inf") for loss in losses(tmp_path / "run") if loss
    )


def test_pipe_in_a_run_directory_is_refused_and_not_waited_for(
    tiny_config: Path, tmp_path: Path
) -> None:
    for name in (".lock", "steps.jsonl", "evals.jsonl"):
        directory = tmp_path / name
        directory.mkdir()
        os.mkfifo(directory / name)
        with pytest.raises(UsageError, match="not a regular file"):
            train(tiny_config, directory)


def test_damaged_evaluations_are_one_clear_error(tiny_config: Path, tmp_path: Path) -> None:
    train(tiny_config, tmp_path / "run")
    for damage in (
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"[]\n",
        b'{"step": ' + b"9" * 5000 + b"}\n",
        b'{"step": "6", "loss": 1.0, "num_targets": 64}\n',
        b'{"step": 6, "loss": null, "num_targets": 64}\n',
    ):
        (tmp_path / "run" / "evals.jsonl").write_bytes(damage)
        with pytest.raises(UsageError, match="damaged evaluation"):
            train(tiny_config, tmp_path / "run")
    (tmp_path / "run" / "evals.jsonl").unlink()
    (tmp_path / "run" / "evals.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot read the evaluations"):
        train(tiny_config, tmp_path / "run")


def test_directory_of_another_run_is_refused(tiny_config: Path, tmp_path: Path) -> None:
    train(tiny_config, tmp_path / "run")
    with pytest.raises(UsageError, match=r"optimizer\.learning_rate"):
        train(tiny_config, tmp_path / "run", "optimizer.learning_rate=0.1")


def test_damaged_newest_checkpoint_falls_back_with_a_word(
    tiny_config: Path, tmp_path: Path
) -> None:
    train(tiny_config, tmp_path / "run")
    whole = losses(tmp_path / "run")
    newest = max((tmp_path / "run/checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"x")
    warnings: list[str] = []
    start(load_settings(tiny_config), tmp_path / "run", warn=warnings.append)
    assert "step-00000012" in warnings[0]
    assert losses(tmp_path / "run") == whole


def test_two_processes_do_not_train_in_one_directory(tiny_config: Path, tmp_path: Path) -> None:
    from hotloop.train.start import locked

    with locked(tmp_path / "run"), pytest.raises(EnvironmentFailed, match="another process"):
        train(tiny_config, tmp_path / "run")


def test_missing_device_is_the_environments_failure(tiny_config: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(EnvironmentFailed, match="not there"):
        train(tiny_config, tmp_path / "run", "train.device=cuda")
    with pytest.raises(UsageError, match="unknown device"):
        train(tiny_config, tmp_path / "run", "train.device=gpu7")


def test_model_too_small_for_the_tokenizer_is_refused(tiny_config: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="smaller than the tokenizer"):
        train(tiny_config, tmp_path / "run", "model.vocabulary=100")


def test_corpus_smaller_than_one_batch_is_refused(tiny_config: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        train(tiny_config, tmp_path / "run", "train.microbatch=100000")
    with pytest.raises(UsageError, match="one step takes"):
        train(tiny_config, tmp_path / "run", "train.grad_accum_steps=100000000")


def test_loop_stays_short_enough_to_read() -> None:
    assert len(Path(loop.__file__).read_text().splitlines()) < 300


def test_tensorboard_gets_every_step_and_its_absence_is_one_clear_error(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny_config, tmp_path / "run", "logging.tensorboard=true")
    seen = [value for _, value in scalars(tmp_path / "run", "loss")]
    assert seen == pytest.approx(losses(tmp_path / "run"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed") as caught:
        train(tiny_config, tmp_path / "other", "logging.tensorboard=true")
    assert "hotloop[tensorboard]" in (caught.value.do or "")
    train(tiny_config, tmp_path / "other")
    assert not (tmp_path / "other/tensorboard").exists()


def test_tensorboard_shows_each_step_once_after_a_kill_before_the_first_save(
    tiny_config: Path, tmp_path: Path, dies_after: Dies
) -> None:
    with dies_after(3):
        train(tiny_config, tmp_path / "run", "logging.tensorboard=true")
    train(tiny_config, tmp_path / "run", "logging.tensorboard=true")
    assert [step for step, _ in scalars(tmp_path / "run", "loss")] == list(range(12))
