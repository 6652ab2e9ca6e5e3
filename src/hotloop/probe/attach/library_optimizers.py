"""Optimizers of libraries that are none of torch's: their updates are updates all the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hotloop.probe import entry
from hotloop.probe.attach.boundary import Boundary
from hotloop.probe.attach.watch import Watch
from hotloop.probe.imports import Action, after_import

UPDATING = {
    "fastai.optimizer": ("Optimizer", "step"),
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", "apply"),
}
"""By module: the class, and its method that updates the weights."""


def watch_library_optimizers(watch: Watch, boundary: Boundary) -> None:
    """Hook them once they are imported."""

    def update(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watch.guarded(boundary.before_update, optimizer)
        result = original(optimizer, *args, **kwargs)
        watch.guarded(boundary.after_update, optimizer)
        return result

    def around(owner: str, name: str) -> Action:
        def hook(module: ModuleType) -> None:
            entry.around_call(getattr(module, owner), name, update)

        return hook

    after_import(
        {module: around(*where) for module, where in UPDATING.items()},
        lambda name, error: watch.note_now(f"not seen: {name}: {error}"),
    )
