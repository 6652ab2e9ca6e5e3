"""Another number of workers for a loader that has some: the script's own end, others take over in mid-epoch.

The script's workers are watched meanwhile: one that draws random numbers would draw others elsewhere.
"""

from __future__ import annotations

import mmap
import multiprocessing
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
)

from hotloop.optimizations.dataset_state import fingerprint
from hotloop.optimizations.handing_over import HandingOver
from hotloop.optimizations.handover import Handover
from hotloop.optimizations.worker_pool import Sendable
from hotloop.probe import entry
from hotloop.probe.random_state import random_state, same_state

if TYPE_CHECKING:
    from hotloop.optimizations.live import Report

LOOKS = 8
"""First batches of a worker of the script's that are watched; of ours, each is."""


class Drawing:
    """Whether any worker drew a random number; forked ones share the answer. In ours, it is too late then."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._flag = mmap.mmap(-1, 1)
        entry.around_call(torch_fetch._MapDatasetFetcher, "fetch", self._fetch)

    @property
    def seen(self) -> bool:
        return self._flag[0] != 0

    def _fetch(self, original: Any, fetcher: Any, index: Any) -> Any:
        if get_worker_info() is None:
            return original(fetcher, index)
        ours = isinstance(fetcher.collate_fn, Sendable)
        looked = getattr(fetcher, "_looked", 0)
        if looked >= LOOKS and not ours:
            return original(fetcher, index)
        fetcher._looked = looked + 1
        before = getattr(fetcher, "_random", None) or random_state()
        batch = original(fetcher, index)
        fetcher._random = after = random_state()  # what is next begins with it: one look a batch
        if not same_state(before, after):
            if ours:
                self._report.wrong(
                    "its dataset or collate function drew random numbers in a worker"
                )
            else:
                self._flag[0] = 1
        return batch


def why_not_replaced(loader: Any, num_workers: int) -> str | None:
    """Why its workers are left as they are."""
    context = loader.multiprocessing_context or multiprocessing
    if loader._dataset_kind != _DatasetKind.Map:
        return "an IterableDataset, of which each worker gives its own part"
    if context.get_start_method() != "fork":
        return "its workers are not forked"
    if loader.timeout or not loader.in_order:
        return "it has a timeout, or gives batches as they come"
    if loader.worker_init_fn is not None and not num_workers:
        return "its worker_init_fn is for workers"
    return None


class Ending(_MultiProcessingDataLoaderIter):
    """The script's own iterator: its workers make what they were given, then `HandingOver` goes on."""

    def begin(self, replaced: Replaced) -> None:
        self._replaced = replaced
        self.updates_before = replaced.updates[0]
        self.given: deque[Any] = deque()
        """Indices given out since, oldest first; those before are `num_before`."""
        self.num_before = len(self._task_info)
        self.num_indices = self.num_before
        self.next_one: HandingOver | None = None

    def _next_index(self) -> Any:
        if self.next_one is not None:
            raise StopIteration
        index = super()._next_index()  # type: ignore[no-untyped-call]
        self.given.append(index)
        self.num_indices += 1
        return index

    def _next_data(self) -> Any:
        if self.next_one is None:
            index, batch = self.own_batch()
            if index is not None:
                self._replaced.look(self, index, batch)
            return batch
        if self._shutdown:
            return self.next_one._next_data()
        try:
            return self.own_batch()[1]
        except StopIteration:
            self._shutdown_workers()
            return self.next_one._next_data()

    def own_batch(self) -> tuple[Any, Any]:
        """From the script's workers, with its index where that is known."""
        batch = super()._next_data()  # type: ignore[no-untyped-call]
        if self.num_before:
            self.num_before -= 1
            return None, batch
        return self.given.popleft(), batch

    def successor(self, handover: Handover) -> HandingOver:
        """One that goes on with the same sampler."""
        iterator: Any = HandingOver.__new__(HandingOver)
        skipped = {"_workers", "_index_queues", "_worker_result_queue", "_data_queue", "given"}
        names = _attributes_of_base() - skipped
        vars(iterator).update({name: vars(self)[name] for name in names if name in vars(self)})
        iterator._num_workers = iterator._timeout = 0
        iterator._dataset_fetcher = _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
        )
        iterator.begin(handover, 0)
        iterator.num_indices = self.num_indices
        return iterator  # type: ignore[no-any-return]


def _attributes_of_base() -> set[str]:
    return {name for name in _BaseDataLoaderIter.__init__.__code__.co_names if name.startswith("_")}


class Replaced:
    """One loader whose workers are, or are to be, replaced."""

    def __init__(
        self,
        loader: Any,
        num_workers: int,
        updates: list[int],
        drawing: Drawing,
        report: Report,
    ) -> None:
        self.updates = updates
        self._num_workers = num_workers
        self._drawing = drawing
        self._report = report
        self._script_workers = loader.num_workers
        self._persistent = loader.persistent_workers
        self._worker_init_fn = loader.worker_init_fn
        self._copied: str | None = None
        """What the dataset was when the script's workers got their copies."""
        self._off = False
        self.handover: Handover | None = None
        """Since they were replaced."""

    def iterate(self, original: Any, loader: Any) -> Any:
        """What `iter(loader)` gives."""
        if self.handover is None or self.handover.is_off:
            ended = getattr(loader, "_iterator", None)  # where workers persist
            if isinstance(ended, Ending) and ended.next_one is not None:
                loader._iterator = None
            if self._copied is None or not self._persistent:
                self._copied = fingerprint(loader.dataset, loader.collate_fn)
            iterator = original(loader)
            fresh = isinstance(iterator, _MultiProcessingDataLoaderIter)
            if fresh and not self._off and self.handover is None:
                iterator.__class__ = Ending
                iterator.begin(self)
            return iterator
        iterator = self._without_workers(original, loader)
        iterator.__class__ = HandingOver
        iterator.begin(self.handover, 0)
        if not self._persistent:
            iterator._sampler_iter = iter(
                iterator._index_sampler
            )  # torch does it twice with workers
        self.handover.begin_now(iterator)
        return iterator

    def _without_workers(self, original: Any, loader: Any) -> Any:
        """With the random numbers that starting, or waking, the workers would draw."""
        generator = loader.generator or torch.default_generator
        state, number = generator.get_state(), loader.num_workers
        loader.num_workers = 0
        try:
            iterator = original(loader)
        finally:
            loader.num_workers = number
        if self._persistent:
            generator.set_state(state)
        return iterator

    def look(self, iterator: Ending, index: Any, batch: Any) -> None:
        """A batch whose index is known: replace them now, where it trains."""
        if self._off or self.updates[0] <= iterator.updates_before:
            return
        if self._drawing.seen:
            self._off = True
            self._report.refused("its workers draw random numbers")
            return
        if fingerprint(iterator._dataset, iterator._collate_fn) != self._copied:
            self._off = True
            self._report.refused("the script changes its dataset while it trains")
            return
        handover = Handover(
            self._num_workers,
            self.updates,
            self._report,
            script_workers=self._script_workers,
            persistent=self._persistent,
            worker_init_fn=self._worker_init_fn,
        )
        successor = iterator.successor(handover)
        try:
            started = handover.start_after(successor, index, batch)
        except Exception as error:  # noqa: BLE001 - the script's own workers go on
            self._report.refused(f"{type(error).__name__}: {error}")
            started = False
        if started:
            self.handover = handover
        else:
            self._off = True
        if self.handover is not None or successor.left_over:  # given out, and not to be given again
            iterator.next_one = successor
