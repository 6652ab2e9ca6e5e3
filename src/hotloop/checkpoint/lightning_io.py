"""Lightning with hotloop's checkpoints in the place of its files: `Trainer(plugins=[LightningCheckpointIO()])`."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from hotloop.checkpoint import store
from hotloop.checkpoint.background import Saver
from hotloop.checkpoint.checkpointer import read, snapshot
from hotloop.checkpoint.loader import random_states, set_random_states
from hotloop.checkpoint.ranks import rank
from hotloop.core.errors import UsageError


class LightningCheckpointIO(CheckpointIO):  # type: ignore[misc]
    """Each path that Lightning saves to becomes a directory with one checkpoint, written beside the next steps. One process saves
    to a path at a time."""

    def __init__(self) -> None:
        self._saver = Saver(unattended=True)
        self._buffers: dict[str, dict[str, Tensor]] = {}
        self._removed: list[Path] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # fmt: skip
        """Copy it, after the save before has ended; its error is raised here."""
        self.teardown()
        tensors, state = snapshot({"extra": checkpoint, "random": random_states()}, self._buffers)
        self._buffers = tensors
        step = int(checkpoint["global_step"])
        self._saver.begin(partial(_save_alone, Path(path), step, tensors=tensors, state=state))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:  # fmt: skip
        """The checkpoint, on the CPU, if it verifies; random states are as they were."""
        self.teardown()
        found, problems = store.latest(Path(path))
        if found is None:
            what = f"no checkpoint here verifies: {problems[0] if problems else 'none is there'}"
            raise UsageError(what, where=str(path), do="use another one")
        values = read(found, ("extra", "random"))[1]
        if rank() == 0:  # they are of rank 0: another one would draw the same
            set_random_states(values["random"])
        checkpoint: dict[str, Any] = values["extra"]
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Once the save that is under way has ended well: what is removed may be the last good one until then."""
        self._removed.append(Path(path))

    def teardown(self) -> None:
        """Wait for the save that is under way, and raise its error: then nothing is removed, for it may be the last good one."""
        self._saver.wait()
        removed, self._removed = self._removed, []
        self._saver.check()
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)


def _save_alone(path: Path, step: int, **content: Any) -> None:
    """Once committed it is the only one in its path, as a file would be: an earlier run may have left a later step there."""
    saved = store.save(path, step, keep=2, **content)
    for other in store.entries(path):
        if other.name != saved.path.name and other.state != "set aside":
            store.remove(path / other.name)
