"""`hotloop.watch` as a callback of somebody else's Trainer. Importing this loads no framework; a name loads its own.

- `TransformersWatch`: `transformers.Trainer(..., callbacks=[TransformersWatch()])`
- `LightningWatch`: `lightning.Trainer(callbacks=[LightningWatch()])`
- `AccelerateWatch`: `accelerate.Accelerator(log_with=[AccelerateWatch(), "tensorboard"])`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import UsageError

if TYPE_CHECKING:
    from hotloop.integrations.accelerate import AccelerateWatch
    from hotloop.integrations.lightning import LightningWatch
    from hotloop.integrations.transformers import TransformersWatch

__all__ = ["AccelerateWatch", "LightningWatch", "TransformersWatch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = name.removesuffix("Watch").lower()
    try:
        return getattr(import_module(f"{__name__}.{package}"), name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name} needs {package}, and {error.name} is not installed here",
            do=f"pip install {package}",
        ) from error
