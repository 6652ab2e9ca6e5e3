"""Takes what ranks made into the preparation, after reading every byte of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import fsync_directory, read_json, storage_error, write_json
from hotloop.data.cluster.round import Round, rounds_in
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

    A record whose shards are not, to the last byte, as it describes them, is removed, and is a failure of the
    round. `taken` writes the record. Raises `EnvironmentFailed`.
    """
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

    try:
        with ThreadPoolExecutor(max(int(cpu_quota()), 1)) as threads:
            for number, record, wrong in threads.map(look, list(found)):
                if wrong is not None:
                    round_.fail(f"damaged-{number:05d}", EnvironmentFailed(f"damaged: {wrong}"))
                    found[number].unlink(missing_ok=True)
                elif record is not None:
                    _move(record, found[number].parent, staging)
                    taken(number, record)
                    found[number].unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, staging, "collect what the ranks made") from error


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

    def taken(number: int, record: JobRecord) -> None:
        write_json(staging / f"job-{number:05d}.json", record)

    for round_ in rounds:
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
