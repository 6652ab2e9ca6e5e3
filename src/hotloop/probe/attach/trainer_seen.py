"""What a Trainer around the loop, or `hotloop train`, says of itself: how many steps it makes; how often it evaluates, saves and logs."""

from __future__ import annotations

from types import FrameType
from typing import Any

from hotloop.probe.attach.sites import outward, variables_of

TRAINERS = ("transformers.trainer", "lightning.pytorch", "pytorch_lightning")
OWN = "hotloop.train.loop"
_OFTEN = {"eval": "eval", "checkpoint": "save", "logging": "logging"}
"""Phase -> what the arguments of transformers' Trainer begin with that set how often it comes."""


def trainer_seen(frame: FrameType | None) -> dict[str, Any]:
    """Fields of the census; none without a Trainer around this frame."""
    found: dict[str, Any] = {}
    for each in outward(frame):
        module = each.f_globals.get("__name__", "")
        if module == OWN and (config := variables_of(each).get("config")) is not None:
            found.setdefault("planned_steps", config.train.steps)
        if not module.startswith(TRAINERS):
            continue
        holder = variables_of(each).get("self")
        trainer = getattr(holder, "trainer", holder)
        for owner in (getattr(holder, "state", None), trainer, holder):
            steps = getattr(owner, "max_steps", None)
            if isinstance(steps, int) and steps > 0:
                found.setdefault("planned_steps", steps)
        if often := _transformers(holder) or _lightning(trainer):
            found.setdefault("how_often", often)
    return found


def _transformers(trainer: Any) -> dict[str, str]:
    args, state = getattr(trainer, "args", None), getattr(trainer, "state", None)
    found = {}
    for phase, name in _OFTEN.items():
        strategy = getattr(getattr(args, f"{name}_strategy", None), "value", None)
        if strategy == "steps":
            found[phase] = f"{name}_steps={getattr(state, f'{name}_steps', None)}"
        elif strategy == "epoch":
            found[phase] = f'{name}_strategy="epoch"'
    return found


def _lightning(trainer: Any) -> dict[str, str]:
    found = {}
    often, logs = (
        getattr(trainer, f"{name}", None) for name in ("val_check_interval", "log_every_n_steps")
    )
    if isinstance(often, int | float):
        epochs = f", check_val_every_n_epoch={trainer.check_val_every_n_epoch}"
        found["eval"] = f"val_check_interval={often}{epochs if isinstance(often, float) else ''}"
    if isinstance(logs, int):
        found["logging"] = f"log_every_n_steps={logs}"
    return found
