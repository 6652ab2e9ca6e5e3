"""Checkpoints that are whole or not there, written beside the steps: of the trainer, and of anybody's loop.

    from hotloop.checkpoint import Checkpointer, ResumableLoader

Importing this loads no torch; the first of its names does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.checkpoint.background_files import save_in_background
    from hotloop.checkpoint.checkpointer import Checkpointer, Resumed, load_latest, save, wait
    from hotloop.checkpoint.lightning_io import LightningCheckpointIO
    from hotloop.checkpoint.loader import ResumableLoader
    from hotloop.checkpoint.transformers_callback import TransformersCallback

_FROM = {
    "LightningCheckpointIO": "lightning_io",
    "ResumableLoader": "loader",
    "TransformersCallback": "transformers_callback",
    "save_in_background": "background_files",
}
__all__ = ["Checkpointer", "LightningCheckpointIO", "ResumableLoader", "Resumed", "TransformersCallback", "load_latest", "save", "save_in_background", "wait"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_FROM.get(name, 'checkpointer')}"), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors", "transformers", "lightning"):
            error.msg = f"hotloop.checkpoint.{name} needs {error.name}: pip install {error.name}"
        raise
