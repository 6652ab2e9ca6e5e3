"""Whether a script that steps no optimizer of torch changes its weights all the same."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

MOST_TENSORS, MOST_VALUES = 8, 64
MOST_NODES = 2000
"""Of a graph, to find its leaves."""


class Weights:
    """The first values of a few weights, as they were."""

    def __init__(self) -> None:
        self._kept: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    def keep(self, weights: Iterable[torch.Tensor]) -> None:
        """Remember these."""
        learned = (each for each in weights if each.requires_grad and each.is_floating_point())
        with torch.no_grad():
            self._kept = [
                (weakref.ref(each), _head(each).clone()) for each in islice(learned, MOST_TENSORS)
            ]

    def have_changed(self) -> bool:
        """Whether one has other values than then. Waits for the device."""
        with torch.no_grad():
            alive = [(each, kept) for held, kept in self._kept if (each := held()) is not None]
            if not alive:
                return bool(self._kept)  # others took their places
            return any(not torch.equal(_head(each), kept) for each, kept in alive)


def _head(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().reshape(-1)[:MOST_VALUES]


def leaves_of(loss: Any) -> list[torch.Tensor]:
    """The tensors that gradients of `loss` were accumulated in."""
    losses = loss if isinstance(loss, (list, tuple)) else [loss]
    waiting = [getattr(each, "grad_fn", None) for each in losses]
    seen: set[Any] = set()
    found = []
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        waiting += [each for each, _ in node.next_functions]
    return found
