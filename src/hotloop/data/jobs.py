"""Jobs: runs of units with a key each, cut in the same way whoever does them and when; and the processes that do them,
which never load torch and end with their parent.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import EnvironmentFailed
from hotloop.data.manifest import JobRecord
from hotloop.data.sources import ReadOptions, Unit

SMALL_CORPUS_BYTES = 64 << 20
"""Up to this much is one job: one shard, and no process started for it."""
JOB_BYTES = (32 << 20, 512 << 20)
"""Least and most bytes of a job in a larger corpus; between them it has about `NUM_JOBS`."""
NUM_JOBS = 128
FIRST_JOB_BYTES = 1 << 20

JobProgress = Callable[[int, int, int], None]
"""`(planned bytes, text bytes, tokens)` since the last call."""


@dataclass(frozen=True, slots=True)
class Job:
    """Consecutive units, encoded by one process into at most a few shards."""

    number: int
    units: tuple[Unit, ...]

    @property
    def num_bytes(self) -> int:
        return sum(unit.num_bytes for unit in self.units)


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the bytes of every job depend on besides its units."""

    tokenizer: str
    """Fingerprint."""
    end_of_text: int
    seed: int
    held_out_below: int
    reading: ReadOptions
    sources: tuple[str, ...]
    """As given. A unit is known by the name of its source, not by its place among them."""
    shard_tokens: int
    quick: bool
    """Digests of long documents are quick ones, see `gather.digest_of`."""


@dataclass(frozen=True, slots=True)
class Task:
    """All that a process needs before its first job. It travels to workers."""

    directory: Path
    """Shards are written here."""
    tokenizer: bytes
    """tokenizer.json"""
    recipe: Recipe
    threads: int
    """For the engine in this process."""


def is_large(total: int) -> bool:
    """True for a corpus of `total` bytes that is cut into jobs, with quick digests for its split."""
    return total > SMALL_CORPUS_BYTES


def job_bytes_for(total: int) -> int:
    """Bytes of a job in a corpus of `total`: a power of two, so that it seldom changes as it grows.

    0: all of it is one job.
    """
    if not is_large(total):
        return 0
    least, most = JOB_BYTES
    return int(min(max(1 << (total // NUM_JOBS).bit_length() - 1, least), most))


def jobs_of(units: Sequence[Unit], job_bytes: int) -> tuple[Job, ...]:
    """Cut at units that their names choose, so that a file more or less moves only the next cut.

    A job holds half of `job_bytes` or more, and hardly more than twice as much; the first ones are
    smaller, so that there is something to train on soon.
    """
    if not job_bytes:
        return (Job(0, tuple(units)),) if units else ()
    jobs: list[Job] = []
    held: list[Unit] = []
    size = before = 0
    for unit in units:
        held.append(unit)
        size += unit.num_bytes
        wanted = min(job_bytes, max(before, FIRST_JOB_BYTES))
        if size >= 2 * wanted or (size >= wanted // 2 and _ends_job(unit, wanted)):
            jobs.append(Job(len(jobs), tuple(held)))
            before += size
            held, size = [], 0
    if held:
        jobs.append(Job(len(jobs), tuple(held)))
    return tuple(jobs)


def _ends_job(unit: Unit, job_bytes: int) -> bool:
    """True for units that hold, on average, half of `job_bytes` between them."""
    name = f"{unit.name}\0{unit.begin}".encode("utf-8", "surrogateescape")
    chance = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
    share = min(2 * unit.num_bytes / job_bytes, 1.0)
    return chance < share * 2**64


def job_key(job: Job, recipe: Recipe) -> str:
    """sha256 of everything the job's bytes depend on."""
    description = [
        1,  # of what encoding a job means; a change of its output changes this number
        recipe.tokenizer,
        recipe.end_of_text,
        recipe.seed,
        recipe.held_out_below,
        json.dumps(recipe.reading.key(), sort_keys=True),
        recipe.shard_tokens,
        recipe.quick,
        [[recipe.sources[unit.source], *unit.key] for unit in job.units],
    ]
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()


if TYPE_CHECKING:
    from hotloop.data.encode import Worker

_LOOK_S = 0.05
"""Between two looks at the progress."""
_worker: Callable[[str], Worker]
_progress: JobProgress


class Pool:
    """Worker processes of one task. Use it as a context: they are ended with it, and what they have not
    finished is lost.

    A script that gets here without `hotloop` needs the usual `if __name__ == "__main__":`.
    """

    def __init__(self, task: Task, num_workers: int) -> None:
        context = get_context("spawn")
        self._passed = context.SimpleQueue()
        given = (task, os.getpid(), self._passed)
        self._processes = ProcessPoolExecutor(num_workers, context, _begin, given)
        for _ in range(num_workers):
            self._submit(os.getpid)  # starts it now

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        kill_processes(self._processes)

    def run(
        self,
        jobs: Sequence[tuple[Job, str]],
        engine: str,
        *,
        progress: JobProgress,
        done: Callable[[int, JobRecord], None],
    ) -> None:
        """Do jobs, in no certain order; `done` gets each record, whose shards it makes durable.

        Raises what the first job to fail raised.
        """
        numbers = {self._submit(_encode, job, key, engine): job.number for job, key in jobs}
        pending = set(numbers)
        while pending:
            finished, pending = wait(pending, _LOOK_S, FIRST_COMPLETED)
            while not self._passed.empty():
                progress(*self._passed.get())
            for future in finished:
                try:
                    record = future.result()
                except BrokenProcessPool as error:
                    raise EnvironmentFailed(
                        "a worker process ended before its work was done",
                        do="if memory ran out, give fewer --workers; run the same command again to "
                        "continue",
                    ) from error
                done(numbers[future], record)

    def _submit(self, *call: Any) -> Any:
        try:
            return self._processes.submit(*call)
        except OSError as error:
            kill_processes(self._processes)
            raise EnvironmentFailed(
                f"cannot start a worker process: {error.strerror}", do="give fewer --workers"
            ) from error


def kill_processes(executor: ProcessPoolExecutor) -> None:
    """End them now. (`kill_workers` of Python 3.14.)"""
    for process in list((executor._processes or {}).values()):
        process.kill()
    executor.shutdown(cancel_futures=True)


def end_with_parent(parent: int) -> None:
    """Be killed when the parent dies; Ctrl-C is answered by the parent for all."""
    import ctypes

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)


def _begin(task: Task, parent: int, passed: Any) -> None:
    """In the worker. Numbers of threads are set before the libraries are loaded, which read them then."""
    global _worker, _progress
    end_with_parent(parent)
    os.environ |= {
        "RAYON_NUM_THREADS": str(task.threads),
        "TOKENIZERS_PARALLELISM": "true" if task.threads > 1 else "false",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    from functools import cache

    from hotloop.data.encode import Worker
    from hotloop.data.tokenizer import Tokenizer

    tokenizer = Tokenizer(task.tokenizer.decode(), where="the tokenizer")
    _worker = cache(lambda engine: Worker(task, engine, tokenizer))
    _progress = lambda *counts: passed.put(counts)  # noqa: E731


def _encode(job: Job, key: str, engine: str) -> JobRecord:
    return _worker(engine).encode(job, key, _progress)
