"""How fast batches come: our loader and `torch.utils.data.DataLoader` over the same ids, in one process.

They take turns, round by round, so that what else happens on the machine happens to all of them. The
DataLoader gets what a competent person writes first: a map-style data set over the memory maps, shuffled,
default collation, with and without worker processes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress, silent
from hotloop.data.loader import Batches, Loader, PlainRows
from hotloop.data.packing import PackedRows
from hotloop.data.piece_index import packed_index
from hotloop.data.prepared import Prepared, content_of
from hotloop.data.shards import LITTLE_ENDIAN


@dataclass(frozen=True, slots=True)
class Contestant:
    """Batches in every round, and the seconds they took."""

    name: str
    batches_per_round: int
    seconds: tuple[float, ...]
    first_batch_s: float
    """From nothing to the first batch, start of worker processes included."""

    def tokens_per_s(self, tokens_per_batch: int) -> float:
        """The median over rounds."""
        return self.batches_per_round * tokens_per_batch / statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class LoaderBenchmark:
    """What was measured, and on what."""

    batch: int
    context: int
    rounds: int
    tokens_in_corpus: int
    same_ids: bool
    """True if our first batches, in order, hold the ids of the data set's first sequences."""
    contestants: tuple[Contestant, ...]
    schema: str = "hotloop.bench_loader/1"
    tokens_per_s: dict[str, float] = field(default_factory=dict)


class WindowsOfMaps(Dataset[tuple[Tensor, Tensor]]):
    """Sequences inside shards, one at a time, as one would write it by hand."""

    def __init__(self, prepared: Prepared, context: int) -> None:
        manifest = prepared.manifest
        dtype = LITTLE_ENDIAN[manifest.id_type]
        shards = manifest.of_split("train")
        self.maps = [np.memmap(prepared.path / s.file, dtype=dtype, mode="r") for s in shards]
        self.context = context
        counts = [max(len(ids) - 1, 0) // context for ids in self.maps]
        self.ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shard = int(np.searchsorted(self.ends, index, side="right"))
        start = (index - (int(self.ends[shard - 1]) if shard else 0)) * self.context
        sequence = self.maps[shard][start : start + self.context + 1].astype(np.int64)
        ids = torch.from_numpy(sequence)
        return ids[:-1], ids[1:]


def bench_loader(
    prepared: Prepared,
    *,
    batch: int,
    context: int,
    rounds: int = 10,
    round_s: float = 0.25,
    workers: Sequence[int] = (0, 2),
    progress: Progress = silent,
) -> LoaderBenchmark:
    """Raises `UsageError` for a corpus smaller than a batch. Leaves no process behind."""
    data = WindowsOfMaps(prepared, context)
    if len(data) < batch:
        raise UsageError(
            f"the corpus holds {len(data)} sequences of {context} tokens, and one batch takes {batch}",
            where=str(prepared.path),
            do="give more text, or lower --batch or --context",
        )
    plain = Loader(PlainRows(prepared.train, context=context), order="shuffled", seed=0)
    index = packed_index(prepared.train, context, content=content_of(prepared), progress=progress)
    rows = PackedRows(prepared.train, index, context=context, with_documents=True)
    packed = Loader(rows, order="shuffled", seed=0)
    batches = {"hotloop": _ours(plain, batch), "hotloop, packed": _ours(packed, batch)}
    for number in workers:
        batches[f"DataLoader, {number} workers"] = _theirs(data, batch, number)
    # A generator begins at its first batch: to it belongs the start of worker processes.
    first = {name: _timed(each, 1) for name, each in batches.items()}
    counts = {name: _calibrated(each, round_s) for name, each in batches.items()}
    seconds: dict[str, list[float]] = {name: [] for name in batches}
    names = list(batches)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds[name].append(_timed(batches[name], counts[name]))
        progress("taking turns", number + 1, rounds, "rounds")
    contestants = tuple(
        Contestant(name, counts[name], tuple(seconds[name]), first[name]) for name in names
    )
    return LoaderBenchmark(
        batch=batch,
        context=context,
        rounds=rounds,
        tokens_in_corpus=len(prepared.train),
        same_ids=_same_ids(prepared, data, batch, context),
        contestants=contestants,
        tokens_per_s={c.name: c.tokens_per_s(batch * context) for c in contestants},
    )


def _ours(batches: Batches, size: int) -> Iterator[object]:
    for position in itertools.count(0, size):
        read = batches.batch(position, size)
        yield torch.from_numpy(read.tokens), torch.from_numpy(read.targets)


def _theirs(data: WindowsOfMaps, size: int, workers: int) -> Iterator[object]:
    more: dict[str, Any] = {"persistent_workers": True} if workers else {}
    loader = DataLoader(data, size, shuffle=True, drop_last=True, num_workers=workers, **more)
    while True:
        yield from loader


def _calibrated(batches: Iterator[object], seconds: float) -> int:
    """Batches that take about so long."""
    count = 8
    while (taken := _timed(batches, count)) < seconds / 4:
        count *= 2
    return max(int(count * seconds / taken), 1)


def _timed(batches: Iterator[object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return time.perf_counter() - started


def _same_ids(prepared: Prepared, data: WindowsOfMaps, batch: int, context: int) -> bool:
    ours = Loader(PlainRows(prepared.train, context=context), order="sequential", seed=0)
    size = min(batch, int(data.ends[0]) or 1)  # inside the first shard: there both cut alike
    found = ours.batch(0, size)
    theirs = [data[i] for i in range(size)]
    return all(
        np.array_equal(mine, torch.stack([pair[side] for pair in theirs]).numpy())
        for side, mine in ((0, found.tokens), (1, found.targets))
    )
