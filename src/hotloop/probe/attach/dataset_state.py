"""A cheap fingerprint of what a loader's workers hold a copy of: workers that live on do not see what is changed later."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

MOST = 2_000
"""Values that are looked at; what has more is compared by these."""
DEPTH = 4
ITEMS = 64
"""Of each container, beside its length."""


def state_of(*held: Any) -> int:
    """A hash of numbers, texts, identities and lengths within these objects. An array changed in place is not noticed,
    a tensor is."""
    found: list[object] = []
    for each in held:
        _look(each, DEPTH, found, set())
    return hash(tuple(found))


_CHANGES = re.compile(r"\bdataset\.(?!__)\w+(\.\w+)*\s*(=[^=]|\()|\bset_epoch\(")
"""`loader.dataset.mosaic = False`, `dataset.set_epoch(e)`: perhaps only late in a training."""


def may_change(files: Iterable[str]) -> bool:
    """Whether a line of these sources seems to set an attribute of a dataset or to call a method of it."""
    for file in files:
        with contextlib.suppress(OSError):
            if _CHANGES.search(Path(file).read_text(encoding="utf-8", errors="replace")):
                return True
    return False


def _look(value: Any, depth: int, found: list[object], seen: set[int]) -> None:
    if len(found) >= MOST:
        return
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        found.append(value)
        return
    found.append(id(value))
    if isinstance(value, torch.Tensor):
        found.append(value._version)
    if isinstance(value, (torch.Tensor, type)) or not depth or id(value) in seen:
        return
    seen.add(id(value))
    inner: Iterable[tuple[object, Any]]
    if isinstance(value, Mapping):
        inner = value.items()
        found.append(len(value))
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
        found.append(len(value))
    else:
        owner = getattr(value, "__self__", value)  # a method: what it is of
        inner = getattr(owner, "__dict__", {}).items()
    for key, item in islice(inner, ITEMS):
        found.append(str(key))
        _look(item, depth - 1, found, seen)
