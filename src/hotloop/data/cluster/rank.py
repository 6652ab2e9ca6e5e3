"""A rank, as datatrove runs it: every so-many-th job of a round; and datatrove's Slurm executor, which submits ranks."""

from __future__ import annotations

import os
import platform
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from hotloop.core.errors import EnvironmentFailed, HotloopError, UsageError
from hotloop.core.files import write_json
from hotloop.data.cluster.round import Beat, Round, Work
from hotloop.data.jobs import Job, Pool, end_with_parent
from hotloop.data.manifest import JobRecord
from hotloop.data.shards import make_durable
from hotloop.data.staging import read_record, record_path

BEAT_S = 1.0


class EncodeJobs(PipelineStep):  # type: ignore[misc]
    """Takes no documents and gives none: a job reads its own units and writes its own shards."""

    name = "hotloop"
    type = "prepare"

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        do_rank(Path(self.directory), rank, world_size)
        yield from data or ()


class _Stopped(Exception):
    """Another rank failed for good, or the round was taken away."""


def do_rank(directory: Path, rank: int, world: int) -> None:
    """Do the jobs `rank`, `rank + world`, ... of a round that have no record yet.

    Raises `RuntimeError` with what is written in `failed/` as well.
    """
    round_ = Round(directory)
    life = secrets.token_hex(4)
    try:
        work = round_.work()
        if work.with_parent:
            end_with_parent(os.getppid())
        with _beating(round_, rank, life) as stopped:
            _do(round_, work, rank, world, round_.path / f"rank-{rank:05d}-{life}", stopped)
    except _Stopped:
        return
    except BaseException as error:
        if round_.path.is_dir():
            round_.fail(f"{rank:05d}-{life}", error)
        if isinstance(error, HotloopError):
            raise RuntimeError(str(error)) from None  # datatrove's log need not show our frames
        raise


def _do(
    round_: Round, work: Work, rank: int, world: int, made: Path, stopped: threading.Event
) -> None:
    if round_.stopped:
        raise _Stopped
    try:
        os.chdir(work.directory)
    except OSError as error:
        raise UsageError(
            f"the directory is not there on {platform.node()}",
            where=work.directory,
            do="--on needs storage that all machines share under the same paths",
        ) from error
    left = [
        (job, key) for job, key in work.jobs[rank::world] if not _is_done(round_, work, job, key)
    ]
    if not left:
        return
    made.mkdir()
    processes = min(work.cpus, len(left))
    task = replace(work.task, directory=made, threads=max(work.cpus // processes, 1))

    def progress(planned: int, text: int, tokens: int) -> None:
        if stopped.is_set():
            raise _Stopped

    def done(number: int, record: JobRecord) -> None:
        if not made.is_dir():
            raise _Stopped  # taken away: the record must not bring it back
        make_durable(record.files, made)
        write_json(record_path(made, number), record)

    with Pool(task, processes) as pool:
        pool.run(left, work.engine, progress=progress, done=done)


def _is_done(round_: Round, work: Work, job: Job, key: str) -> bool:
    """By an earlier life of this rank, or collected already."""
    for directory in (work.task.directory, *round_.path.glob("rank-*")):
        record = read_record(directory, job.number, key)
        if record is not None and all((directory / name).is_file() for name in record.files):
            return True
    return False


@contextmanager
def _beating(round_: Round, rank: int, life: str) -> Iterator[threading.Event]:
    """Writes every second, beside the work, that a rank is alive. Gives what is set when it is to end."""
    stopped, over = threading.Event(), threading.Event()

    def beat() -> None:
        round_.beat(rank, life, Beat(time.time_ns(), os.getpid(), over.is_set()))

    def run() -> None:
        while not over.wait(BEAT_S):
            try:
                beat()
                if round_.stopped:
                    stopped.set()
            except FileNotFoundError:
                os._exit(1)  # the round was taken away: nobody wants what is being made
            except OSError:
                continue  # a disk that is full for a moment: the jobs report it

    beat()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()
        if round_.path.is_dir():
            beat()


_LAUNCH = "launch_pickled_pipeline"
_ASKING_S = 60


class SlurmExecutor(SlurmPipelineExecutor):  # type: ignore[misc]
    """Remembers every job it submitted; runs this Python unless an environment is asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.submitted: list[str] = []
        super().__init__(*arguments, **options)

    @property
    def job_id(self) -> str | None:
        return self.submitted[-1] if self.submitted else None

    @job_id.setter
    def job_id(self, value: str | None) -> None:
        if value is not None:
            self.submitted.append(value)

    def launch_merge_stats(self) -> None:
        """Nothing: statistics are in the manifest, and that job would wait for ever after a failure."""

    def get_launch_file_contents(self, sbatch_args: dict[str, Any], run_script: str) -> str:
        # By module: the script of that name need not be on the PATH of the nodes.
        own = self.env_command or self.condaenv or self.venv_path
        python = "python" if own else sys.executable
        script = run_script.replace(_LAUNCH, f"{python} -m datatrove.tools.{_LAUNCH}", 1)
        return str(super().get_launch_file_contents(sbatch_args, script))


def is_queued(jobs: Sequence[str]) -> bool:
    """True while any of these jobs waits or runs. Raises `EnvironmentFailed` if Slurm does not answer."""
    named = ",".join(jobs)
    command = ["squeue", "--noheader", f"--jobs={named}", "--format=%i"]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASKING_S, check=False
        )
        why = asked.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        asked, why = None, str(error)
    if asked is not None and asked.returncode == 0:
        return bool(asked.stdout.strip())
    if "Invalid job id" in why:
        return False  # ended some time ago and forgotten
    raise EnvironmentFailed(
        f"Slurm does not say whether job {named} still runs: {why or 'no answer'}",
        do="run the same command again where squeue works",
    )
