"""Dropout that drops nothing, in runs whose losses are compared where batches have other shapes.

Runs inside the foreign interpreter. Dropout in another shape draws other numbers of the same distribution, so losses
differ as with another seed. With its probability at 0 in both runs, they differ by what else the change does.
What a script drops by numbers that it draws itself stays.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import nn

from hotloop.core.child import NO_DROPOUT

_FUNCTIONS = {
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), "p"),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), "p"),
    "scaled_dot_product_attention": "dropout_p",
}
"""Of `torch.nn.functional`, and the name of the probability."""
_PLACE = {"p": 1, "dropout_p": 4}


def install() -> None:
    """Replace torch's functions; its recurrent layers have it as an attribute."""
    for name, probability in _FUNCTIONS.items():
        original = getattr(nn.functional, name)
        setattr(nn.functional, name, _with_none(original, probability))
    made = nn.RNNBase.__init__

    @functools.wraps(made)
    def make(layer: Any, *args: Any, **kwargs: Any) -> None:
        made(layer, *args, **kwargs)
        layer.dropout = 0.0

    nn.RNNBase.__init__ = make  # type: ignore[method-assign, assignment]


def _with_none(original: Any, probability: str) -> Any:
    place = _PLACE[probability]

    def without(*args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        else:
            kwargs[probability] = 0.0
        made: torch.Tensor = original(*args, **kwargs)
        return made

    return functools.update_wrapper(without, original) if hasattr(original, "__name__") else without


def install_from_environment() -> None:
    """Begin, if the trial asked for it."""
    if os.environ.get(NO_DROPOUT):
        install()
