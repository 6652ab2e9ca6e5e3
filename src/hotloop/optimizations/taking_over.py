"""Which loaders of a foreign process get workers, or others than they have: those that train."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from hotloop.optimizations.handing_over import HandingOver
from hotloop.optimizations.handover import Handover
from hotloop.optimizations.other_workers import Drawing, Replaced, why_not_replaced
from hotloop.probe import entry

if TYPE_CHECKING:
    from hotloop.optimizations.live import Report


def take_over(num_workers: int, report: Report) -> None:
    """Have loaders that train make their batches in so many workers, from the first update on."""
    taking = _TakingOver(num_workers, report)
    entry.after_step(taking.updated)
    entry.around_call(DataLoader, "__iter__", taking.iterate)


class _TakingOver:
    def __init__(self, num_workers: int, report: Report) -> None:
        self._num_workers = num_workers
        self._report = report
        self._drawing = Drawing(report)
        self._updates = [0]
        self._handovers: weakref.WeakKeyDictionary[Any, Handover] = weakref.WeakKeyDictionary()
        self._replaced: weakref.WeakKeyDictionary[Any, Replaced] = weakref.WeakKeyDictionary()

    def updated(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self._updates[0] += 1

    def iterate(self, original: Any, loader: Any) -> Any:
        """What `iter(loader)` gives."""
        if not torch.is_grad_enabled():
            return original(loader)
        return self._other(original, loader) if loader.num_workers else self._new(original, loader)

    def _new(self, original: Any, loader: Any) -> Any:
        """Workers for a loader that has none."""
        iterator = original(loader)
        if type(iterator) is not _SingleProcessDataLoaderIter or not self._num_workers:
            return iterator
        if iterator._dataset_kind != _DatasetKind.Map:
            name = type(iterator._dataset).__name__
            self._report.refused(f"{name} is an IterableDataset: each worker would give all of it")
            return iterator
        handover = self._handovers.get(loader)
        if handover is None:
            handover = Handover(self._num_workers, self._updates, self._report)
            self._handovers[loader] = handover
        handing: Any = iterator
        handing.__class__ = HandingOver
        handing.begin(handover, self._updates[0])
        return handing

    def _other(self, original: Any, loader: Any) -> Any:
        """Others for a loader that has some."""
        why = why_not_replaced(loader, self._num_workers)
        if why is not None:
            self._report.refused(f"{type(loader.dataset).__name__}: {why}")
            return original(loader)
        replaced = self._replaced.get(loader)
        if replaced is None:
            replaced = Replaced(
                loader, self._num_workers, self._updates, self._drawing, self._report
            )
            self._replaced[loader] = replaced
        return replaced.iterate(original, loader)
