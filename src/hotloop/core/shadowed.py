"""A room that has the name of a function of `hotloop`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import hotloop


def stay_callable(room: str) -> None:
    """Python puts the package `hotloop.NAME` in the place of the function `hotloop.NAME`; it is still to be called there."""
    called = vars(hotloop)[room.rpartition(".")[2]]

    class Called(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return called(*args, **kwargs)

    sys.modules[room].__class__ = Called
