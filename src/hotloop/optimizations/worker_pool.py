"""Worker processes that make a loader's batches ahead, in the order of the script's own sampler."""

from __future__ import annotations

import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hotloop.optimizations.samples import why_not_sent
from hotloop.probe.random_state import random_state, same_state

PREFETCH = 2
"""Batches under way per worker: torch's own default."""

KNOWN_SAMPLERS = (
    *(BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler),
    *(list, tuple, range),
)
"""They draw all their random numbers when an epoch begins."""


class Indices:
    """What the workers are to make next. Holds back where the sampler says that it ends: a sampler that is
    asked beyond its end may draw random numbers, and the script may never have gone that far."""

    def __init__(self) -> None:
        self.under_way: deque[Any] = deque()
        self.drew = False
        """The sampler drew random numbers ahead of the time at which it would have."""
        self.failure: Exception | None = None
        """What the sampler raised; the script gets it when all before it was handed out."""
        self._first: Any = None
        self._rest: Iterator[Any] = iter(())
        self._left: int | None = 0
        self._watched = False
        self._begins = False

    def begin(
        self,
        rest: Iterator[Any],
        *,
        left: int | None,
        watched: bool,
        first: Any = None,
        begins: bool = False,
    ) -> None:
        """first: goes before the rest. left: how many the rest has, where that is known. begins: with an
        epoch, whose first index is asked for when it would have been."""
        self.under_way.clear()
        self._begins = begins
        self._first, self._rest, self._left, self._watched = first, rest, left, watched

    @property
    def all_given(self) -> bool:
        """Each has been made and taken; `False` where that is not known yet."""
        return self._left == 0 and self._first is None and not self.under_way

    def __iter__(self) -> Indices:
        return self

    def __next__(self) -> Any:
        if self._first is not None:
            index, self._first = self._first, None
        elif self._left == 0:
            raise StopIteration
        else:
            index = self._from_sampler()
            if self._left is not None:
                self._left -= 1
        self.under_way.append(index)
        return index

    def _from_sampler(self) -> Any:
        before = random_state() if self._watched and not self._begins else None
        self._begins = False
        try:
            return next(self._rest)
        except StopIteration:
            raise
        except Exception as error:
            self.failure = error
            raise StopIteration from error
        finally:
            if before is not None:
                self.drew = self.drew or not same_state(before, random_state())


class Sendable:
    """The collate function, in a worker: what could not be sent is an error there, and no silence here."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, data: Any) -> Any:
        batch = self._collate(data)
        why = why_not_sent(batch)
        if why is not None:
            raise TypeError(f"a worker cannot send {why}")
        return batch


class Pool(_MultiProcessingDataLoaderIter):
    """Forked workers that live through epochs. They draw no number from the script's random state."""

    def __init__(
        self,
        iterator: _BaseDataLoaderIter,
        indices: Indices,
        num_workers: int,
        *,
        worker_init_fn: Any = None,
        prefetch: int = PREFETCH,
    ) -> None:
        """iterator: the script's own, whose batches are made; indices: of what is left of them."""
        self.indices = indices
        self.user: weakref.ref[Any] = weakref.ref(iterator)
        self.settings = SimpleNamespace(
            dataset=iterator._dataset,
            _dataset_kind=iterator._dataset_kind,
            _IterableDataset_len_called=None,
            _auto_collation=iterator._auto_collation,
            _index_sampler=self.indices,
            drop_last=iterator._drop_last,
            num_workers=num_workers,
            pin_memory=iterator._pin_memory,
            pin_memory_device="",
            timeout=0,
            collate_fn=Sendable(iterator._collate_fn),
            generator=torch.Generator().manual_seed(int(iterator._base_seed)),
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing.get_context("fork"),
            persistent_workers=True,
            prefetch_factor=prefetch,
            in_order=True,
        )
        super().__init__(self.settings)

    def use(self, indices: Indices) -> None:
        """Of another epoch, from its beginning on."""
        self.indices = self.settings._index_sampler = self._index_sampler = indices

    def begin(self, iterator: Any) -> None:
        """Another epoch, whose `indices` are in use already."""
        self.user = weakref.ref(iterator)
        self._reset(self.settings)

    def take(self) -> Any:
        """The next batch. Raises `StopIteration` where no index was given out; and what a worker raised."""
        batch = self._next_data()  # type: ignore[no-untyped-call]
        self.indices.under_way.popleft()
        return batch

    def close(self) -> None:
        """End the workers."""
        self._shutdown_workers()


def may_draw_later(sampler: Any) -> bool:
    """Whether it may draw random numbers as it goes."""
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return type(sampler) not in KNOWN_SAMPLERS or getattr(sampler, "generator", None) is not None
