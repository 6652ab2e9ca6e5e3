"""The examples of `hotloop.fit` with a module: which are trained on, and which held out."""

from __future__ import annotations

import random
from numbers import Real
from typing import Any

from torch.utils.data import Subset

from hotloop.core.errors import UsageError


class Part(Subset[Any]):
    """Some of the examples that were given."""


def divided(data: Any, validation: Any, seed: int) -> tuple[Any, Any]:
    """Those to train on, and those held out or `None`; a number is the part of `data` that is. Raises `UsageError`."""
    _check("data", data)
    if validation is None:
        return data, None
    if not isinstance(validation, Real):
        _check("validation", validation)
        return data, validation
    part, num = float(validation), len(data)
    if not 0 <= part < 1:
        do = "give a part of the examples (0.1; 0 for none), or other examples"
        raise UsageError(f"{part:g} is no part of the examples", where="`validation`", do=do)
    held = min(round(part * num) or 1, num - 1) if part else 0
    if not held:
        return data, None
    out = {*random.Random(seed).sample(range(num), held)}
    return Part(data, [n for n in range(num) if n not in out]), Part(data, sorted(out))


def number_of(examples: Any, index: int) -> int:
    """As they were given."""
    return examples.indices[index] if isinstance(examples, Part) else index


def _check(name: str, examples: Any) -> None:
    if not hasattr(examples, "__len__") or not hasattr(examples, "__getitem__"):
        raise UsageError(
            "examples are drawn by number, and these have no length or no numbers",
            where=f"`{name}`, {type(examples).__name__}",
            do="give a list, or a Dataset with __len__ and __getitem__",
        )
    if not len(examples):
        raise UsageError("there are no examples", where=f"`{name}`")
