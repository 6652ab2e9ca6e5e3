"""Jobs done, by worker processes or here, with records written as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from hotloop.core.files import storing
from hotloop.core.progress import Progress
from hotloop.data.encode import Worker
from hotloop.data.engines import AUTO, REFERENCE, Routing, route
from hotloop.data.gather import engine_sample
from hotloop.data.jobs import Job, Pool, Recipe, Task, job_key
from hotloop.data.manifest import JobRecord
from hotloop.data.shards import make_durable
from hotloop.data.staging import Staging
from hotloop.data.tokenizer import Tokenizer

HERE_BYTES = 1 << 20
"""Less than this is done sooner than a process is started for it."""
ROUTED_BYTES = 4 << 20
"""A smaller corpus is encoded by the reference sooner than engines are compared."""


@dataclass(frozen=True, slots=True)
class EncodingSummary:
    """The encoding that one call did itself."""

    jobs: int
    """Done now; the others were there."""
    bytes: int
    """UTF-8 text in them."""
    tokens: int
    wall_s: float
    """From the first job's start to the last one's end."""
    processes: int
    threads: int
    """In each of them."""
    engine: str
    routing: Routing | None
    """`None` where the engine was asked for, or the corpus is too small to compare them."""
    on: str | None = None
    """Ranks that did it on other machines, as `ray:8`; `None`: this process and its workers."""


class Executor:
    """Does jobs, by the cores it is given."""

    def __init__(
        self, *, tokenizer: Tokenizer, engine: str, workers: int, progress: Progress
    ) -> None:
        self._tokenizer = tokenizer
        self._workers = workers
        self._progress = progress
        self._engine = None if engine == AUTO else engine
        self._routing: Routing | None = None
        self._done: dict[int, JobRecord] = {}
        self._wall_s = 0.0
        self._processes, self._threads = 1, workers
        self._on: str | None = None

    def run(
        self, jobs: Sequence[Job], recipe: Recipe, staging: Staging, records: dict[int, JobRecord]
    ) -> None:
        """Do jobs and add their records. Raises `UsageError` and `EnvironmentFailed`."""
        if not jobs:
            return
        total = sum(job.num_bytes for job in jobs)
        here = len(jobs) == 1 or total <= HERE_BYTES
        self._processes = 1 if here else min(self._workers, len(jobs))
        self._threads = max(self._workers // self._processes, 1)
        task = self._task(staging.path, recipe, self._threads)
        keyed = [(job, job_key(job, recipe)) for job in jobs]

        def done(number: int, record: JobRecord) -> None:
            with storing(staging.path, "write the prepared text"):
                make_durable(record.files, staging.path)
            staging.write(number, record)
            records[number] = record
            self._done[number] = record  # once, also where its split had to be another

        if here:
            worker = Worker(task, self._chosen_engine(jobs, recipe), self._tokenizer)
            meter = Meter(self._progress, total)
            for job, key in keyed:
                done(job.number, worker.encode(job, key, meter))
        else:
            with Pool(task, self._processes) as pool:
                engine = self._chosen_engine(jobs, recipe)  # while the workers start
                meter = Meter(self._progress, total)
                pool.run(keyed, engine, progress=meter, done=done)
        self._wall_s += meter.elapsed

    def _task(self, directory: Path, recipe: Recipe, threads: int) -> Task:
        return Task(directory, self._tokenizer.to_json(), recipe, threads)

    def _chosen_engine(self, jobs: Sequence[Job], recipe: Recipe) -> str:
        """The same for all calls; compares engines at the first one where none was asked for."""
        if self._engine is None and sum(job.num_bytes for job in jobs) < ROUTED_BYTES:
            self._engine = REFERENCE
        if self._engine is None:
            self._progress("comparing engines", 0, None, "")
            sample = engine_sample([unit for job in jobs for unit in job.units], recipe.reading)
            self._routing = route(self._tokenizer, sample, threads=self._workers)
            self._engine = self._routing.engine
        return self._engine

    def summary(self) -> EncodingSummary | None:
        """`None` when there was nothing to do."""
        if not self._done or self._engine is None:
            return None
        records = self._done.values()
        return EncodingSummary(
            jobs=len(records),
            bytes=sum(source.bytes for record in records for _, source in record.sources),
            tokens=sum(shard.tokens for record in records for shard in record.shards),
            wall_s=self._wall_s,
            processes=self._processes,
            threads=self._threads,
            engine=self._engine,
            routing=self._routing,
            on=self._on,
        )


class Meter:
    """Reports how far the encoding is, how fast, and how long it will still take."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = self._text = self._tokens = 0
        self._started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start, above 0."""
        return max(time.monotonic() - self._started, 1e-9)

    def __call__(self, planned: int, text: int, tokens: int) -> None:
        self._done += planned
        self._text += text
        self._tokens += tokens
        elapsed = self.elapsed
        seconds = (self._total - self._done) * elapsed / max(self._done, 1)
        left = timedelta(seconds=round(seconds))
        self._progress(
            "encoding",
            self._done,
            self._total,
            f"{self._text / 1e6 / elapsed:.1f} MB/s, {self._tokens:,} tokens, {left} left",
        )
