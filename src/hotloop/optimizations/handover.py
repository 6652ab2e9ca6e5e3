"""How a loader's batches pass from the process that trains to worker processes, without a batch changing."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import _utils as torch_loading
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from hotloop.optimizations.dataset_state import fingerprint
from hotloop.optimizations.fork_hazards import left_open, open_files, why_no_room
from hotloop.optimizations.samples import (
    decoded,
    encoded,
    num_bytes,
    same,
    tensors_of,
    why_not_sent,
)
from hotloop.optimizations.worker_pool import PREFETCH, Indices, Pool
from hotloop.probe.random_state import random_state, restore_state, same_state

if TYPE_CHECKING:
    from hotloop.optimizations.live import Report

LOOKS = (2, 3)
"""Watched batches: at least, and at most until the dataset has to have stopped changing itself."""
KNOWN_SAMPLERS = (
    *(BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler),
    *(list, tuple, range),
)
"""They draw all their random numbers when an epoch begins."""


class HandingOver(_SingleProcessDataLoaderIter):
    """The script's own iterator, that may take a batch from workers."""

    def begin(self, handover: Handover, updates: int) -> None:
        """updates: of optimizers, so far."""
        self._handover = handover
        self.updates_before = updates
        self.by_workers = False
        self.left_over: deque[Any] = deque()
        """Indices that workers were given, and did not make."""
        self.num_indices = 0

    def _next_index(self) -> Any:
        if self.left_over:
            return self.left_over.popleft()
        self.num_indices += 1
        return super()._next_index()  # type: ignore[no-untyped-call]

    def _next_data(self) -> Any:
        return self._handover.next_batch(self)

    def make_here(self) -> Any:
        """As ever."""
        return super()._next_data()  # type: ignore[no-untyped-call]

    def num_left(self) -> int | None:
        """Indices that the sampler has not given out yet, where it knows."""
        try:
            return max(len(self._index_sampler) - self.num_indices, 0)
        except (TypeError, NotImplementedError):
            return None


class Handover:
    """Of one loader, over its epochs."""

    def __init__(
        self, num_workers: int, updates: list[int], report: Report, worker_init_fn: Any = None
    ) -> None:
        self._num_workers = num_workers
        self._worker_init_fn = worker_init_fn
        self._updates = updates
        self._report = report
        self._off = False
        self._looks: list[str] = []
        """What the dataset was after each watched batch."""
        self._known: tuple[Any, bytes] | None = None
        """The last watched batch, with its index."""
        self._indices = Indices()
        self._pool: Pool | None = None
        self._pool_state = ""

    def next_batch(self, iterator: HandingOver) -> Any:
        """From a worker where they make this epoch's batches, else made here."""
        if iterator.by_workers:
            return self._from_workers(iterator)
        if self._off or iterator.left_over or not self._num_workers:
            return iterator.make_here()
        if self._pool is not None:
            if iterator.num_indices == 0 and self._begin_epoch(iterator):
                return self._from_workers(iterator)
            return iterator.make_here()
        if self._may_start(iterator) and self._start(iterator):
            return self._from_workers(iterator)
        return iterator.make_here() if self._off else self._make_watched(iterator)

    @property
    def is_off(self) -> bool:
        """Something stood in the way."""
        return self._off

    def start_after(self, iterator: HandingOver, index: Any, batch: Any) -> bool:
        """Take over from workers of the script's, that made `batch`; without workers, make the rest here."""
        if self._num_workers:
            self._known = (index, encoded(batch))
            self._looks.append(_state_of(iterator))
            return self._start(iterator)
        before, files = random_state(), open_files()
        made = iterator._dataset_fetcher.fetch(index)
        if not same_state(before, random_state()):
            restore_state(before)
            self._refuse("its dataset or collate function draws random numbers in this process")
        elif kept := left_open(files, open_files()):
            self._refuse(f"making a batch uses {kept}, which its workers share")
        elif not same(made, batch):
            self._refuse("this process makes another batch than a worker does")
        else:
            name = type(iterator._dataset).__name__
            self._report.applied(f"the process that trains makes the batches of {name}")
        return not self._off

    def begin_now(self, iterator: HandingOver) -> None:
        """At the beginning of an epoch, as a loader that has workers does."""
        if self._pool is not None and self._begin_epoch(iterator):
            return
        iterator.left_over.append(iterator._next_index())

    def _refuse(self, why: str) -> None:
        self._off = True
        self._known = None
        self._report.refused(why)

    def _make_watched(self, iterator: HandingOver) -> Any:
        """A batch made here, and whether a worker could have made it."""
        if len(self._looks) == LOOKS[1]:
            return iterator.make_here()
        if threading.current_thread() is not threading.main_thread():
            self._refuse("a thread of the script's own iterates the loader")
            return iterator.make_here()
        before = random_state()
        begins = iterator.num_indices == 0
        index = iterator._next_index()
        if not begins and not same_state(before, random_state()):
            self._refuse("its sampler draws random numbers as it goes")
        before, files = random_state(), open_files()
        batch = iterator._dataset_fetcher.fetch(index)
        drew = not same_state(before, random_state())
        if not self._off:
            if drew:
                self._refuse("its dataset or collate function draws random numbers")
            elif kept := left_open(files, open_files()):
                self._refuse(f"making a batch uses {kept}, which workers would share")
            else:
                self._look(iterator, index, batch)
        if iterator._pin_memory:
            pin: Any = torch_loading.pin_memory.pin_memory
            batch = pin(batch, iterator._pin_memory_device)
        return batch

    def _look(self, iterator: HandingOver, index: Any, batch: Any) -> None:
        why = why_not_sent(batch)
        tensors, under_way = len(tensors_of(batch)), self._num_workers * PREFETCH + 2
        why = why or why_no_room(num_bytes(batch) * under_way, tensors * under_way)
        if why is not None:
            self._refuse(f"its batches cannot come from workers: {why}")
            return
        self._looks.append(_state_of(iterator))
        self._known = (index, encoded(batch))
        if len(self._looks) == LOOKS[1] and self._looks[-1] != self._looks[-2]:
            self._refuse("its dataset changes itself with each batch")

    def _may_start(self, iterator: HandingOver) -> bool:
        return (
            len(self._looks) >= LOOKS[0]
            and self._looks[-1] == self._looks[-2]
            and self._updates[0] > iterator.updates_before  # it trains: an update followed a batch
        )

    def _start(self, iterator: HandingOver) -> bool:
        """Fork the workers, and see that one of them makes the same batch as this process did."""
        assert self._known is not None
        index, content = self._known
        self._pool_state = _state_of(iterator)
        if self._pool_state != self._looks[-1]:
            self._refuse("the script changes its dataset while it trains")
            return False
        try:
            self._give_indices(iterator, first=index)
            self._pool = self._forked(iterator)
            iterator.by_workers = True
            made = self._pool.take()
        except Exception as error:  # noqa: BLE001 - whatever a worker, or forking one, may raise
            self._give_up(iterator, f"a worker fails: {_in_short(error)}")
            if iterator.left_over and iterator.left_over[0] is index:
                iterator.left_over.popleft()  # made and given already
            return False
        if not same(made, decoded(content)):
            self._give_up(iterator, "a worker makes another batch than this process does")
            return False
        self._known = None
        dataset = type(iterator._dataset).__name__
        self._report.applied(f"{self._num_workers} workers make the batches of {dataset}")
        return True

    def _begin_epoch(self, iterator: HandingOver) -> bool:
        pool = self._pool
        assert pool is not None
        other = pool.user()
        if other is not None and other.by_workers:
            return False  # two at once over one loader: the first has the workers
        state = _state_of(iterator)
        self._give_indices(iterator)
        try:
            if state != self._pool_state:  # theirs is what it was when they were forked
                pool.close()
                self._pool = self._forked(iterator)
                self._pool_state = state
            else:
                pool.begin(iterator)
        except Exception as error:  # noqa: BLE001
            self._give_up(iterator, f"a worker fails: {_in_short(error)}")
            return False
        iterator.by_workers = True
        return True

    def _from_workers(self, iterator: HandingOver) -> Any:
        pool = self._pool
        assert pool is not None
        try:
            batch = pool.take()
        except StopIteration:
            iterator.by_workers = False
            if self._indices.failure is not None:
                failure, self._indices.failure = self._indices.failure, None
                raise failure from None
            if _state_of(iterator) != self._pool_state:
                self._give_up(iterator, "the script changes its dataset while it trains")
            return iterator.make_here()
        except Exception as error:  # noqa: BLE001 - made here it shows whether the script's code fails
            self._give_up(iterator, f"a worker fails: {_in_short(error)}")
            return iterator.make_here()
        if self._indices.drew:
            self._indices.drew = False
            self._report.refused("its sampler drew random numbers as it went")
        return batch

    def _give_up(self, iterator: HandingOver, why: str) -> None:
        """The rest is made here, what workers were given first."""
        self._refuse(why)
        iterator.by_workers = False
        iterator.left_over.extend(self._indices.under_way)
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _forked(self, iterator: HandingOver) -> Pool:
        init = self._worker_init_fn
        return Pool(iterator, self._indices, self._num_workers, worker_init_fn=init)

    def _give_indices(self, iterator: HandingOver, first: Any = None) -> None:
        self._indices = Indices()
        self._indices.begin(
            iterator._sampler_iter,
            left=iterator.num_left(),
            watched=_is_watched(iterator._index_sampler),
            first=first,
        )
        if self._pool is not None:
            self._pool.use(self._indices)


def _state_of(iterator: HandingOver) -> str:
    return fingerprint(iterator._dataset, iterator._collate_fn)


def _is_watched(sampler: Any) -> bool:
    """Whether it may draw random numbers as it goes."""
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return type(sampler) not in KNOWN_SAMPLERS or getattr(sampler, "generator", None) is not None


def _in_short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
