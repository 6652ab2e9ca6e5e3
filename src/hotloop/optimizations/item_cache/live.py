"""A running script's dataset whose samples are made once: the first time as before, then from memory, each a fresh copy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from hotloop.optimizations.item_cache.item_store import ItemStore, memory_for_items
from hotloop.optimizations.item_cache.samples import decoded, encoded, fingerprint, same
from hotloop.optimizations.live_report import Report
from hotloop.probe import entry
from hotloop.probe.attach.batch_times import random_state, same_state
from hotloop.probe.foreign_process import before_end

CHECKS = 4
"""Items that are made again and compared: the first of a run right away, and up to as many of each later
epoch in each process."""
ITEMS_PER_CHECK = 64


def apply(value: Any, report: Report) -> None:
    """Have loaders that may train cache the samples of their datasets: up to `value` MB, and a quarter of what is
    available."""
    kept: dict[int, CachedSamples] = {}

    def iterate(original: Any, loader: Any) -> Any:
        items = None
        if torch.is_grad_enabled() and loader._dataset_kind == _DatasetKind.Map:
            try:
                items = _of(loader, kept, int(value) * 1_000_000, report)
                items.begin_epoch()
            except Exception as error:  # noqa: BLE001 - the script must go on whatever happens here
                report.refused(f"{type(error).__name__}: {error}")
        iterator = original(loader)
        if items is not None and not loader.num_workers:  # else they have copies of what it was
            iterator._cached_samples = items.watch(iterator)
        return iterator

    def advance(original: Any, iterator: Any) -> Any:
        look = getattr(iterator, "_cached_samples", None)
        if look is None:
            return original(iterator)
        try:
            batch = original(iterator)
        except StopIteration:
            look()
            raise
        if _is_last(iterator):
            look()
        return batch

    def make(original: Any, fetcher: Any, *args: Any, **kwargs: Any) -> None:
        original(fetcher, *args, **kwargs)
        items = kept.get(id(fetcher.dataset))
        if items is not None and items.dataset is fetcher.dataset:
            many = callable(getattr(fetcher.dataset, "__getitems__", None))
            fetcher.dataset = (_CachedManyAtOnce if many else _Cached)(items)

    entry.around_call(DataLoader, "__iter__", iterate)
    entry.around_call(_BaseDataLoaderIter, "__next__", advance)
    entry.around_call(torch_fetch._BaseDatasetFetcher, "__init__", make)


def _of(
    loader: Any, kept: dict[int, CachedSamples], limit_bytes: int, report: Report
) -> CachedSamples:
    dataset = loader.dataset
    items = kept.get(id(dataset))
    if items is None or items.dataset is not dataset:
        if any(type(each.dataset) is type(dataset) for each in kept.values()):
            report.refused("another dataset object is made for each epoch, so nothing is kept")
        store = ItemStore(len(dataset), memory_for_items(limit_bytes))
        items = kept[id(dataset)] = CachedSamples(dataset, store, report)
    return items


def _is_last(iterator: Any) -> bool:
    """Whether its loader gives no more batches, as far as it knows how many it has."""
    try:
        return bool(iterator._num_yielded >= len(iterator._index_sampler))
    except (TypeError, NotImplementedError):
        return False


class _Cached:
    """What a fetcher takes for the dataset."""

    def __init__(self, items: CachedSamples) -> None:
        self._items = items

    def __getitem__(self, index: Any) -> Any:
        return self._items.item(index)

    def __len__(self) -> int:
        return len(self._items.dataset)


class _CachedManyAtOnce(_Cached):
    def __getitems__(self, indices: Any) -> Any:
        return self._items.items(indices)


_LOOKS: list[weakref.finalize[..., Any]] = []
"""For changes of a dataset, in epochs that are not over."""


def _look_at_all() -> None:
    for look in _LOOKS:
        look()


before_end(_look_at_all)


class CachedSamples:
    """The cache of one dataset. Whatever does not come out the same twice ends the caching, in all processes."""

    def __init__(self, dataset: Any, store: ItemStore, report: Report) -> None:
        self.dataset = dataset
        self._store = store
        self._report = report
        self._name = type(dataset).__name__
        self._state: str | None = None
        self._num_changes = 0
        self._made = 0
        self._epoch = 0
        self._checks = 0

    def begin_epoch(self) -> None:
        """In the process that trains: cached samples are true while the dataset is what it was."""
        self._store.begin_epoch()
        if not self._made and self._store.head.used_bytes == 0:
            return
        state = fingerprint(self.dataset)
        if self._state is not None and state != self._state:
            self._num_changes += 1
            self._store.clear()
            if self._num_changes > 1:
                self._end(f"{self._name} is changed from epoch to epoch")
        self._state = state

    def watch(self, iterator: Any) -> weakref.finalize[..., Any] | None:
        """To be called when an epoch is over in which items come from this very process's dataset; it calls itself
        where the iterator is dropped, or the process ends, before that."""
        if self._state is None or self._store.head.closed:
            return None
        look = weakref.finalize(iterator, self._look_for_changes, self._state, os.getpid())
        _LOOKS[:] = [*(each for each in _LOOKS if each.alive), look]
        return look

    def _look_for_changes(self, before: str, process: int) -> None:
        if os.getpid() != process or not self._store.head.given_in_epoch:
            return  # a child that was forked meanwhile, or nothing that may be wrong
        try:
            same_as_before = fingerprint(self.dataset) == before
        except Exception:  # noqa: BLE001 - what cannot be looked at any more was changed
            same_as_before = False
        if not same_as_before:
            self._end(f"{self._name} was changed within an epoch", too_late=True)

    def item(self, index: Any) -> Any:
        """As `dataset[index]` would give it."""
        return self._given([index], lambda indices: [self.dataset[each] for each in indices])[0]

    def items(self, indices: Any) -> Any:
        """As `dataset.__getitems__(indices)` would give them."""
        return self._given(indices, self.dataset.__getitems__)

    def _given(self, indices: Any, make: Callable[[Any], Any]) -> Any:
        if self._store.head.closed or not all(map(self._has_place, indices)):
            return make(indices)
        contents = [self._store.get(index) for index in indices]
        missing = [index for index, found in zip(indices, contents) if found is None]
        made = iter(self._make(missing, make) if missing else ())
        return [
            next(made) if content is None else self._checked(index, content, make)
            for index, content in zip(indices, contents)
        ]

    def _has_place(self, index: Any) -> bool:
        return type(index) is int and 0 <= index < self._store.num_items

    def _make(self, indices: list[int], make: Callable[[Any], Any]) -> list[Any]:
        """Items that are not there yet."""
        try:
            before = random_state()
        except Exception as error:  # noqa: BLE001 - a generator put in place of the usual one
            self._end(f"random numbers cannot be watched: {type(error).__name__}: {error}")
            return list(make(indices))
        values = list(make(indices))
        if not same_state(before, random_state()):
            self._end(f"{self._name} draws random numbers for its items", too_late=True)
            return values
        try:
            contents = [encoded(value) for value in values]
        except Exception as error:  # noqa: BLE001 - whatever its pickling raises
            self._end(f"items of {self._name} cannot be copied: {type(error).__name__}: {error}")
            return values
        if self._made < CHECKS:
            again = list(make(indices))
            copies = [decoded(content) for content in contents]
            if len(values) != len(indices) or not (same(values, again) and same(values, copies)):
                why = f"items of {self._name} are not the same when they are made again"
                self._end(why, too_late=True)
                return values
            if self._state is None:
                self._state = fingerprint(self.dataset)  # after what it does once, such as opening
        self._made += len(values)
        for index, content in zip(indices, contents):
            if not self._store.put(index, content):
                self._report.refused(f"no room for more items of {self._name}")
                break
        return values

    def _checked(self, index: int, content: bytes, make: Callable[[Any], Any]) -> Any:
        value = decoded(content)
        if self._epoch != self._store.head.epoch:
            self._epoch = self._store.head.epoch
            self._checks = max(1, min(CHECKS, self._store.num_items // ITEMS_PER_CHECK))
        if self._checks:
            self._checks -= 1
            before = random_state()
            again = make([index])[0]
            if not same(value, again):
                why = f"items of {self._name} are not the same in another epoch"
                self._end(why, too_late=True)
                return again
            if not same_state(before, random_state()):
                self._end(f"{self._name} draws random numbers for its items", too_late=True)
                return again
        else:
            self._store.head.given = self._store.head.given_in_epoch = True
            # Meanwhile, by another process that may not have seen the mark.
            if self._store.head.closed:
                return make([index])[0]
        self._report.applied(f"items of {self._name} come from memory")
        return value

    def _end(self, why: str, *, too_late: bool = False) -> None:
        """too_late: where an item was given out that had not been made again."""
        self._store.head.closed = True
        if too_late and self._store.head.given:
            self._report.wrong(why)
        else:
            self._report.refused(why)
