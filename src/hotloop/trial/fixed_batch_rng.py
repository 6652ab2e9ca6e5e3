"""Random numbers of a batch held fixed: by its indices, its epoch and a number, whichever process makes it.

Runs inside the foreign interpreter, only in runs whose losses are compared. While a batch is made, the generators
of torch, `random` and NumPy begin where that says; afterwards they are what they were. So the process that trains
draws the same for all else whether workers make its batches or not, and where these are the same code on the same
samples, losses are the same to the last bit. What each batch found and left of their states is written down.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hotloop.core.child import BATCH_RNG, STEP_CLOCK
from hotloop.core.parity_records import BatchRng, EpochStart, rng_file, rng_line
from hotloop.probe import entry

MAX_BATCHES = 256
"""That one process writes down."""

States = Mapping[str, Any]


class FixedBatchRng:
    """Seeds every source of random numbers anew for each batch of this process, and logs how it was left."""

    def __init__(self, number: int, directory: Path) -> None:
        self._number, self._directory = number, directory
        self._epoch: int | None = None
        self._left = MAX_BATCHES
        self._pid = 0
        self._seeding: dict[int, Any] = {}
        """By epoch: the loader's own `worker_init_fn`. Workers that are spawned do not have it."""

    def install(self) -> None:
        """Hook torch's loader."""
        # What is set and set back for each batch changes how MKL divides its work: here once for all such runs.
        torch.set_num_threads(torch.get_num_threads())
        entry.around_call(_BaseDataLoaderIter, "__init__", self._begin)
        entry.around_call(_BaseDataLoaderIter, "_reset", self._reset)
        entry.around_call(_BaseDataLoaderIter, "__next__", self._next)
        entry.around_call(torch_fetch._MapDatasetFetcher, "fetch", self._fetch)
        torch_worker._ResumeIteration = _NextEpoch  # type: ignore[misc]

    def _begin(self, original: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        original(iterator, loader, *args, **kwargs)
        self._seeding = {iterator._base_seed: getattr(loader, "worker_init_fn", None)}
        self._note_epoch(iterator, loader)

    def _reset(self, original: Any, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers begin an epoch: its seed, which `trial.seeding` drew, goes to them with what torch sends."""
        original(iterator, loader, first_iter)
        if not first_iter:
            iterator._shared_seed = iterator._base_seed
            self._note_epoch(iterator, loader)

    def _note_epoch(self, iterator: Any, loader: Any) -> None:
        seeding = ("worker_init_fn", "generator")
        given = tuple(name for name in seeding if getattr(loader, name, None) is not None)
        self._write(EpochStart(iterator._base_seed, _name(loader), loader.num_workers, given))

    def _next(self, original: Any, iterator: Any) -> Any:
        before, self._epoch = self._epoch, iterator._base_seed
        try:
            return original(iterator)
        finally:
            self._epoch = before

    def _fetch(self, original: Any, fetcher: Any, index: Any) -> Any:
        worker = get_worker_info()
        epoch = self._epoch if worker is None else _NextEpoch.seed_of(worker)
        if epoch is None:  # no loader's batch
            return original(fetcher, index)
        batch = _digest(index)
        threads, kept = torch.get_num_threads(), _states()
        torch.set_num_threads(1)  # as in workers: sums are rounded alike
        _seed(f"{self._number}:{epoch}:{batch}")
        begun = _states()
        try:
            return original(fetcher, index)
        finally:
            left = {name: each for name, each in _states().items() if begun.get(name) != each}
            _restore(kept)
            torch.set_num_threads(threads)
            number = None if worker is None else worker.id
            again = None if worker is None else self._in_another_epoch(epoch, worker)
            self._write(BatchRng(epoch, batch, number, _digests(kept), _digests(left), again))

    def _in_another_epoch(self, epoch: int, worker: Any) -> dict[str, str] | None:
        """What its own `worker_init_fn` leaves, called in a copy of this process that has another seed."""
        begin = self._seeding.pop(epoch, None)
        if begin is None:
            return None
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _seed_worker(worker.seed + 1_000_003)
                begin(worker.id)
                os.write(writing, json.dumps(_digests(_states())).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            found = pipe.read()
        os.waitpid(child, 0)
        return dict(json.loads(found)) if found else None

    def _write(self, entry: BatchRng | EpochStart) -> None:
        if self._pid != os.getpid():  # a worker that was forked
            self._pid, self._left = os.getpid(), MAX_BATCHES
        if self._left > 0:
            self._left -= 1
            with rng_file(self._directory, self._pid).open("a", encoding="utf-8") as file:
                file.write(rng_line(entry))


class _NextEpoch(torch_worker._ResumeIteration):
    """What torch sends to a persistent worker when an epoch begins, noticed there."""

    latest: ClassVar[int | None] = None

    @classmethod
    def seed_of(cls, worker: Any) -> int:
        """That of the epoch for which this worker makes batches."""
        return worker.seed - worker.id if cls.latest is None else cls.latest

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if get_worker_info() is not None:
            type(self).latest = state["seed"]
            # Its own numbers would have gone on meanwhile: other ones than those it began with.
            _seed(f"later:{_digests(_states())}")


def _name(loader: Any) -> str:
    """The same for the loaders of a training's epochs, and another for those of its evaluation."""
    try:
        size = len(loader.dataset)
    except (AttributeError, TypeError, NotImplementedError):
        size = None
    kind, grads = type(loader.dataset), torch.is_grad_enabled()
    return _digest((kind, size, loader.batch_size, loader.num_workers, grads))


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _states() -> States:
    """States of the generators that code draws from without naming one."""
    found: dict[str, Any] = {
        "torch": bytes(torch.get_rng_state().tolist()),
        "random": random.getstate(),
    }
    numpy_random = _numpy_random()
    if numpy_random is not None:
        kind, keys, *rest = numpy_random.get_state()
        found["numpy.random"] = (kind, keys.tobytes(), *rest)
    return found


def _seed(text: str) -> None:
    def number(name: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{name}:{text}".encode()).digest()[:4], "big")

    torch.default_generator.manual_seed(number("torch"))
    random.seed(number("random"))
    numpy_random = _numpy_random()
    if numpy_random is not None:
        numpy_random.seed(number("numpy.random"))


def _seed_worker(seed: int) -> None:
    """As torch does before it calls `worker_init_fn`, whatever it makes of NumPy's."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy_random = _numpy_random()
    if numpy_random is not None:
        numpy_random.seed(seed % 2**32)


def _restore(states: States) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    random.setstate(states["random"])
    numpy_random = _numpy_random()
    if numpy_random is not None and "numpy.random" in states:
        kind, keys, *rest = states["numpy.random"]
        numpy = sys.modules["numpy"]
        numpy_random.set_state((kind, numpy.frombuffer(keys, numpy.uint32), *rest))


def _numpy_random() -> Any:
    numpy = sys.modules.get("numpy")
    return getattr(numpy, "random", None)


def _digests(states: States) -> dict[str, str]:
    return {name: _digest(state) for name, state in states.items()}


def install_from_environment() -> None:
    """Begin, if the trial asked for it."""
    number, directory = os.environ.get(BATCH_RNG), os.environ.get(STEP_CLOCK)
    if number and directory:
        FixedBatchRng(int(number), Path(directory.split(os.pathsep)[0])).install()
