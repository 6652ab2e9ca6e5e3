"""Batches that the workers of DataLoaders have ready, seen at each step by the clock of a trial."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hotloop.core.child import GIVEN
from hotloop.probe.entry import around_call


class BatchQueue:
    """How many batches the workers of DataLoaders have made, against how many the training took.

    A queue that was filled during a slow first step feeds a fast loop for a while: over steps that are fed by
    it the loop looks faster than its workers can keep up.
    """

    def __init__(self) -> None:
        self.taken = 0
        self.samples = 0
        """In batches that were taken while gradients were on, of all loaders; see `count_samples`. Not in those of an epoch in
        which nothing learned from them."""
        self._unused = 0
        """Of them, those taken since something learned."""
        self._has_loader = False
        self._ended: Any = None
        """What drew the indices of the loader that has ended since: a script may fetch the batches of a step, and learn then."""
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last: weakref.ref[Any] | None = None

    def install(self) -> None:
        """Hook torch's iterators."""
        around_call(_MultiProcessingDataLoaderIter, "_next_data", self._next)

    def count_samples(self) -> None:
        """Hook torch's iterators for `samples`: a step of larger batches is compared by them."""
        GIVEN.append(self._gave)
        around_call(_BaseDataLoaderIter, "__next__", self._counted)

    def _counted(self, original: Any, iterator: Any) -> Any:
        try:
            batch = original(iterator)
        except StopIteration:
            self._ended = iterator._index_sampler
            raise
        self._has_loader = True
        if torch.is_grad_enabled():  # else it evaluates
            if self._ended not in (None, iterator._index_sampler):
                self.samples -= self._unused
                self._unused, self._ended = 0, None
            number = num_samples(iterator, batch)
            self.samples += number
            self._unused += number
        return batch

    def _gave(self, num_samples: int) -> None:
        """Unless they came out of a loader, whose batches are counted."""
        if not self._has_loader:
            self.samples += num_samples

    def learned(self) -> None:
        """From what was taken by now: a pass backward, or an update."""
        self._unused, self._ended = 0, None

    @property
    def ready(self) -> int:
        """Batches that workers have made and the training has not taken."""
        return sum(_ready(each) for each in self._iterators)

    def look(self) -> tuple[int, int | None, bool | None]:
        """Taken so far, `ready`, and whether the loader that gave the last batch had another one to ask its workers for;
        the latter two `None` where none was taken."""
        if self._last is None:
            return 0, None, None
        iterator = self._last()
        try:
            more = iterator is not None and (
                len(iterator._task_info) >= iterator._prefetch_factor * iterator._num_workers
            )
        except (AttributeError, TypeError):  # another torch
            more = True
        return self.taken, self.ready, more

    def _next(self, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        if self._last is None or self._last() is not iterator:
            self._iterators.add(iterator)
            self._last = weakref.ref(iterator)
        self.taken += 1
        return batch


def _ready(iterator: Any) -> int:
    """Received and waiting for its turn, or sent and not received."""
    try:
        received = sum(len(task) == 2 for task in iterator._task_info.values())
        queues = {id(q): q for q in (iterator._worker_result_queue, iterator._data_queue)}
        return received + sum(int(queue.qsize()) for queue in queues.values())
    except (AttributeError, NotImplementedError, OSError):  # another torch, macOS, or it has ended
        return 0


def num_samples(iterator: Any, batch: Any) -> int:
    """How many went into a batch, as torch's loader knows, whatever a collate function of the script's makes of them (one packed
    row); else as its first tensor shows."""
    sampler, is_stacked = iterator._index_sampler, iterator._collate_fn is default_collate
    size = getattr(sampler, "batch_size", None)
    if not isinstance(sampler, BatchSampler) or not isinstance(size, int) or is_stacked:
        return _num_samples(batch, None if is_stacked else size)
    try:  # the last batch of an epoch may be smaller
        left = len(sampler.sampler) - size * (iterator._num_yielded - 1)  # type: ignore[arg-type]
    except (AttributeError, TypeError, NotImplementedError):  # nobody knows how many there are
        return size
    return left if 0 < left < size else size


def _num_samples(batch: Any, batch_size: Any) -> int:
    """Of a batch's first tensor: its first dimension, or a later one that is as long as the loader's batches are."""
    if isinstance(batch, torch.Tensor):
        if batch_size in batch.shape:
            return int(batch_size)
        return batch.shape[0] if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, (Mapping, list, tuple)):  # an iterator would be used up
        return 0
    return next((found for part in parts if (found := _num_samples(part, batch_size))), 0)
