"""The jobs of a preparation as one process does them: here, or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.data.encode import Encoding, JobEncoder, JobProgress
from hotloop.data.engines.engine import REFERENCE, Engine, EngineRefused, load_engine
from hotloop.data.engines.router import Routing, route
from hotloop.data.jobs import Job, Recipe
from hotloop.data.manifest import JobRecord
from hotloop.data.sample import engine_sample
from hotloop.data.sources.unit import ReadOptions, Unit
from hotloop.data.tokenizer import Tokenizer

AUTO = "auto"
ROUTED_BYTES = 4 << 20
"""A smaller corpus is encoded by the reference sooner than engines are compared."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a process needs to know before its first job. It travels to workers."""

    directory: Path
    """Where shards are collected."""
    tokenizer: bytes
    """tokenizer.json"""
    where: str
    """Of the tokenizer, for errors."""
    recipe: Recipe
    reading: ReadOptions
    threads: int
    """For the engine in this process."""


class Worker:
    """Does jobs of one task, one at a time."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._tokenizer = Tokenizer(task.tokenizer.decode(), where=task.where)
        self._engine: Engine | None = None

    def route(self, units: Sequence[Unit], share: int | None = None) -> Routing:
        """Choose an engine on a sample of these units (of all of a corpus, or of some that were
        chosen, each with its `share`), and keep it loaded.
        """
        routing, self._engine = route(
            self._tokenizer,
            engine_sample(units, self._task.reading, share=share),
            threads=self._task.threads,
        )
        return routing

    def use(self, engine: str) -> None:
        """Take an engine by name. Raises `UsageError` if it cannot be used."""
        if self._engine is not None and self._engine.name == engine:
            return
        try:
            self._engine = load_engine(engine, self._tokenizer, threads=self._task.threads)
        except EngineRefused as error:
            raise UsageError(
                f"the engine {engine} cannot be used: {error}", do="choose --engine auto"
            ) from error

    def encode(self, job: Job, key: str, progress: JobProgress) -> Callable[[], JobRecord]:
        """Do a job but for the waiting: what is returned makes it durable and gives its record."""
        assert self._engine is not None
        encoder = JobEncoder(
            job,
            key,
            Encoding(
                directory=self._task.directory,
                tokenizer=self._tokenizer,
                engine=self._engine,
                recipe=self._task.recipe,
                reading=self._task.reading,
                threads=self._task.threads,
            ),
        )
        encoder.run(progress)
        return encoder.finish


def chosen_engine(asked: str, total_bytes: int) -> str | None:
    """The engine if it is known without a sample."""
    if asked != AUTO:
        return asked
    return REFERENCE if total_bytes < ROUTED_BYTES else None
