"""Numbers that go wrong in a real run: planted into the data of one step, seen, counted, acted on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from trainings import losses, records, saved, train

from hotloop.checkpoint import store
from hotloop.core.config import RunConfig
from hotloop.core.errors import ExitCode, UsageError
from hotloop.train import loop
from hotloop.train.run import Run
from hotloop.train.stability import TrainingDiverged
from hotloop.train.update import can_skip_on_device, refuse_waiting_update

Plant = Callable[..., None]
Dies = Callable[[int], AbstractContextManager[None]]

NAN = math.nan
SKIP = "stability.nonfinite=skip"
WATCH = ("stability.window_steps=4", "stability.spike_factor=20")


def steps_with(directory: Path, tag: str) -> list[int]:
    return [record.step for record in records(directory) if tag in record.tags]


def everything_moved_by(run: Run) -> dict[str, torch.Tensor]:
    """Weights and optimizer state, as they are."""
    names = {id(p): name for name, p in run.model.named_parameters()}
    tensors = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    for p, slots in run.optimizer.state.items():
        tensors |= {f"{names[id(p)]}/{k}": torch.as_tensor(v).clone() for k, v in slots.items()}
    return tensors


@pytest.fixture
def around_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """What every update began with and left behind."""
    seen = []
    real = loop.update

    def update(run: Run, *args: Any) -> dict[str, torch.Tensor]:
        before = everything_moved_by(run)
        late = real(run, *args)
        seen.append((before, everything_moved_by(run)))
        return late

    monkeypatch.setattr(loop, "update", update)
    return seen


def is_same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    """Bit for bit. State that only came into being counts as unmoved while it is zero."""
    return all(torch.equal(value, after[name]) for name, value in before.items()) and all(
        not value.any() for name, value in after.items() if name not in before
    )


OPTIMIZERS = [
    (),
    ("train.clip=builtin",),
    ("optimizer.fused=false",),
    ("train.clip_norm=null",),
    ("optimizer.name=sgd", "optimizer.nesterov=true"),
    ("optimizer.name=sgd", "optimizer.fused=false"),
    ("optimizer.name=muon",),
    ("optimizer.name=muon", "optimizer.nesterov=false", "train.precision=bf16"),
    ("optimizer.name=muon", "optimizer.fused=false"),
    ("train.microbatch=4", "train.grad_accum_steps=2"),
]


@pytest.mark.parametrize(
    ("settings", "sick", "factor"),
    [
        *((settings, 5, NAN) for settings in OPTIMIZERS),
        ((), 0, math.inf),
        (("optimizer.fused=false",), 0, NAN),
        (("optimizer.name=sgd", "optimizer.nesterov=true"), 0, NAN),  # before it has any momentum
        (("optimizer.name=muon",), 0, math.inf),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_update_of_a_gradient_that_is_no_number_is_left_out_to_the_last_bit(
    tiny_config: Path,
    tmp_path: Path,
    plant: Plant,
    around_updates: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]],
    settings: tuple[str, ...],
    sick: int,
    factor: float,
) -> None:
    per_step = 8 if "train.grad_accum_steps=2" in settings else 4
    plant({sick * per_step: factor})
    finished = train(tiny_config, tmp_path / "run", SKIP, "optimizer.weight_decay=0.1", *settings)
    assert finished.steps == 12
    moved = [not is_same(*pair) for pair in around_updates]
    assert moved == [step != sick for step in range(12)]
    assert steps_with(tmp_path / "run", "skipped") == [sick]
    assert not math.isfinite(records(tmp_path / "run")[sick].grad_norm or 0.0)
    assert all(math.isfinite(loss or NAN) for loss in losses(tmp_path / "run"))
    tensors, _ = saved(tmp_path / "run")
    assert all(value.isfinite().all() for value in tensors["optimizer"].values())
    assert json.loads((tmp_path / "run/census.json").read_text())["num_skipped"] == 1
    assert finished.num_skipped == 1


@pytest.mark.parametrize("settings", [*OPTIMIZERS[:2], *OPTIMIZERS[4:9:2]], ids=" ".join)
def test_being_ready_to_leave_updates_out_changes_nothing_in_a_healthy_run(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    train(tiny_config, tmp_path / "plain", *settings)
    train(tiny_config, tmp_path / "ready", SKIP, "stability.spikes=skip", *settings)
    assert losses(tmp_path / "ready") == losses(tmp_path / "plain")
    ready, plain = saved(tmp_path / "ready")[0], saved(tmp_path / "plain")[0]
    for file in ("model", "optimizer"):
        assert ready[file].keys() == plain[file].keys()
        assert all(torch.equal(ready[file][name], plain[file][name]) for name in ready[file])


def test_by_default_it_stops_keeps_what_was_saved_and_says_where(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({6 * 4: NAN})
    with pytest.raises(TrainingDiverged) as caught:
        train(tiny_config, tmp_path / "run")
    assert caught.value.what == "the gradient norm became nan at step 6"
    assert "stability.nonfinite=skip" in (caught.value.do or "")
    assert caught.value.exit_code == ExitCode.FOUND
    found, _ = store.latest(tmp_path / "run/checkpoints")
    assert found is not None
    assert found.step == 4
    assert math.isnan(records(tmp_path / "run")[-1].grad_norm or 0.0)
    # What the message says to do.
    finished = train(tiny_config, tmp_path / "run", SKIP)
    assert (finished.steps, finished.num_skipped) == (12, 1)
    assert steps_with(tmp_path / "run", "skipped") == [6]


def test_command_exits_1_with_the_remedy_and_tells_what_it_left_out(
    tiny_config: Path, tmp_path: Path, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    from hotloop.cli.main import run

    plant({6 * 4: NAN})
    command = ["train", str(tiny_config), "--out", str(tmp_path / "run")]
    assert run(command) == 1
    errors = capsys.readouterr().err
    assert "error: the gradient norm became nan at step 6" in errors
    assert "continue with `stability.nonfinite=skip`" in errors
    assert "Traceback" not in errors
    assert run([*command, SKIP]) == 0
    assert "stability: 1 update left out\n" in capsys.readouterr().out


def test_loss_that_is_no_number_is_told_as_such(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({3 * 4: math.inf}, loss=True)
    with pytest.raises(TrainingDiverged, match="the loss became inf at step 3"):
        train(tiny_config, tmp_path / "run", "train.clip_norm=null")


def test_too_many_updates_left_out_in_a_row_end_the_run(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({step * 4: NAN for step in (1, 2, 5, 6, 7, 8)})
    with pytest.raises(TrainingDiverged, match="3 updates in a row were left out") as caught:
        train(tiny_config, tmp_path / "run", SKIP, "stability.max_skips=3")
    assert "the last one at step 7" in caught.value.what
    assert "gradient norm nan" in caught.value.what
    assert steps_with(tmp_path / "run", "skipped") == [1, 2, 5, 6, 7]


def test_overflow_in_fp16_is_left_out_and_tagged_and_the_scale_falls(
    tiny_config: Path,
    tmp_path: Path,
    plant: Plant,
    around_updates: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]],
) -> None:
    plant({5 * 4: 1e38})
    for fused in ("true", "false"):
        run = tmp_path / fused
        train(tiny_config, run, "train.precision=fp16", f"optimizer.fused={fused}")
        assert steps_with(run, "skipped") == [5]
        assert saved(run)[1]["scaler"]["scale"] == 2.0**15
        assert [is_same(*pair) for pair in around_updates] == [step == 5 for step in range(12)]
        around_updates.clear()


def test_fp16_whose_scale_falls_below_1_has_diverged(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({step * 4: NAN for step in range(30)})
    settings = ("train.precision=fp16", "train.steps=30")
    with pytest.raises(TrainingDiverged, match="16 updates in a row were left out"):
        train(tiny_config, tmp_path / "run", *settings)
    with pytest.raises(TrainingDiverged, match=r"scale of fp16 fell to 0\.5 at step 16"):
        train(tiny_config, tmp_path / "other", *settings, "stability.max_skips=100")


def test_spike_is_tagged_and_counted_and_changes_nothing_by_default(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({7 * 4: 1000.0})
    finished = train(tiny_config, tmp_path / "run", *WATCH)
    assert steps_with(tmp_path / "run", "spike") == [7]
    assert steps_with(tmp_path / "run", "skipped") == []
    assert (finished.num_spikes, finished.num_skipped) == (1, 0)
    census = json.loads((tmp_path / "run/census.json").read_text())
    assert (census["num_spikes"], census["num_skipped"], census["num_rollbacks"]) == (1, 0, 0)


def test_spike_of_the_loss_is_seen_without_clipping(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({7 * 4: 1.5}, loss=True)
    train(tiny_config, tmp_path / "run", "train.clip_norm=null", "stability.window_steps=4")
    assert records(tmp_path / "run")[7].grad_norm is None
    assert steps_with(tmp_path / "run", "spike") == [7]


def test_absurd_learning_rate_is_seen_as_spikes(tiny_config: Path, tmp_path: Path) -> None:
    wild = ("optimizer.learning_rate=3", "schedule.name=constant", "schedule.warmup_steps=6")
    finished = train(tiny_config, tmp_path / "run", *wild, "stability.window_steps=4")
    assert finished.num_spikes > 0
    train(tiny_config, tmp_path / "tame", "stability.window_steps=4")
    assert steps_with(tmp_path / "tame", "spike") == []


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("optimizer.fused=false",),
        ("optimizer.name=sgd",),
        ("optimizer.name=muon",),
        ("train.precision=fp16",),
        ("train.precision=fp16", "optimizer.fused=false"),
    ],
    ids=" ".join,
)
def test_spike_is_left_out_where_asked(
    tiny_config: Path,
    tmp_path: Path,
    plant: Plant,
    around_updates: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]],
    settings: tuple[str, ...],
) -> None:
    # At fp16's first scales a spike is an overflow: they are brought down before.
    overflows = list(range(5)) if "train.precision=fp16" in settings else []
    plant({7 * 4: 50.0, **{step * 4: NAN for step in overflows}})
    train(tiny_config, tmp_path / "run", *WATCH, "stability.spikes=skip", *settings)
    left_out = [*overflows, 7]
    assert [is_same(*pair) for pair in around_updates] == [step in left_out for step in range(12)]
    assert steps_with(tmp_path / "run", "skipped") == left_out
    assert steps_with(tmp_path / "run", "spike") == [7]
    if overflows:  # the scale learns nothing from a spike that did not overflow
        assert saved(tmp_path / "run")[1]["scaler"]["scale"] == 2.0**11


@pytest.mark.parametrize(
    ("killed_after", "settings"),
    [
        (6, WATCH),
        (9, WATCH),
        *((after, (*WATCH, SKIP, "stability.spikes=skip")) for after in (3, 6, 9)),
        (6, (*WATCH, SKIP, "stability.spikes=skip", "optimizer.name=muon")),
        (
            9,
            (*WATCH, SKIP, "stability.spikes=skip", "train.precision=fp16", "optimizer.name=sgd"),
        ),
    ],
)
def test_killed_run_continues_to_the_same_skips_spikes_and_losses(
    tiny_config: Path,
    tmp_path: Path,
    plant: Plant,
    dies_after: Dies,
    settings: tuple[str, ...],
    killed_after: int,
) -> None:
    sick = {5 * 4: 1000.0, 7 * 4: 300.0, 8 * 4: 1000.0}
    if SKIP in settings:
        sick[2 * 4] = NAN
    if "train.precision=fp16" in settings:
        sick = {**{step * 4: NAN for step in range(5)}, 7 * 4: 50.0}
    plant(sick)
    train(tiny_config, tmp_path / "whole", "model.dropout=0.1", *settings)
    with dies_after(killed_after):
        train(tiny_config, tmp_path / "killed", "model.dropout=0.1", *settings)
    train(tiny_config, tmp_path / "killed", "model.dropout=0.1", *settings)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert steps_with(whole, "spike")
    for tag in ("spike", "skipped"):
        assert steps_with(killed, tag) == steps_with(whole, tag)
    assert losses(killed) == losses(whole)
    assert saved(killed)[1]["stability"] == saved(whole)[1]["stability"]


def test_measured_process_goes_on_and_records_it(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({step * 4: NAN for step in range(2, 12)})
    settings = (SKIP, "stability.max_skips=2")
    assert train(tiny_config, tmp_path / "run", *settings, stop_after=8).steps == 8
    assert steps_with(tmp_path / "run", "skipped") == [2, 3, 4, 5, 6, 7]


def test_leaving_updates_out_on_a_gpu_needs_a_fused_optimizer() -> None:
    def config(**stability: str) -> RunConfig:
        values = {
            "data": {"source": "python-stdlib"},
            "optimizer": {"fused": False},
            "stability": stability,
        }
        return RunConfig.model_validate(values)

    gpu = torch.device("cuda")
    with pytest.raises(UsageError, match="waits for the device") as caught:
        refuse_waiting_update(config(spikes="skip"), gpu)
    assert "optimizer.fused: true" in (caught.value.do or "")
    refuse_waiting_update(config(spikes="rollback"), gpu)
    refuse_waiting_update(config(nonfinite="skip"), torch.device("cpu"))
    refuse_waiting_update(config(nonfinite="skip").replaced({"optimizer.fused": True}), gpu)


def test_settings_without_effect_are_refused(tiny_config: Path, tmp_path: Path) -> None:
    for setting, fix in (
        ("stability.max_skips=3", "stability.nonfinite"),
        ("stability.max_rollbacks=3", "stability.spikes: rollback"),
    ):
        with pytest.raises(UsageError, match="has no effect here") as caught:
            train(tiny_config, tmp_path / "run", setting, "train.precision=fp32")
        assert fix in (caught.value.do or "")
    with pytest.raises(UsageError, match="has no effect here") as caught:
        train(tiny_config, tmp_path / "run", "stability.spike_factor=3", "train.clip_norm=null")
    for every, why in (("0", "makes none"), ("auto", "lets the clock say")):
        settings = ("stability.spikes=rollback", f"checkpoint.every_steps={every}")
        with pytest.raises(
            UsageError, match=rf"checkpoint\.every_steps: {every}` {why}.*set a number"
        ):
            train(tiny_config, tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()


def test_fused_optimizers_are_recognised() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    for fused in (True, False):
        for kind in (torch.optim.AdamW, torch.optim.SGD):
            assert can_skip_on_device(kind([weight], lr=0.1, fused=fused)) is fused
