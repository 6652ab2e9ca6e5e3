"""The Hugging Face Trainer with hotloop's checkpoints in the place of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from hotloop.checkpoint.checkpointer import Checkpointer, read
from hotloop.core.errors import UsageError


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """`TransformersCallback(trainer, directory)`: from then on `trainer` saves there, when its arguments say so.

    `trainer.train(resume_from_checkpoint=callback.latest())` continues from the newest one that verifies.
    """

    def __init__(self, trainer: Any, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        args = trainer.args
        several = args.world_size > 1 or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        refused = {"load_best_model_at_end": args.load_best_model_at_end, "push_to_hub": args.push_to_hub, "several processes": several}  # fmt: skip
        for what in (what for what, wanted in refused.items() if wanted):
            raise UsageError(f"TransformersCallback does not go with {what}", do="leave one out")
        self._trainer = trainer
        self._checkpointer = Checkpointer(directory, keep=keep)
        trainer._save_checkpoint = self._save
        trainer.add_callback(self)

    def _save(self, model: Any, trial: Any) -> None:
        trainer = self._trainer
        trainer.store_flos()
        for each in (*trainer.callback_handler.callbacks, trainer.control):
            if isinstance(each, ExportableState):
                trainer.state.stateful_callbacks[type(each).__name__] = each.state()
        self._checkpointer.save(
            trainer.state.global_step,
            model=trainer.accelerator.unwrap_model(trainer.model),
            optimizer=trainer.optimizer,
            scheduler=trainer.lr_scheduler,
            scaler=trainer.accelerator.scaler,
            extra=json.dumps(dataclasses.asdict(trainer.state)),
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """What was saved is on the disk when `train` returns."""
        self._checkpointer.wait()

    def latest(self) -> str | None:
        """A directory as the Trainer reads it, made of the newest checkpoint that verifies; `None` where there is none."""
        scaler = ("scaler",) if self._trainer.accelerator.scaler is not None else ()
        found = self._checkpointer.newest()
        if found is None:
            return None
        values = read(found, ("optimizer", "scheduler", *scaler, "extra", "random"))[1]
        root = self._checkpointer.directory / "resume"
        shutil.rmtree(root, ignore_errors=True)
        directory = root / f"checkpoint-{found.step}"
        directory.mkdir(parents=True)
        shutil.copyfile(found.path / "model.safetensors", directory / "model.safetensors")
        (directory / "trainer_state.json").write_text(values.pop("extra"), encoding="utf-8")
        random = values.pop("random")
        gpu = {"cuda": random["cuda"][torch.cuda.current_device()]} if "cuda" in random else {}
        values["rng_state"] = {"python": random["python"], "numpy": random["numpy"], "cpu": random["torch"]} | gpu  # fmt: skip
        for name, value in values.items():
            torch.save(value, directory / f"{name}.{'pth' if name == 'rng_state' else 'pt'}")
        return str(directory)
