"""`hotloop.watch` as a callback of somebody else's Trainer. Importing this loads no framework; a name loads its own.

- `TransformersWatch`: `transformers.Trainer(..., callbacks=[TransformersWatch()])`
- `LightningWatch`: `lightning.Trainer(callbacks=[LightningWatch()])`
- `AccelerateWatch`: `accelerate.Accelerator(log_with=[AccelerateWatch(), "tensorboard"])`
- `TransformersCallback` and `LightningCheckpointIO`: those of `hotloop.checkpoint`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import UsageError

if TYPE_CHECKING:
    from hotloop.checkpoint import LightningCheckpointIO, TransformersCallback
    from hotloop.integrations.accelerate import AccelerateWatch
    from hotloop.integrations.lightning import LightningWatch
    from hotloop.integrations.transformers import TransformersWatch

_SAVES = {"LightningCheckpointIO": "lightning", "TransformersCallback": "transformers"}
"""Those of `hotloop.checkpoint`, and what each needs."""
__all__ = ["AccelerateWatch", "LightningCheckpointIO", "LightningWatch", "TransformersCallback", "TransformersWatch"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = _SAVES.get(name) or name.removesuffix("Watch").lower()
    place = "hotloop.checkpoint" if name in _SAVES else f"{__name__}.{package}"
    try:
        return getattr(import_module(place), name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name} needs {package}, and {error.name} is not installed here",
            do=f"pip install {package}",
        ) from error
