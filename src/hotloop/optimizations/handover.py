"""How a loader's batches pass from the process that trains to worker processes, without a batch changing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils as torch_loading

from hotloop.optimizations.fork_hazards import left_open, open_files, why_no_room
from hotloop.optimizations.handing_over import HandingOver
from hotloop.optimizations.samples import (
    decoded,
    encoded,
    num_bytes,
    same,
    tensors_of,
    why_not_sent,
)
from hotloop.optimizations.unchanged import Unchanged
from hotloop.optimizations.worker_pool import PREFETCH, Indices, Pool, may_draw_later
from hotloop.probe.random_state import random_state, restore_state, same_state

if TYPE_CHECKING:
    from hotloop.optimizations.live import Report

LOOKS = (2, 3)
"""Watched batches: at least, and at most until the dataset has to have stopped changing itself."""


class Handover:
    """Of one loader, over its epochs."""

    def __init__(
        self,
        num_workers: int,
        updates: list[int],
        report: Report,
        *,
        script_workers: int = 0,
        persistent: bool = False,
        worker_init_fn: Any = None,
    ) -> None:
        """script_workers, persistent, worker_init_fn: as the loader has them."""
        self._num_workers = num_workers
        self._worker_init_fn = worker_init_fn
        self._updates = updates
        self._report = report
        self._off = False
        self._script_workers = script_workers
        self._persistent = persistent
        self._looks: list[str] = []
        """What the dataset was after each watched batch."""
        self._known: tuple[Any, bytes] | None = None
        """The last watched batch, with its index."""
        self._indices = Indices()
        self._pool: Pool | None = None
        self._copied = ""
        """What the dataset was when it was last copied: into our workers, or into the script's."""

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
    def replaces_workers(self) -> bool:
        """The script has workers: its own process draws no numbers, and changes no dataset of theirs."""
        return self._script_workers > 0

    @property
    def is_off(self) -> bool:
        """Something stood in the way."""
        return self._off

    def start_after(self, iterator: HandingOver, index: Any, batch: Any) -> bool:
        """Take over from workers of the script's, that made `batch`; without workers, make the rest here."""
        if self._num_workers:
            self._known = (index, encoded(batch))
            self._looks.append(iterator.state)
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
            self._copied = iterator.state
            self._watch(iterator)
        return not self._off

    def begin_now(self, iterator: HandingOver) -> None:
        """At the beginning of an epoch, as a loader that has workers does."""
        if self._pool is not None and self._begin_epoch(iterator):
            return
        if not self._num_workers:
            if not self._persistent:
                self._copied = iterator.state
            self._watch(iterator)
        if not iterator.left_over:
            try:
                iterator.left_over.append(iterator._next_index())
            except StopIteration:  # an epoch of nothing
                pass

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
        try:
            before = random_state()
        except Exception as error:  # noqa: BLE001 - a generator put in place of the usual one
            self._refuse(f"random numbers cannot be watched: {_in_short(error)}")
            return iterator.make_here()
        begins = iterator.num_indices == 0
        index = iterator._next_index()
        if not begins and not same_state(before, random_state()):
            self._refuse("its sampler draws random numbers as it goes")
        before, files = random_state(), open_files()
        batch = iterator._dataset_fetcher.fetch(index)
        if not same_state(before, random_state()):
            self._refuse("its dataset or collate function draws random numbers")
        elif kept := left_open(files, open_files()):
            self._refuse(f"making a batch uses {kept}, which workers would share")
        elif not self._off:
            try:
                self._look(iterator, index, batch)
            except Exception as error:  # noqa: BLE001 - looking must not stop the script
                self._refuse(f"its batches cannot be looked at: {_in_short(error)}")
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
        self._looks.append(iterator.state)
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
        self._copied = iterator.state
        if self._copied != self._looks[-1]:
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
        self._report.applied(
            f"{self._num_workers} workers make the batches of {dataset}",
            script_workers=self._script_workers,
        )
        self._watch(iterator)
        return True

    def _begin_epoch(self, iterator: HandingOver) -> bool:
        pool = self._pool
        assert pool is not None
        other = pool.user()
        if other is not None and other.by_workers:
            return False  # two at once over one loader: the first has the workers
        state = iterator.state
        self._give_indices(iterator)
        try:
            if state != self._copied and not self._persistent:  # theirs is what it was then
                pool.close()
                self._pool = self._forked(iterator)
                self._copied = state
            else:
                pool.begin(iterator)
        except Exception as error:  # noqa: BLE001
            self._give_up(iterator, f"a worker fails: {_in_short(error)}")
            return False
        iterator.by_workers = True
        self._watch(iterator)
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
            self._look_at_sampler()
            iterator.end()
            return iterator.make_here()
        except Exception as error:  # noqa: BLE001 - made here it shows whether the script's code fails
            self._give_up(iterator, f"a worker fails: {_in_short(error)}")
            return iterator.make_here()
        self._look_at_sampler()
        if self._indices.all_given:
            iterator.end()
        return batch

    def _look_at_sampler(self) -> None:
        if self._indices.drew:
            self._indices.drew = False
            self._wrong("its sampler drew random numbers before it would have")

    def _watch(self, iterator: HandingOver) -> None:
        """What stands in for the dataset is right while the script does not change it."""
        if not (self._num_workers and self.replaces_workers):  # those have copies just as ours do
            changed = "the script changed its dataset while batches of it were made"
            parts = iterator.parts
            iterator.unchanged = Unchanged(
                iterator, parts, self._copied, lambda: self._wrong(changed)
            )

    def drew_here(self) -> None:
        """In the process that trains, where workers of the script's would have."""
        self._wrong("its sampler, dataset or collate function draws random numbers")

    def _wrong(self, why: str) -> None:
        """Found too late: the rest is as ever all the same."""
        self._off = True
        self._report.wrong(why)

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
            watched=may_draw_later(iterator._index_sampler),
            first=first,
            begins=iterator.num_indices == 0,
        )
        if self._pool is not None:
            self._pool.use(self._indices)


def _in_short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
