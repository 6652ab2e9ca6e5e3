"""Takes what ranks made into the preparation, after reading every byte of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.files import fsync_directory, read_json, storage_error, write_json
from hotloop.data.cluster.round import RECORDS, Round, rounds_in
from hotloop.data.manifest import JobRecord, id_type_of
from hotloop.data.staging import PLAN, STAGING
from hotloop.data.verify import record_damage
from hotloop.hardware.limits import cpu_quota


def collect(
    round_: Round,
    staging: Path,
    wanted: Mapping[int, str],
    vocabulary_size: int,
    taken: Callable[[int, JobRecord], None],
) -> None:
    """Move the finished jobs of a round that are `wanted` (number: key) to `staging`.

    A record whose shards are not, to the last byte, what it says, is taken away, and the round
    remembers it. `taken` writes the record. Raises `EnvironmentFailed`.
    """
    found = [
        (path, number)
        for path in sorted(round_.path.glob(RECORDS))
        if (number := _number(path)) in wanted
    ]
    done: set[int] = set()

    def look(entry: tuple[Path, int]) -> tuple[Path, int, JobRecord | None, str | None]:
        path, number = entry
        try:
            record = read_json(path, JobRecord)
        except UsageError as error:
            return path, number, None, f"{path.name}: {error.what}"
        if record.key != wanted[number]:
            return path, number, None, None
        return path, number, record, record_damage(record, path.parent, id_type_of(vocabulary_size))

    try:
        with ThreadPoolExecutor(max(int(cpu_quota()), 1)) as threads:
            for path, number, record, wrong in threads.map(look, found):
                if wrong is not None:
                    round_.remember_damage(wrong)
                    path.unlink(missing_ok=True)
                elif record is not None and number not in done:
                    _move(record, path.parent, staging)
                    taken(number, record)
                    path.unlink(missing_ok=True)
                    done.add(number)
    except OSError as error:
        raise storage_error(error, staging, "collect what the ranks made") from error


def collect_left(target: Path, *, keep_submitted: bool) -> None:
    """Take what the rounds of an ended coordinator finished, and clear them away.

    Those that Slurm was given stay with `keep_submitted`. Call it before the plan is made: what fits
    the plan that is there now is kept in the new one, as all finished jobs are.
    """
    staging = target / STAGING
    rounds = list(rounds_in(staging))
    if not rounds:
        return
    try:
        plan = json.loads((staging / PLAN).read_bytes())
        wanted, size = dict(enumerate(plan["keys"])), int(plan["vocabulary_size"])
    except (OSError, ValueError, KeyError, TypeError):
        wanted, size = {}, 0

    def taken(number: int, record: JobRecord) -> None:
        write_json(staging / f"job-{number:05d}.json", record)

    for round_ in rounds:
        if wanted:
            collect(round_, staging, wanted, size, taken)
        if not (keep_submitted and round_.submission()):
            round_.remove()


def _number(path: Path) -> int:
    number = path.stem.partition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def _move(record: JobRecord, source: Path, staging: Path) -> None:
    for shard in record.shards:
        for name in (shard.file, shard.documents_file):
            os.replace(source / name, staging / name)
    fsync_directory(staging)
