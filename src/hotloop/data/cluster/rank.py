"""What one rank does: every so-many-th job, by worker processes of its own."""

from __future__ import annotations

import os
import platform
import secrets
import threading
from dataclasses import replace
from pathlib import Path

from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.files import read_json, write_json
from hotloop.data.cluster.round import Beat, Round, Work, this_machine
from hotloop.data.jobs import Job
from hotloop.data.manifest import JobRecord
from hotloop.data.pool import Pool
from hotloop.data.staging import is_whole
from hotloop.data.worker import end_with_parent

BEAT_S = 1.0


class _Stopped(Exception):
    """Another rank failed for good."""


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
        with _Heart(round_, rank, life) as heart:
            _do(round_, work, rank, world, heart)
    except _Stopped:
        return
    except BaseException as error:
        if round_.path.is_dir():
            round_.fail(f"{rank:05d}-{life}", error)
        if isinstance(error, HotloopError):
            raise RuntimeError(str(error)) from None  # datatrove's log need not show our frames
        raise


def _do(round_: Round, work: Work, rank: int, world: int, heart: _Heart) -> None:
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
    mine = work.jobs[rank::world]
    left = [(job, key) for job, key in mine if not _is_done(round_, work, job, key)]
    heart.add(sum(job.num_bytes for job, _ in mine) - sum(job.num_bytes for job, _ in left), 0, 0)
    if not left:
        return
    made = round_.path / f"rank-{rank:05d}-{heart.life}"
    made.mkdir()
    processes = min(work.cpus, len(left))
    task = replace(work.task, directory=made, threads=max(work.cpus // processes, 1))

    def progress(planned: int, text: int, tokens: int) -> None:
        heart.add(planned, text, tokens)
        if heart.stopped:
            raise _Stopped

    def done(number: int, record: JobRecord) -> None:
        if not made.is_dir():
            raise _Stopped  # taken away: the record must not bring it back
        write_json(made / f"job-{number:05d}.json", record)

    with Pool(task, processes) as pool:
        pool.run(left, work.engine, progress=progress, done=done)


def _is_done(round_: Round, work: Work, job: Job, key: str) -> bool:
    """By an earlier life of this rank, or collected already."""
    name = f"job-{job.number:05d}.json"
    for path in (work.task.directory / name, *round_.path.glob(f"rank-*/{name}")):
        try:
            record = read_json(path, JobRecord)
        except UsageError:
            continue
        if record.key == key and is_whole(record, path.parent):
            return True
    return False


class _Heart:
    """Says every second, beside the work, that a rank is alive and how far it is."""

    def __init__(self, round_: Round, rank: int, life: str) -> None:
        self.life = life
        self.stopped = False
        self._round = round_
        self._rank = rank
        self._machine = this_machine()
        self._count = 0
        self._totals = (0, 0, 0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def add(self, planned: int, text: int, tokens: int) -> None:
        before = self._totals
        self._totals = (before[0] + planned, before[1] + text, before[2] + tokens)

    def __enter__(self) -> _Heart:
        self._beat(ended=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._round.path.is_dir():
            self._beat(ended=True)

    def _run(self) -> None:
        while not self._end.wait(BEAT_S):
            try:
                self._beat(ended=False)
                self.stopped = self._round.stopped
            except FileNotFoundError:
                os._exit(1)  # the round was taken away: nobody wants what is being made
            except OSError:
                continue  # a disk that is full for a moment: the jobs will say it

    def _beat(self, *, ended: bool) -> None:
        self._count += 1
        planned, text, tokens = self._totals
        self._round.beat(
            self._rank,
            Beat(
                life=self.life,
                count=self._count,
                machine=self._machine,
                node=platform.node(),
                pid=os.getpid(),
                planned=planned,
                text=text,
                tokens=tokens,
                ended=ended,
            ),
        )
