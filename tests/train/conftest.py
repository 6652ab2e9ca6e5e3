"""Sickness to plant into a training run, bound to the data, so that it comes back wherever they do."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

from hotloop.core.errors import Interrupted
from hotloop.data.loader import Batch, Loader
from hotloop.models.decoder import Decoder
from hotloop.train import loop

Plant = Callable[..., None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """`plant({position: factor})`: the gradients of the microbatch of 4 at a position are multiplied.

    With `loss=True` its loss as well. Evaluations see nothing of it.
    """

    def planted(factors: Mapping[int, float], *, loss: bool = False) -> None:
        waiting: deque[int] = deque()
        real_batch, real_call = Loader.batch, Decoder.__call__

        def batch(self: Loader, position: int, num_sequences: int) -> Batch:
            if (
                num_sequences == 4 and self.items._order == "shuffled"
            ):  # held-out text is read in sequence
                waiting.append(position)
            return real_batch(self, position, num_sequences)

        def call(self: Decoder, *args: Any) -> torch.Tensor:
            value = real_call(self, *args)
            factor = factors.get(waiting.popleft(), 1.0)
            if loss:
                return value * factor
            value.register_hook(lambda gradient: gradient * factor)
            return value

        monkeypatch.setattr(Loader, "batch", batch)
        monkeypatch.setattr(Decoder, "__call__", call)

    return planted


@pytest.fixture
def dies_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[None]]:
    """`with dies_after(n): train(...)`: the process ends in its n+1st update, as a kill -9 would."""

    @contextmanager
    def dying(updates: int) -> Iterator[None]:
        real, done = loop.update, 0

        def dies(*args: Any) -> dict[str, torch.Tensor]:
            nonlocal done
            done += 1
            if done > updates:
                raise RuntimeError("killed")
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "update", dies)
            with pytest.raises(RuntimeError, match="killed"):
                yield

    return dying


@pytest.fixture
def stops_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[None]]:
    """`with stops_after(n): train(...)`: a SIGTERM comes in the nth update, and the process saves and ends behind it."""

    @contextmanager
    def stopping(updates: int) -> Iterator[None]:
        real, done = loop.update, 0

        def stops(*args: Any) -> dict[str, torch.Tensor]:
            nonlocal done
            done += 1
            if done == updates:
                signal.raise_signal(signal.SIGTERM)
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "update", stops)
            with pytest.raises(Interrupted, match=r"SIGTERM: stopped .* saved at step"):
                yield

    return stopping
