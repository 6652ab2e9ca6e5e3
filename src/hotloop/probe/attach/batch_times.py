"""How long it takes to make one batch: in the process that trains, or in a loader's worker.

A worker appends what it measured to `fetch-<pid of the training process>.jsonl`, a few times a second;
the training process reads it. Workers that were forked have these hooks from their parent, spawned
ones install them when they import torch.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import pickle
import random
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch as torch_fetch

from hotloop.probe import entry

Fetched = tuple[float, float | None, float, bool | None]
"""(seconds, CPU seconds of the thread if it was asked, seconds in collate, whether it drew random numbers)"""
ASKS_EVERY = 4
"""Batches made by the training thread after which it is asked for its CPU time: that is a system call, at which a
busy machine takes the CPU away, and would do so inside of the wait for data."""
WRITE_EVERY_S = 0.25
MAX_PER_WORKER = 20_000
"""Batches; enough to know, and the file stays small."""
MT19937_BYTES = 625 * 4
"""624 words and the place among them: `mt19937_state` in NumPy's sources."""
LOOKS_AT_RANDOM = 2
"""First batches of an epoch for which random states are compared: it takes tens of microseconds."""


class _TimedCollate:
    """The collate function, and how long its last call took."""

    __slots__ = ("function", "looks", "seconds")

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.seconds = 0.0
        self.looks = LOOKS_AT_RANDOM

    def __call__(self, data: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.function(data)
        finally:
            self.seconds = time.perf_counter() - start


class _WorkerLog:
    """In a worker: keeps what was measured, and appends it to the sidecar file."""

    def __init__(self, directory: Path) -> None:
        parent = multiprocessing.parent_process()
        self._path = fetch_file(directory, parent.pid if parent and parent.pid else os.getppid())
        self._lines: list[str] = []
        self._written_at = 0.0
        self._left = MAX_PER_WORKER

    def add(self, loader_seed: int, fetched: Fetched) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        self._lines.append(json.dumps([loader_seed, *fetched]))
        now = time.monotonic()
        if now - self._written_at > WRITE_EVERY_S:
            self._written_at = now
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in self._lines))
            self._lines.clear()


def fetch_file(directory: Path, pid: int) -> Path:
    """The file in which the workers of a training process report what they measured."""
    return directory / f"fetch-{pid}.jsonl"


def watch_fetches(directory: Path, fetched_here: Callable[[Fetched], None]) -> None:
    """Hook the fetchers. fetched_here: told of each batch that this process made itself."""
    logs: dict[int, _WorkerLog] = {}
    turns = count()

    def fetch(original: Any, fetcher: Any, index: Any) -> Any:
        before = _state_before(fetcher)
        asks = get_worker_info() is not None or next(turns) % ASKS_EVERY == 0
        cpu = time.thread_time() if asks else 0.0
        start = time.perf_counter()
        data = original(fetcher, index)
        seconds = time.perf_counter() - start
        used = time.thread_time() - cpu if asks else None
        try:
            drew = None if before is None else not same_state(before, random_state())
            collate = getattr(fetcher.collate_fn, "seconds", 0.0)
            _tell((seconds, used, collate, drew))
        except Exception:  # noqa: BLE001 - measuring must not stop a loader
            pass
        return data

    def _tell(fetched: Fetched) -> None:
        worker = get_worker_info()
        if worker is None:
            fetched_here(fetched)
            return
        log = logs.get(os.getpid())
        if log is None:
            log = logs[os.getpid()] = _WorkerLog(directory)
        log.add(worker.seed - worker.id, fetched)

    def make(original: Any, fetcher: Any, *args: Any, **kwargs: Any) -> None:
        original(fetcher, *args, **kwargs)
        if not isinstance(fetcher.collate_fn, _TimedCollate):
            fetcher.collate_fn = _TimedCollate(fetcher.collate_fn)

    entry.around_call(torch_fetch._BaseDatasetFetcher, "__init__", make)
    entry.around_call(torch_fetch._MapDatasetFetcher, "fetch", fetch)
    entry.around_call(torch_fetch._IterableDatasetFetcher, "fetch", fetch)


def read_fetches(path: Path, offset: int) -> tuple[list[tuple[int, Fetched]], int]:
    """What was appended since `offset`, and the new offset. A torn last line is left for the next time."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read()
    except OSError:
        return [], offset
    whole = content[: content.rfind(b"\n") + 1]
    found = []
    for line in whole.splitlines():
        try:
            seed, seconds, cpu, collate, drew = json.loads(line)
        except ValueError:
            continue
        found.append((seed, (seconds, cpu, collate, drew)))
    return found, offset + len(whole)


def _state_before(fetcher: Any) -> State | None:
    """State of the random generators, if this is one of its first batches."""
    collate = fetcher.collate_fn
    if not isinstance(collate, _TimedCollate) or not collate.looks:
        return None
    collate.looks -= 1
    try:
        return random_state()
    except Exception:  # noqa: BLE001 - measuring must not stop a loader
        return None


State = tuple[Any, torch.Tensor]


def random_state() -> State:
    """State of Python's generator, torch's, and NumPy's if it is loaded (torch may be without)."""
    return (random.getstate(), _numpy_state()), torch.get_rng_state()


def _numpy_state() -> Any:
    """Of NumPy's usual generator, its bytes: `get_state` takes a hundred times as long, as does a cheap item."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return None
    if hasattr(numpy.random, "get_bit_generator"):  # from 1.24 on
        generator = numpy.random.get_bit_generator()
        if type(generator).__name__ == "MT19937":
            return ctypes.string_at(generator.ctypes.state_address, MT19937_BYTES)
    return pickle.dumps(numpy.random.get_state(legacy=False))


def same_state(one: State, other: State) -> bool:
    """Whether nothing was drawn between the two."""
    return one[0] == other[0] and torch.equal(one[1], other[1])
