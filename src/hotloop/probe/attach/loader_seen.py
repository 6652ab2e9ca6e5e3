"""One data loader, as it was seen: its arguments, and the times of its batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hotloop.core.census import LoaderUse
from hotloop.probe.attach.batch_times import Fetched
from hotloop.probe.attach.dataset_state import may_change, state_of
from hotloop.probe.attach.sites import Place, Sites, caller

KEPT = 10_000
"""Times per loader; of a long run, the newest."""
LOOK_EVERY = 64
"""Sizes of batches are looked at for the first 8, then at every one in so many."""


class LoaderSeen:
    """Everything that was iterated at one place, over a loader made at one place."""

    def __init__(self, loader: DataLoader[Any], place: Place | None, sites: Sites) -> None:
        self._sites = sites
        self._arguments = _arguments(loader, sites)
        self._place = place
        self.made: dict[tuple[str, int], None] = {}
        """How each loader that this stands for was made, as `LoaderPlaces` names it."""
        self.trains = False
        self.evaluates = False
        """In this epoch: one that trains may be iterated by the same lines to evaluate."""
        self.seemed_to = False
        """It was wrongly taken to evaluate."""
        self.num_epochs = 0
        self._construction_s = 0.0
        self._first = False
        self._draws_random: bool | None = None
        self._state: int | None = None
        self._changes: bool | None = None
        self.clear()

    def site(self) -> str:
        """The place at which it was made."""
        return self._sites.name(self._place) or "?"

    def clear(self) -> None:
        """Forget the times."""
        self._num = 0
        self._waits: deque[float] = deque(maxlen=KEPT)
        self._fetches: deque[Fetched] = deque(maxlen=KEPT)
        self._early: deque[Fetched] = deque(maxlen=KEPT)
        self._pins: deque[float] = deque(maxlen=KEPT)
        self._starts: deque[float] = deque(maxlen=KEPT)
        self._sizes: deque[int] = deque(maxlen=256)
        self._looked = 0

    def began_epoch(self, loader: DataLoader[Any], seconds: float) -> None:
        """It was asked for an iterator, and gave it after `seconds`."""
        self.num_epochs += 1
        self._construction_s = seconds
        try:
            self._look_for_changes(loader)
        except Exception:  # noqa: BLE001 - whatever a script's objects do when they are looked at
            self._changes = True
        self._first = True

    def _look_for_changes(self, loader: DataLoader[Any]) -> None:
        held = loader.dataset, loader.collate_fn
        state = state_of(*held)
        if self._state is not None:
            if self._changes is None:
                frames = self._sites.own_frames(caller())
                files = self._sites.own_files()
                self._changes = may_change(held, frames=frames, files=files, own=self._sites.own)
            self._changes = self._changes or state != self._state
        self._state = state

    def gave(self, batch: Any, waited: float, *, counting: bool) -> None:
        """It was asked for a batch, and gave it after `waited` seconds."""
        if self._first:
            self._first = False
            if self.num_epochs > 1:
                self._starts.append(self._construction_s + waited)
        elif counting:
            self._waits.append(waited)
        if counting:
            self._num += 1
        self._looked += 1
        if self._looked <= 8 or self._looked % LOOK_EVERY == 0:
            self._sizes.append(num_bytes(batch))

    def fetched(self, fetched: Fetched, *, counting: bool) -> None:
        """Making one batch took so long."""
        (self._fetches if counting else self._early).append(fetched)
        if fetched[3] is not None:
            self._draws_random = bool(self._draws_random) or fetched[3]

    def pinned(self, seconds: float, *, counting: bool) -> None:
        """Pinning one batch took so long, in the process that trains."""
        if counting:
            self._pins.append(seconds)

    def use(self) -> LoaderUse:
        """As the census has it."""
        waits = sorted(self._waits)
        fetches = list(self._fetches) or list(self._early)
        asked = [(seconds, cpu) for seconds, cpu, *_ in fetches if cpu is not None]
        wall = sum(seconds for seconds, _ in asked)
        return LoaderUse(
            **self._arguments,
            site=self.site(),
            trains=self.trains,
            num_batches=self._num,
            num_epochs=self.num_epochs,
            batch_bytes=round(median(self._sizes)) if self._sizes else None,
            wait_s=_median(waits),
            wait_p99_s=waits[int(0.99 * len(waits))] if waits else None,
            fetch_s=_median([each[0] for each in fetches]),
            collate_s=_median([each[2] for each in fetches]),
            pin_s=_median(self._pins),
            fetch_cpu_fraction=sum(cpu for _, cpu in asked) / wall if wall else None,
            epoch_start_s=_median(self._starts),
            draws_random=self._draws_random,
            changes_between_epochs=self._changes,
        )


def _median(values: Collection[float]) -> float | None:
    return median(values) if values else None


def _arguments(loader: DataLoader[Any], sites: Sites) -> dict[str, Any]:
    """What it was made with, as `LoaderUse` has it."""
    dataset = loader.dataset
    kind = type(innermost_dataset(dataset))
    collate = loader.collate_fn
    iterable = isinstance(dataset, IterableDataset)
    names = ("__iter__",) if iterable else ("__getitems__", "__getitem__")
    # accelerate always gives a sampler of whole batches.
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    method = next((found for name in names if (found := getattr(kind, name, None))), None)
    return {
        "dataset": kind.__qualname__,
        "dataset_site": sites.of_callable(method) if method else None,
        "collate_site": sites.of_callable(collate) if sites.is_own_callable(collate) else None,
        "iterable": iterable,
        "in_memory": holds_its_data(dataset),
        "num_workers": loader.num_workers,
        "batch_size": size if isinstance(size, int) else None,
        "pin_memory": loader.pin_memory,
        "persistent_workers": loader.persistent_workers,
        "prefetch_factor": loader.prefetch_factor,
        "per_epoch": None if iterable else _length(loader),
    }


def innermost_dataset(dataset: Any) -> Any:
    """What torch's own `Subset` stands for."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return dataset


def holds_its_data(dataset: Any) -> bool | None:
    """Whether its samples lie in memory as tensors or arrays; `None` where that can not be seen."""
    dataset = innermost_dataset(dataset)
    if isinstance(dataset, torch.utils.data.TensorDataset):
        return True
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        found = {holds_its_data(each) for each in dataset.datasets[:8]}
        return found.pop() if len(found) == 1 else None
    try:
        values, length = list(vars(dataset).values()), len(dataset)
    except Exception:  # noqa: BLE001 - of a length that is not known, whatever it raises
        return None
    return True if any(_num_rows(value) >= max(2, length) for value in values) else None


def _num_rows(value: Any) -> int:
    """Rows of a tensor or array, or of a list that begins with one; memory maps lie on disk."""
    rows = None
    if isinstance(value, (list, tuple)) and value:
        value, rows = value[0], len(value)
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
    if not isinstance(value, torch.Tensor) and type(value).__name__ != "ndarray":
        return 0
    if rows is not None:
        return rows
    return int(value.shape[0]) if len(value.shape) else 0


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 - see above
        return None


def named_tensors(
    batch: Any, name: str = "", *, depth: int = 4, most: int = 64
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dicts, lists and objects that hold some, with their keys. most: items of a list."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
        return
    items: Iterable[tuple[Any, Any]] = ()
    if depth and isinstance(batch, (list, tuple)):
        items = (("", each) for each in batch[:most])
    elif depth and hasattr(batch, "items") and hasattr(batch, "keys"):
        items = batch.items()
    for key, value in items:
        yield from named_tensors(value, str(key), depth=depth - 1, most=most)


def first_tensor(batch: Any) -> torch.Tensor | None:
    """The first one, without looking at the others."""
    for _ in range(4):
        if isinstance(batch, torch.Tensor):
            return batch
        if isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        elif hasattr(batch, "values"):
            batch = next(iter(batch.values()), None)
        else:
            return None
    return None


def num_bytes(batch: Any) -> int:
    """Bytes of all its tensors but sparse ones; what is there once, as of an expanded one, counts once."""
    found: dict[int, int] = {}
    for _, each in named_tensors(batch):
        if each.layout is torch.strided:
            storage = each.untyped_storage()
            known = found.get(storage.data_ptr(), 0)
            found[storage.data_ptr()] = min(known + each.nbytes, storage.nbytes())
    return sum(found.values())
