"""What sets how often a Trainer evaluates, saves and logs is read from it, by the names that it has for that."""

from __future__ import annotations

import sys
from dataclasses import fields
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from hotloop.core.config import TrainConfig
from hotloop.probe.attach.trainer_seen import trainer_seen
from hotloop.train import loop

transformers = pytest.importorskip("transformers")

LOOP = """
def train(self):
    return frame()
"""


def frame() -> FrameType:
    return sys._getframe(1)


def seen_in(module: str, holder: Any) -> dict[str, Any]:
    """From a frame of a method of `holder` in that module."""
    scope: dict[str, Any] = {"__name__": module, "frame": frame}
    exec(LOOP, scope)
    return trainer_seen(scope["train"](holder))


def trainer(**said: Any) -> SimpleNamespace:
    state = transformers.TrainerState(max_steps=200, eval_steps=25, save_steps=50, logging_steps=5)
    how = {f"{name}_strategy": transformers.IntervalStrategy(each) for name, each in said.items()}
    return SimpleNamespace(args=SimpleNamespace(**how), state=state)


def test_each_strategy_of_the_trainer_has_its_argument() -> None:
    found = seen_in("transformers.trainer", trainer(eval="steps", save="epoch", logging="no"))
    assert found == {
        "planned_steps": 200,
        "how_often": {"eval": "eval_steps=25", "checkpoint": 'save_strategy="epoch"'},
    }


def test_the_steps_of_its_own_config_are_planned() -> None:
    scope: dict[str, Any] = {"__name__": loop.__name__, "frame": frame}
    exec("def train(run):\n    config = run.config\n    return frame()", scope)
    run = SimpleNamespace(config=SimpleNamespace(train=TrainConfig(steps=70)))
    assert trainer_seen(scope["train"](run)) == {"planned_steps": 70}


def test_the_installed_trainer_has_these_names() -> None:
    names = {field.name for field in fields(transformers.TrainingArguments)}
    for name in ("eval", "save", "logging"):
        assert {f"{name}_strategy", f"{name}_steps"} <= names
        assert hasattr(transformers.TrainerState(), f"{name}_steps")


def lightning(interval: Any) -> SimpleNamespace:
    holder = SimpleNamespace(
        max_steps=-1, val_check_interval=interval, check_val_every_n_epoch=1, log_every_n_steps=50
    )
    return SimpleNamespace(trainer=holder)  # a loop of it


@pytest.mark.parametrize(
    ("interval", "named"),
    [
        (0.25, {"eval": "val_check_interval=0.25, check_val_every_n_epoch=1"}),
        (20, {"eval": "val_check_interval=20"}),
        (None, {}),  # by the clock
    ],
)
def test_lightning_evaluates_by_epochs_or_by_batches(interval: Any, named: dict[str, str]) -> None:
    found = seen_in("lightning.pytorch.loops.fit_loop", lightning(interval))
    assert found == {"how_often": {**named, "logging": "log_every_n_steps=50"}}


def test_nothing_is_read_from_other_code() -> None:
    assert seen_in("my_trainer", trainer(eval="steps")) == {}
