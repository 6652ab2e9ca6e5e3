"""One round of ranks: a directory on storage that all machines share.

    work.pickle             what ranks do, written by the coordinator before they start
    ranks/00003.json        a rank's heartbeat
    rank-00003-a1b2c3d4/    what one life of a rank made: shards, each job's record last
    failed/00003-....pickle  why it ended
    stop                    written with a failure that doing it again would not help
    submission.json         jobs of Slurm (only there)
    logs/                   of datatrove, of Slurm, of the executor

Ranks write here only, never among the shards of the preparation: one that outlives its coordinator, or
comes back after its machine was given up, cannot harm what others do. When the directory is taken
away, they end.

"""

from __future__ import annotations

import json
import os
import pickle
import platform
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import hotloop
from hotloop.core.errors import EnvironmentFailed, HotloopError, UsageError
from hotloop.core.files import (
    fsync_directory,
    read_json,
    storage_error,
    storing,
    write_atomically,
    write_json,
)
from hotloop.data.jobs import Job, Task
from hotloop.data.manifest import JobRecord, id_type_of
from hotloop.data.prepared import record_damage
from hotloop.data.staging import PLAN, ROUNDS, STAGING, SUBMISSION, record_path
from hotloop.hardware.limits import cpu_quota

_WORK = "work.pickle"
_STOP = "stop"
_COMPARED = ("tokenizers", "tiktoken", "sentencepiece")
"""Libraries that define ids; another version might give others."""


@dataclass(frozen=True, slots=True)
class Work:
    """The jobs of a round, and all that its ranks need for them."""

    task: Task
    """Its directory is the staging directory; a rank writes into its own."""
    jobs: tuple[tuple[Job, str], ...]
    """With their keys."""
    engine: str
    cpus: int
    """CPUs of one rank."""
    directory: str
    """The working directory, from which paths of sources may be relative."""
    with_parent: bool
    """Ranks end when the process that started them does."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A rank's heartbeat, written every second."""

    at: int
    """Wall-clock time on its machine, in ns: clocks of machines differ, so it only tells one beat from another."""
    pid: int
    """For debugging."""
    ended: bool


class Round:
    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def begin(staging: Path, work: Work) -> Round:
        """A new one in `staging`. Raises `EnvironmentFailed`."""
        made = Round(staging / f"round-{secrets.token_hex(4)}")
        with storing(staging, "prepare a directory"):
            for name in ("", "ranks", "failed", "logs"):
                (made.path / name).mkdir()
        content = pickle.dumps((versions(), pickle.dumps(work)))
        write_atomically(made.path / _WORK, content)
        return made

    def work(self) -> Work:
        """Raises `UsageError` where it cannot be done as its coordinator would do it."""
        try:
            planned, content = pickle.loads((self.path / _WORK).read_bytes())
        except FileNotFoundError as error:
            raise UsageError(
                f"not there on {platform.node()}",
                where=str(self.path),
                do="--on needs storage that all machines share under the same paths (or the "
                "preparation was ended meanwhile)",
            ) from error
        here = versions()
        for name, version in planned.items():
            if here.get(name) != version:
                raise UsageError(
                    f"{name} {here.get(name) or 'is missing'} on {platform.node()}, "
                    f"{version} where the preparation was started",
                    do="install the same versions on all machines",
                )
        work = pickle.loads(content)
        assert isinstance(work, Work)
        return work

    def beat(self, rank: int, life: str, beat: Beat) -> None:
        """Raises `OSError`, as when the round was taken away."""
        path = self.path / "ranks" / f"{rank:05d}.json"
        temporary = path.with_name(f".{path.name}.{life}")
        temporary.write_text(json.dumps(asdict(beat)))
        os.replace(temporary, path)

    def beats(self) -> dict[int, Beat]:
        """The last one of each rank that has begun."""
        found = {}
        for path in sorted(self.path.glob("ranks/[!.]*.json")):
            with suppress(UsageError):  # between two of them, as some network storage shows it
                found[int(path.stem)] = read_json(path, Beat)
        return found

    def fail(self, name: str, error: BaseException) -> None:
        """Write why a rank, or the executor itself, ended; the others end too where that is final."""
        failure = _reported(error)
        write_atomically(self.path / "failed" / f"{name}.pickle", pickle.dumps(failure))
        if is_final(failure):
            (self.path / _STOP).touch()

    def failures(self) -> list[Exception]:
        return [pickle.loads(p.read_bytes()) for p in sorted(self.path.glob("failed/[!.]*.pickle"))]

    @property
    def stopped(self) -> bool:
        """True when ranks are to end: one failed for good, or the round was taken away."""
        return (self.path / _STOP).exists() or not (self.path / _WORK).exists()

    def submission(self) -> list[str]:
        """The jobs of Slurm that do it; empty where there are none."""
        try:
            return [str(job) for job in json.loads((self.path / SUBMISSION).read_bytes())["jobs"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def log_tail(self, lines: int = 8) -> str:
        """The last lines that the executor wrote."""
        try:
            text = (self.path / "logs" / "executor.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n  ".join(line for line in text.splitlines()[-lines:] if line.strip())

    def remove(self) -> None:
        # First what ranks look at: the rest of a large one takes a while.
        (self.path / _WORK).unlink(missing_ok=True)
        for _ in range(3):  # a rank may be making files
            shutil.rmtree(self.path, ignore_errors=True)


def rounds_in(staging: Path) -> list[Round]:
    return [Round(path) for path in sorted(staging.glob(ROUNDS))]


def is_final(failure: Exception) -> bool:
    """True where doing it again would end in the same way."""
    return not isinstance(failure, EnvironmentFailed)


def versions() -> dict[str, str | None]:
    """Versions of all packages that have to be the same on all machines; `None` where one is not installed."""
    found: dict[str, str | None] = {"hotloop": hotloop.__version__}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _reported(error: BaseException) -> Exception:
    """An error of this machine as its coordinator is to raise it."""
    node = platform.node()
    if isinstance(error, OSError):
        error = storage_error(error, error.filename or node, "write the prepared text")
    elif isinstance(error, MemoryError):
        error = EnvironmentFailed("out of memory")
    if not isinstance(error, HotloopError):
        return RuntimeError(f"on {node}: {type(error).__name__}: {error}")
    error.where = error.where or node
    if error.do is not None and "--workers" in error.do:
        error.do = "if memory ran out, give each rank more of it (mem_per_cpu_gb) or fewer CPUs"
    return error


def collect(round_: Round, wanted: Mapping[int, str], vocabulary_size: int) -> dict[int, JobRecord]:
    """Move the finished jobs of a round that are `wanted` (number: key) to where it stands; their records.

    A record whose shards are not, to the last byte, as it describes them, is removed, and is a failure of the
    round. Raises `EnvironmentFailed`.
    """
    staging = round_.path.parent
    found = {
        number: path
        for path in sorted(round_.path.glob("rank-*/job-*.json"))
        if (number := _number(path)) in wanted
    }

    def look(number: int) -> tuple[int, JobRecord | None, str | None]:
        path = found[number]
        try:
            record = read_json(path, JobRecord)
        except UsageError as error:
            return number, None, f"{path.name}: {error.what}"
        if record.key != wanted[number]:
            return number, None, None
        return number, record, record_damage(record, path.parent, id_type_of(vocabulary_size))

    taken: dict[int, JobRecord] = {}
    workers = max(int(cpu_quota()), 1)
    with storing(staging, "collect what the ranks made"), ThreadPoolExecutor(workers) as threads:
        for number, record, wrong in threads.map(look, list(found)):
            if wrong is not None:
                round_.fail(f"damaged-{number:05d}", EnvironmentFailed(f"damaged: {wrong}"))
                found[number].unlink(missing_ok=True)
            elif record is not None:
                for name in record.files:
                    os.replace(found[number].with_name(name), staging / name)
                fsync_directory(staging)
                write_json(record_path(staging, number), record)
                found[number].unlink(missing_ok=True)
                taken[number] = record
    return taken


def collect_left(target: Path, *, keep_submitted: bool) -> None:
    """Take what the rounds of an ended coordinator finished, and clear them away.

    Those that Slurm was given stay with `keep_submitted`. Call it before the plan is made: what fits
    the plan that is there now is kept in the new one, as all finished jobs are.
    """
    staging = target / STAGING
    rounds = rounds_in(staging)
    if not rounds:
        return
    try:
        plan = json.loads((staging / PLAN).read_bytes())
        wanted, size = dict(enumerate(plan["keys"])), int(plan["vocabulary_size"])
    except (OSError, ValueError, KeyError, TypeError):
        wanted, size = {}, 0
    for round_ in rounds:
        collect(round_, wanted, size)
        if not (keep_submitted and round_.submission()):
            round_.remove()


def _number(path: Path) -> int:
    number = path.stem.partition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1
