"""Worker processes, through `concurrent.futures`. They never load torch, and end with their parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import EnvironmentFailed
from hotloop.data.jobs import Job, JobProgress, Task
from hotloop.data.manifest import JobRecord

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
