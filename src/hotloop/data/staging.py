"""A directory that is replaced whole or not at all, by one process at a time, after any number of tries.

Work is collected in a hidden directory inside the target (the same file system, and it may be a
mount point): the shards of finished jobs, each with a record that is written last. When all are
there, the manifest is written into it; from then on every run ends the renaming into the target,
`manifest.json` last. A target without a manifest is unfinished.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from hotloop.core import file_locks
from hotloop.core.errors import UsageError
from hotloop.core.files import (
    fsync_directory,
    read_json,
    storage_error,
    storing,
    write_atomically,
    write_json,
)
from hotloop.core.progress import Progress
from hotloop.data.manifest import (
    MANIFEST,
    PREPARED_SCHEMA,
    SHARD_NAME,
    TOKENIZER,
    JobRecord,
    Manifest,
    id_type_of,
)
from hotloop.data.prepared import record_damage
from hotloop.data.tokenizer import Tokenizer
from hotloop.hardware.limits import cpu_quota

STAGING = ".hotloop-preparing"
_OLD_STAGING = ".hotloop-preparing-old"
_TRAINED = ".hotloop-preparing-tokenizer"
PLAN = "plan.json"
ROUNDS = "round-*"
"""Directories of ranks on several machines, see `cluster/round.py`."""
SUBMISSION = "submission.json"
"""In a round: jobs of Slurm are at work on it."""
_SCHEMA_NAME = PREPARED_SCHEMA.partition("/")[0] + "/"


def is_finished(target: Path, *, force: bool = False) -> bool:
    """True if the locked target holds a finished preparation.

    Ends a renaming that was interrupted. Clears away what is left of older ones, and with `force` a
    preparation whose manifest is lost or damaged. Raises `UsageError` for a directory that holds
    other things.
    """
    if (target / STAGING / MANIFEST).exists():
        commit(target)
    names = {path.name for path in target.iterdir()} - {LOCK}
    leftovers = {name for name in names if name.startswith(STAGING)}
    foreign = sorted(name for name in names - leftovers if not _is_ours(name))
    # Only what cannot be anything else: a tokenizer, and shards with their document ends.
    whole = TOKENIZER in names and any(
        name.endswith(".bin") and f"{name[:-4]}.docs" in names for name in names if _is_ours(name)
    )
    damaged = whole and not foreign
    if MANIFEST in names:
        foreign = [] if _is_our_manifest(target / MANIFEST) else [MANIFEST]
    elif not leftovers:
        foreign = sorted(names)
    if foreign and damaged and not force:
        raise UsageError(
            f"the directory holds shards, but {MANIFEST} is missing or damaged",
            where=str(target),
            do="give --force to write it again, or choose another directory",
        )
    if foreign and not damaged:
        raise UsageError(
            f"the directory holds something else ({foreign[0]})",
            where=str(target),
            do="choose an empty or a new directory",
        )
    with storing(target, "clear away an unfinished preparation"):
        if MANIFEST not in names:
            for name in names - leftovers:
                (target / name).unlink()
    return MANIFEST in names


def is_read_only(target: Path) -> bool:
    """True if nothing can be written beside the manifest of a finished preparation."""
    if not (target / MANIFEST).is_file() or (target / STAGING).exists():
        return False
    return not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


class Staging:
    """The finished jobs of one plan. Errors are those of `core.files`."""

    def __init__(self, target: Path, keys: list[str], tokenizer: Tokenizer) -> None:
        """Go on with what is there if it has the same plan; else begin, and keep what fits it."""
        self.path = target / STAGING
        self._old = target / _OLD_STAGING
        self._keys = keys
        self._id_type = id_type_of(tokenizer.vocabulary_size)
        described = {
            "schema": PREPARED_SCHEMA,
            "num_jobs": len(keys),
            "vocabulary_size": tokenizer.vocabulary_size,
            "id_type": self._id_type,
            "end_of_text": tokenizer.end_of_text,
            "keys": keys,
        }
        plan = (json.dumps(described) + "\n").encode()
        with storing(target, "prepare a directory"):
            if not ((self.path / PLAN).exists() and (self.path / PLAN).read_bytes() == plan):
                if (self.path / PLAN).exists():
                    if self._old.exists():
                        shutil.rmtree(self._old)
                    os.replace(self.path, self._old)
                self.path.mkdir(exist_ok=True)
                tokenizer.save(self.path / TOKENIZER)
                write_atomically(self.path / PLAN, plan)  # last: who reads it finds the rest
            for path in self.path.glob(".*.part"):
                path.unlink()

    def records(self) -> dict[int, JobRecord]:
        """The finished jobs, by number; one whose shards are not what it says is done again."""
        if self._old.exists():
            old = []
            for path in sorted(self._old.glob("job-*.json")):
                with suppress(UsageError):  # of another version, or damaged
                    old.append(read_json(path, JobRecord))
            self.keep(old, self._old)
            shutil.rmtree(self._old, ignore_errors=True)  # ranks may be leaving files there
        found = {
            number: record
            for number, key in enumerate(self._keys)
            if (record := read_record(self.path, number, key)) is not None
        }
        with ThreadPoolExecutor(max(int(cpu_quota()), 1)) as threads:
            check = partial(record_damage, directory=self.path, id_type=self._id_type)
            damages = list(threads.map(check, found.values()))
        for number, damage in zip(list(found), damages):
            if damage is not None:
                del found[number]
                record_path(self.path, number).unlink(missing_ok=True)
        return found

    def keep(self, records: list[JobRecord], directory: Path) -> None:
        """Take over those jobs of another preparation in `directory` that this plan has too."""
        numbers = {key: number for number, key in enumerate(self._keys)}
        for record in records:
            number = numbers.get(record.key)
            if number is None or record_path(self.path, number).exists():
                continue
            try:
                self.write(number, _renumbered(record, number, directory, self.path))
            except FileNotFoundError:
                continue  # not whole: it is done again
            except OSError as error:
                raise storage_error(error, self.path, "keep finished work") from error

    def write(self, number: int, record: JobRecord) -> None:
        """After its shards are durable."""
        write_json(record_path(self.path, number), record)


def record_path(directory: Path, number: int) -> Path:
    return directory / f"job-{number:05d}.json"


def read_record(directory: Path, number: int, key: str) -> JobRecord | None:
    """The record of a finished job; `None` without one, and for one that is damaged or of another key."""
    try:
        record = read_json(record_path(directory, number), JobRecord)
    except UsageError:
        return None
    return record if record.key == key else None


def discard_staging(target: Path, *, unless_useful: bool = False) -> bool:
    """Remove unfinished work, with `unless_useful` only if no job is finished; whether it did."""
    useful = any(
        any((target / name).glob(pattern))
        for name in (STAGING, _OLD_STAGING)
        for pattern in ("job-*.json", f"{ROUNDS}/rank-*/job-*.json", f"{ROUNDS}/{SUBMISSION}")
    )
    if useful and unless_useful:
        return False
    for name in (_TRAINED, _OLD_STAGING, STAGING):
        shutil.rmtree(target / name, ignore_errors=True)
    return True


def keep_trained(target: Path, key: str, tokenizer: Tokenizer, held_out_below: int) -> None:
    """Keep a tokenizer trained for the plan `key`, so that a killed run need not train it again."""
    directory = target / _TRAINED
    shutil.rmtree(directory, ignore_errors=True)
    tokenizer.save(directory / TOKENIZER)
    write_json(directory / PLAN, {"key": key, "held_out_below": held_out_below})


def kept_trained(target: Path, key: str) -> tuple[Tokenizer, int] | None:
    """What `keep_trained` kept for the same plan."""
    try:
        kept = json.loads((target / _TRAINED / PLAN).read_bytes())
        if kept["key"] != key:
            return None
        return Tokenizer.load(target / _TRAINED / TOKENIZER), int(kept["held_out_below"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _renumbered(record: JobRecord, number: int, source: Path, directory: Path) -> JobRecord:
    """The same job under another number, its files linked or copied. Raises `OSError`."""
    shards = []
    for shard in record.shards:
        new = [re.sub(r"-[0-9]+", f"-{number:05d}", name, count=1) for name in shard.files]
        for old, name in zip(shard.files, new):
            _link(source / old, directory / name)
        shards.append(replace(shard, file=new[0], documents_file=new[1]))
    fsync_directory(directory)
    return replace(record, shards=tuple(shards))


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def commit(target: Path) -> None:
    """Rename what was collected into the target. It may be called again after a kill anywhere.

    Raises `EnvironmentFailed` and, for a damaged manifest, `UsageError`.
    """
    staging = target / STAGING
    manifest = read_json(staging / MANIFEST, Manifest)
    new = [TOKENIZER, *(name for job in manifest.jobs for name in job.files)]
    with storing(target, "write the prepared text"):
        fsync_directory(staging)
        (target / MANIFEST).unlink(missing_ok=True)
        fsync_directory(target)  # never the old manifest beside new shards
        for name in {path.name for path in target.iterdir()}.difference(new):
            if _is_ours(name):
                (target / name).unlink()
        for name in new:
            if (staging / name).exists():
                os.replace(staging / name, target / name)
        fsync_directory(target)
        os.replace(staging / MANIFEST, target / MANIFEST)
        fsync_directory(target)
    discard_staging(target)


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, TOKENIZER) or SHARD_NAME.fullmatch(name) is not None


def _is_our_manifest(path: Path) -> bool:
    """True for one of any version: `--force` may replace an old one, never somebody else's manifest.json."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and str(values.get("schema")).startswith(_SCHEMA_NAME)


LOCK = ".hotloop-prepare.lock"
_POLL_S = 0.1


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold `target`, made if missing; waits while another process holds it.

    Directories made here are removed again if they are still empty at the end.
    """
    made = [path for path in (target, *target.parents) if not path.exists()]
    descriptor = _acquire(target, progress)
    try:
        yield
    finally:
        # Unlinked while held: a waiter sees that its file is gone and opens a new one.
        (target / LOCK).unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):  # one that holds something: the result
            for path in made:
                path.rmdir()


def _acquire(target: Path, progress: Progress) -> int:
    started = time.monotonic()
    vanished = 0
    while True:
        try:
            target.mkdir(parents=True, exist_ok=True)
            descriptor = file_locks.lock_file(target / LOCK)
            if descriptor is not None:
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), (target / LOCK).stat()):
                        return descriptor
                os.close(descriptor)
                continue
        except OSError as error:
            # Another process that fails takes away the directory it made: begin again.
            vanished += 1
            if isinstance(error, FileNotFoundError) and vanished < 100:
                continue
            raise storage_error(error, target, "lock a directory") from error
        progress("waiting for another prepare", time.monotonic() - started, None, str(target))
        time.sleep(_POLL_S)


def is_held(target: Path) -> bool:
    """True while some process is preparing `target` now."""
    return file_locks.is_held(
        target / LOCK, shared=True
    )  # shared: not in the way of others that look
