"""A DataLoader that knows its position: how many batches of this epoch were taken, and where its order came from.

The order of an epoch is drawn when it begins. So its random states of then are kept, and a loader that continues
draws the same order from them, passes over the batches that were taken without fetching one, and leaves the
random states as it found them. That it is the same order is checked: by a sum of the indices passed over.
"""

from __future__ import annotations

import copy
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hotloop.core.errors import UsageError


class ResumableLoader:
    """Yields the same batches as `loader`, a `torch.utils.data.DataLoader`, also as `accelerator.prepare` returned it, and
    continues where a checkpoint was taken.

    What a loader's workers draw themselves (augmentation) is not continued within an epoch, only from the next one on.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        own = "give it to the checkpointer as it is, if it has `state_dict` and `load_state_dict`"
        plain = source_of(loader)
        if not isinstance(plain, DataLoader) or hasattr(plain, "state_dict"):
            raise UsageError(f"a {type(plain).__name__} is no plain torch DataLoader", do=own)
        if isinstance(plain.dataset, IterableDataset):
            own = "use torchdata's StatefulDataLoader for it"
            raise UsageError("an IterableDataset has no indices to continue by", do=own)
        if plain.num_workers and not getattr(plain, "in_order", True):
            raise UsageError("batches of in_order=False have no position", do="leave in_order out")
        if type(loader).__name__ == "DataLoaderDispatcher":
            what = "with dispatch_batches=True only one process has a position"
            raise UsageError(what, do="leave dispatch_batches out")
        self._inner = copy.copy(plain)  # the caller's own stays as it is
        key = "sampler" if plain.batch_sampler is None else "batch_sampler"
        self._indices = _Indices(self, getattr(plain, key))
        # past `__setattr__`, which lets nobody replace a sampler
        vars(self._inner).update({key: self._indices, "_iterator": None})
        self._is_prepared = plain is not loader
        self.loader = _fetching_from(loader, self.begun) if self._is_prepared else loader
        self.epoch = 0
        """Epochs that were taken to their end."""
        self.batches = 0
        """Batches of this epoch that were taken."""
        self._checksum = 0
        """Of their indices."""
        self.start: dict[str, Any] | None = None
        """The random states that this epoch's order was drawn from."""
        self._resuming = self._was_ahead = False
        self._current: object = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not made yet: while it is unpickled or copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        mine = self._current = object()
        if not self._resuming:
            self.batches, self._checksum = 0, 0
        batches = iter(self.loader) if self._is_prepared else self.begun()
        for batch in batches:
            if self._current is mine:
                self.batches += 1
                self._checksum = self._indices.newest.checksums.popleft()
            yield batch
        if self._current is mine:
            self._set_epoch(self.epoch + 1)
            self.batches, self._checksum, self.start = 0, 0, None

    def begun(self) -> Iterator[Any]:
        """This epoch's batches after those that were taken."""
        if not self._resuming:
            return iter(self._inner)
        now = self.states()
        self._resuming = False
        self._indices.passing = self.batches
        batches: Iterator[Any] = iter(self._inner)
        if self._indices.newest.drawn is None:  # without workers nothing was asked for yet
            self._indices.newest.begin()
        self._indices.passing = 0
        if self._indices.newest.passed != self._checksum:
            raise UsageError(
                f"the order of epoch {self.epoch + 1} is another than before: of other data, or drawn otherwise",
                do="use the same data, and seed a sampler's own generator from the epoch",
            )
        if self._was_ahead:  # the generators were, too, and have now drawn what was taken
            set_random_states(now)
        else:
            self.set_states(now)
        return batches

    def _set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if self._is_prepared:  # by it Accelerate seeds its samplers
            self.loader.iteration = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where it is: to be given to `load_state_dict` of the same loader in another process."""
        generators = [generator.get_state() for generator in self._generators()]
        start = self.start if self.batches else None
        is_ahead = self._was_ahead if self._resuming else self.batches > 0 and bool(self._indices.newest.checksums)  # fmt: skip
        return {"epoch": self.epoch, "batches": self.batches, "checksum": self._checksum, "start": start, "generators": generators, "is_ahead": is_ahead}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there with the next iteration."""
        there, here = len(state["generators"]), len(self._generators())
        if there != here:
            raise UsageError(f"the checkpoint's loader has {there} generators and this one {here}")
        self._set_epoch(state["epoch"])
        self.batches, self._checksum = state["batches"], state["checksum"]
        self._was_ahead = state.get("is_ahead", False)
        self.start = state["start"]
        for generator, saved in zip(self._generators(), state["generators"], strict=True):
            generator.set_state(saved)
        self._resuming = self.batches > 0
        self._current = None  # an iteration that goes on counts no more

    def _generators(self) -> list[torch.Generator]:
        """Of the loader and its samplers, each once."""
        owners, inner = [self.loader, self.loader.sampler], self.loader.batch_sampler
        while inner is not None:
            owners.append(inner)
            inner = getattr(inner, "batch_sampler", getattr(inner, "sampler", None))
        # what has a seed for each epoch makes its generator from it
        found = [getattr(owner, "generator", None) for owner in owners if not hasattr(owner, "initial_seed")]  # fmt: skip
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())

    def states(self) -> dict[str, Any]:
        return random_states() | {"generators": [g.get_state() for g in self._generators()]}

    def set_states(self, states: dict[str, Any]) -> None:
        set_random_states(states)
        for generator, state in zip(self._generators(), states["generators"], strict=True):
            generator.set_state(state)


def source_of(loader: Any) -> Any:
    """The DataLoader that one of Accelerate's fetches from; of anything else that itself."""
    return getattr(loader, "__dict__", {}).get("base_dataloader", loader)


def _fetching_from(prepared: Any, begun: Callable[[], Iterator[Any]]) -> Any:
    """Accelerate's loader again, which fetches, a batch ahead of the loop, from what `begun` returns for each epoch."""
    inner = copy.copy(prepared.base_dataloader)
    inner.__class__ = type("Begun", (type(inner),), {"__iter__": lambda _: begun()})
    found = object.__new__(type(prepared))
    vars(found).update(vars(prepared), base_dataloader=inner)
    return found


class _Indices:
    """In the place of the loader's (batch) sampler."""

    def __init__(self, owner: ResumableLoader, sampler: Any) -> None:
        self.owner = owner
        self.sampler = sampler
        self.newest: Any = None
        self.passing = 0
        """Batches that an earlier process took of the epoch that begins next."""

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks twice when it begins, and takes the indices of the second.
        self.newest = epoch = _Epoch(self)
        return epoch

    def __len__(self) -> int:
        return len(self.sampler)


class _Epoch:
    """The indices of an epoch, whose order is drawn with the first of them."""

    def __init__(self, of: _Indices) -> None:
        self._of = of
        self._passing = of.passing
        self.drawn: Any = None
        self._checksum = self.passed = 0
        self.checksums: deque[int] = deque()
        """After each batch that was drawn and is not taken yet; at last one more, of the end."""

    def begin(self) -> None:
        """Draw the order, and pass over what an earlier process took."""
        owner = self._of.owner
        if self._passing and owner.start is not None:
            owner.set_states(owner.start)
        else:
            owner.start = owner.states()
        self.drawn = iter(self._of.sampler)
        for _ in range(self._passing):
            self._count(next(self.drawn, None))
        self.passed = self._checksum

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        if self.drawn is None:
            self.begin()
        indices = self._count(next(self.drawn, None))
        self.checksums.append(self._checksum)
        if indices is None:
            raise StopIteration
        return indices

    def _count(self, indices: Any) -> Any:
        self._checksum = zlib.crc32(repr(indices).encode(), self._checksum)
        return indices


def random_states() -> dict[str, Any]:
    """All of them, to be given to `set_random_states`."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy.random")) is not None:
        states["numpy"] = numpy.get_state()
    # Asked of a process that has not used it, CUDA would take its memory for nothing.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Restore them; those of GPUs as far as they are here. Raises `KeyError`, `TypeError`, `ValueError` or `RuntimeError`."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        for index, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)
