"""The parent's side of worker processes: hands out jobs, collects records, never waits for the dead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import hotloop
from hotloop.core.errors import EnvironmentFailed, HotloopError, UsageError
from hotloop.data.encode import JobProgress
from hotloop.data.engines.comparison import EngineDiffers
from hotloop.data.jobs import Job, Task
from hotloop.data.manifest import JobRecord

AHEAD = 2
"""Jobs a worker holds: one in work, the next one known."""


class _Process:
    def __init__(self, threads: int, inherited: Sequence[int]) -> None:
        ours, theirs = Pipe()
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(),
            # Read by all three libraries when they start their threads.
            "RAYON_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "hotloop.data.worker",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno(), *inherited],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
            )
        self.connection: Connection[Any, Any] = ours
        self.jobs: list[Job] = []


class Pool:
    """Worker processes of one task. Use it as a context: they are ended with it."""

    def __init__(self, task: Task, num_workers: int, *, inherited: Sequence[int] = ()) -> None:
        """`inherited` descriptors stay open in the workers."""
        self._processes: list[_Process] = []
        try:
            for _ in range(num_workers):
                self._processes.append(_Process(task.threads, inherited))
            for process in self._processes:
                self._send(process, task)
        except OSError as error:
            self.close()
            raise EnvironmentFailed(
                f"cannot start a worker process: {error.strerror}", do="give fewer --workers"
            ) from error

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        jobs: Sequence[tuple[Job, str]],
        engine: str,
        *,
        progress: JobProgress,
        done: Callable[[int, JobRecord], None],
    ) -> None:
        """Do jobs, in no certain order; `done` gets each record once its shards are durable.

        Raises what the first worker to fail raised.
        """
        for process in self._processes:
            self._send(process, engine)
        left = list(reversed(jobs))
        for _ in range(AHEAD):
            for process in self._processes:
                self._hand_out(process, left)
        by_connection = {process.connection: process for process in self._processes}
        while any(process.jobs for process in self._processes):
            for ready in wait(list(by_connection)):
                process = by_connection[ready]  # type: ignore[index]
                kind, *rest = self._receive(process)
                if kind == "progress":
                    progress(*rest)
                elif kind == "done":
                    number, record = rest
                    process.jobs = [job for job in process.jobs if job.number != number]
                    done(number, record)
                    self._hand_out(process, left)

    def _hand_out(self, process: _Process, left: list[tuple[Job, str]]) -> None:
        if left:
            job, key = left.pop()
            process.jobs.append(job)
            self._send(process, (job, key))

    def _send(self, process: _Process, message: object) -> None:
        try:
            process.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            self._receive(process)  # what it reported before it ended
            raise self._lost(process) from None

    def _receive(self, process: _Process) -> tuple[Any, ...]:
        try:
            message: tuple[Any, ...] = process.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._lost(process) from error
        if message[0] == "failed":
            raise error_of(*message[1:])
        if message[0] == "crashed":
            raise RuntimeError(f"in a worker process:\n{message[1]}")
        return message

    def _lost(self, process: _Process) -> HotloopError:
        code = process.process.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return EnvironmentFailed(
            f"a worker process ended {how}",
            do="if memory ran out, give fewer --workers; run the same command again to continue",
        )

    def close(self) -> None:
        """End them now; what they have not finished is lost."""
        for process in self._processes:
            process.connection.close()
            process.process.kill()
        for process in self._processes:
            process.process.wait()


def python_path() -> str:
    """`PYTHONPATH` for a process of ours: with this very hotloop first."""
    paths = [str(Path(hotloop.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def error_of(kind: str, what: str, where: str | None, do: str | None) -> HotloopError:
    """The error that another process raised, by the name of its class."""
    kinds: dict[str, type[HotloopError]] = {
        "EnvironmentFailed": EnvironmentFailed,
        "EngineDiffers": EngineDiffers,
    }
    return kinds.get(kind, UsageError)(what, where=where, do=do)


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
