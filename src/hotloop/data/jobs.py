"""Jobs: runs of units with a key each, cut in the same way whoever does them and when."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.data.sources.unit import ReadOptions, Unit

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
        [
            [
                recipe.sources[unit.source],
                unit.name,
                unit.format,
                unit.compression,
                unit.begin,
                unit.end,
                unit.state,
            ]
            for unit in job.units
        ],
    ]
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()
