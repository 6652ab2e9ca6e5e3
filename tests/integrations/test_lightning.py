"""`LightningWatch` in the real Trainer."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from planted_training import BATCH, Model, Rows, entries
from torch.utils.data import DataLoader

from hotloop.core.errors import UsageError

try:
    import lightning.pytorch as lightning
except ModuleNotFoundError:
    lightning = pytest.importorskip("pytorch_lightning", reason="lightning is not installed")

from hotloop.integrations import LightningWatch

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning itself


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch)["loss"]
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class ByHand(Module):
    """Two optimizers, stepped by the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = torch.nn.Linear(2, 2)

    def training_step(self, batch: Any, number: int) -> None:
        loss = super().training_step(batch, number) + self.other.weight.square().mean()
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        first.step()
        second.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.AdamW(each.parameters()) for each in (self.model, self.other)]


def fit(
    directory: Path,
    *callbacks: Any,
    steps: int = 40,
    breaks_at: int | None = None,
    every: int = 5,
    module: Any = None,
    **more: Any,
) -> Any:
    trainer = lightning.Trainer(
        max_steps=steps,
        callbacks=[*callbacks],
        logger=lightning.loggers.CSVLogger(str(directory)),
        log_every_n_steps=every,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        **more,
    )
    trainer.fit(module or Module(), DataLoader(Rows(10_000, breaks_at=breaks_at), batch_size=BATCH))
    return trainer


def logged(trainer: Any) -> list[dict[str, str]]:
    with (Path(trainer.logger.log_dir) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_it_finds_what_was_planted_and_writes_to_the_logger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = entries()
    callback = LightningWatch(steps=None)
    watched = fit(tmp_path, callback)
    assert entries() == before
    assert "HL106" in [each.code for each in callback.findings]
    assert callback.seen.diagnosis.breakdown["data_wait"] > 0.3
    assert capsys.readouterr().err.count("watching took") == 1
    rows = logged(watched)
    waits = [float(each["hotloop/data_wait_fraction"]) for each in rows if each["hotloop/step_s"]]
    assert len(waits) >= 2
    # Five steps in which the machine stood still may be those of one log.
    assert median(waits) > 0.3
    assert 0 < float(rows[-1]["hotloop/watch_cost_fraction"]) < 0.2
    plain = logged(fit(tmp_path / "plain"))
    assert [e["loss"] for e in plain if e["loss"]] == [e["loss"] for e in rows if e["loss"]]


def test_gradients_of_several_batches_are_logged_once_for_their_step(tmp_path: Path) -> None:
    watch = LightningWatch(steps=None, show=False)
    rows = logged(fit(tmp_path, watch, accumulate_grad_batches=4))
    steps = [each["step"] for each in rows if each["hotloop/step_s"]]
    assert len(steps) >= 3
    assert len(steps) == len(set(steps))


def test_several_optimizers_are_one_step_and_stand_where_the_loss_does(tmp_path: Path) -> None:
    callback = LightningWatch(steps=None, show=False)
    rows = logged(
        fit(tmp_path, callback, steps=80, module=ByHand())
    )  # of two optimizers: 40 batches
    shown = [int(each["step"]) for each in rows if each["hotloop/step_s"]]
    assert len(shown) >= 3
    assert set(shown) <= {int(each["step"]) for each in rows if each["loss"]} | {40}
    steps = callback.seen.diagnosis.steps
    assert 20 < steps.measured + steps.warmup + steps.left_out <= 40


def test_a_trainer_that_logs_nothing_is_watched(tmp_path: Path) -> None:
    callback = LightningWatch(steps=10, show=False)
    fit(tmp_path, callback, steps=60, every=0)
    assert callback.seen.to_dict()["doctor"]["ended"] == "enough_steps"


def test_a_fit_that_raises_is_let_go_of_and_the_next_one_is_watched(tmp_path: Path) -> None:
    before = entries()
    callback = LightningWatch(steps=10, show=False)
    with pytest.raises(RuntimeError, match="row 100 is broken"):
        fit(tmp_path, callback, breaks_at=100)
    assert entries() == before
    assert callback.seen.to_dict()["doctor"]["ended"] == "failed"
    fit(tmp_path, callback, steps=60)
    assert callback.seen.to_dict()["doctor"]["ended"] == "enough_steps"


def test_two_at_once_are_refused_at_the_start_of_the_second(tmp_path: Path) -> None:
    callback = LightningWatch(show=False)
    seen: list[str] = []

    class Nests(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, number: int) -> None:  # fmt: skip
            if number == 3:
                for each in (callback, LightningWatch()):
                    with pytest.raises(UsageError) as error:
                        fit(tmp_path / "inner", each)
                    seen.append(str(error.value))

    fit(tmp_path, callback, Nests())
    assert "this LightningWatch watches another training" in seen[0]
    assert "hotloop.watch inside hotloop.watch" in seen[1]
    assert callback.seen.to_dict()["doctor"]["ended"] == "by_itself"


def test_its_fit_keeps_it_also_after_its_bound(tmp_path: Path) -> None:
    before, callback, refused = entries(), LightningWatch(steps=10, show=False), []

    class Nests(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, number: int) -> None:  # fmt: skip
            if number == 59:
                assert entries() == before
                with pytest.raises(UsageError, match="watches another training, which has not"):
                    fit(tmp_path / "inner", callback)
                refused.append(number)

    fit(tmp_path, callback, Nests(), steps=60)
    assert refused == [59]
    first = callback.seen
    fit(tmp_path / "inner", callback, steps=5)
    assert callback.seen is not first
