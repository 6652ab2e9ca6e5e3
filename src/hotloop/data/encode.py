"""One job: from its units to its shards and its record."""

from __future__ import annotations

import hashlib

import numpy as np

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import storage_error
from hotloop.data.engines import REFERENCE, EngineRefused, SpotChecks, load_engine
from hotloop.data.gather import TextBatch, read_batches, salt_of
from hotloop.data.jobs import Job, JobProgress, Task
from hotloop.data.loader import Prefetch
from hotloop.data.manifest import JobRecord, Shard, SourceSummary, id_type_of, summary_of
from hotloop.data.shards import ShardWriter
from hotloop.data.sources import Report
from hotloop.data.tokenizer import Tokenizer

CHECK_ONE_IN = 4096
"""Documents that the reference encodes as well: under 2 % of the time at 100 MB/s."""
UNKNOWN = "tokens for text that the vocabulary cannot spell"


class Worker:
    """Does jobs of one task, one at a time, by one engine."""

    def __init__(self, task: Task, engine: str, tokenizer: Tokenizer) -> None:
        """`tokenizer` is the task's. Raises `UsageError` for an engine that cannot be used."""
        self.task = task
        self.tokenizer = tokenizer
        try:
            self.engine = load_engine(engine, self.tokenizer, threads=task.threads)
        except EngineRefused as error:
            raise UsageError(
                f"the engine {engine} cannot be used: {error}", do="choose --engine auto"
            ) from error

    def encode(self, job: Job, key: str, progress: JobProgress) -> JobRecord:
        """Do a job; `shards.make_durable` is left to do. Raises `UsageError` and `EnvironmentFailed`."""
        try:
            return _JobEncoder(job, key, self).run(progress)
        except OSError as error:
            where = error.filename or self.task.directory
            raise storage_error(error, where, "write the prepared text") from error
        except MemoryError as error:
            raise EnvironmentFailed("out of memory", do="give fewer --workers") from error


class _JobEncoder:
    """Encodes one job."""

    def __init__(self, job: Job, key: str, worker: Worker) -> None:
        self._job = job
        self._key = key
        self._task = worker.task
        self._recipe = worker.task.recipe
        self._tokenizer, self._engine = worker.tokenizer, worker.engine
        self._writers = [
            ShardWriter(
                self._task.directory,
                split,
                job.number,
                id_type=id_type_of(self._tokenizer.vocabulary_size),
                shard_tokens=self._recipe.shard_tokens,
            )
            for split in ("train", "validation")
        ]
        self._reports: dict[int, Report] = {}
        self._sources: dict[int, _Read] = {}
        self._lowest, self._highest = 2**64, -1
        self._checks: SpotChecks | None = None
        if self._engine.name != REFERENCE:
            self._checks = SpotChecks(self._tokenizer, self._engine.name, CHECK_ONE_IN)

    def run(self, progress: JobProgress) -> JobRecord:
        try:
            batches = read_batches(
                self._job.units,
                self._recipe.reading,
                self._reports,
                salt=salt_of(self._recipe.seed),
                quick=self._recipe.quick,
                batch_bytes=self._engine.batch_bytes,
                encode=self._tokenizer.encode,
            )
            with Prefetch(batches, depth=2 if self._task.threads > 1 else 0) as ready:
                for batch in ready:
                    tokens = self._encode(batch)
                    progress(batch.progress_bytes, batch.num_bytes, tokens)
            return self._record(self._writers[0].finish() + self._writers[1].finish())
        except BaseException:
            for writer in self._writers:
                writer.abandon()
            raise

    def _encode(self, batch: TextBatch) -> int:
        read = self._sources.setdefault(batch.source, _Read())
        read.add(batch)
        if not batch.texts:
            return 0
        ids, lengths = self._engine.encode(batch.texts, batch.contents)
        if len(lengths) != len(batch.texts) or int(lengths.sum()) != len(ids):
            raise RuntimeError(f"{self._engine.name} gave {len(lengths)} encodings")
        if self._tokenizer.unknown is not None:
            read.unknown += int(np.count_nonzero(ids == self._tokenizer.unknown))
        keys = np.frombuffer(b"".join(batch.keys), dtype="<u8").reshape(-1, 2)
        if self._checks is not None:
            self._checks(keys[:, 1], batch.texts, batch.origins, ids, np.cumsum(lengths))
        finished = np.ones(len(lengths), dtype=np.bool_)
        finished[batch.unfinished] = False
        flat, ends = self._joined(ids, lengths, finished)
        self._lowest = min(self._lowest, int(keys[:, 0].min()))
        self._highest = max(self._highest, int(keys[:, 0].max()))
        held_out = keys[:, 0] < np.uint64(self._recipe.held_out_below)
        self._write(flat, ends, finished, held_out)
        return len(flat)

    def _joined(
        self, ids: np.ndarray, lengths: np.ndarray, finished: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids as they are stored, each finished text closed, and where the texts end in them."""
        size = self._tokenizer.vocabulary_size
        if len(ids) and int(ids.max()) >= size:
            raise UsageError(f"the tokenizer gave id {int(ids.max())}, beyond its {size} ids")
        closed = np.cumsum(lengths)[finished]
        flat = np.insert(ids.astype(self._writers[0].dtype), closed, self._tokenizer.end_of_text)
        return flat, np.cumsum(lengths + finished)

    def _write(
        self, flat: np.ndarray, ends: np.ndarray, finished: np.ndarray, held_out: np.ndarray
    ) -> None:
        changes = np.flatnonzero(held_out[1:] != held_out[:-1]) + 1
        begin = 0
        for first, last in zip([0, *changes.tolist()], [*changes.tolist(), len(ends)]):
            end = int(ends[last - 1])
            whole = ends[first:last][finished[first:last]]
            self._writers[int(held_out[first])].write(flat[begin:end], whole - begin)
            begin = end

    def _record(self, shards: tuple[Shard, ...]) -> JobRecord:
        given = self._recipe.sources
        return JobRecord(
            key=self._key,
            shards=shards,
            sources=tuple(
                (number, read.summary(given[number], self._reports[number]))
                for number, read in sorted(self._sources.items())
            ),
            lowest_key=self._lowest,
            highest_key=self._highest,
            held_out_below=self._recipe.held_out_below,
            engine=self._engine.described,
        )


class _Read:
    """Totals of one source."""

    def __init__(self) -> None:
        self._documents = 0
        self._bytes = 0
        self.unknown = 0
        """Ids that say that the vocabulary could not spell something."""
        self._hash = hashlib.sha256()

    def add(self, batch: TextBatch) -> None:
        self._documents += len(batch.texts) - len(batch.unfinished)
        self._bytes += batch.num_bytes
        self._hash.update(b"".join(batch.digests))

    def summary(self, source: str, report: Report) -> SourceSummary:
        if self.unknown:
            report.altered[UNKNOWN] = self.unknown
        return summary_of(
            source,
            report,
            documents=self._documents,
            bytes=self._bytes,
            sha256=self._hash.hexdigest(),
        )
