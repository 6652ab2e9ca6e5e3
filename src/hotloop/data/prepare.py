"""Sources to a prepared directory: planned, encoded by all cores, the same bytes always."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hotloop.core.errors import HotloopError, Interrupted, UsageError
from hotloop.core.files import write_json
from hotloop.core.progress import Progress, silent
from hotloop.data.cluster.collect import collect_left
from hotloop.data.engines.check import EngineDiffers, check_conversion
from hotloop.data.engines.engine import AUTO
from hotloop.data.execute import EncodingSummary, Executor
from hotloop.data.jobs import Recipe, is_large, job_bytes_for, job_key, jobs_of
from hotloop.data.locks import locked
from hotloop.data.manifest import (
    MANIFEST,
    TOKENIZER,
    JobRecord,
    Manifest,
    SourceSummary,
    histogram_of,
    id_type_of,
    sealed,
    summed,
    totals_of,
)
from hotloop.data.sample import held_out_below, training_sample
from hotloop.data.shards import SHARD_TOKENS
from hotloop.data.sources.files import spool_standard_input
from hotloop.data.sources.plan import Plan, plan
from hotloop.data.sources.unit import STANDARD_INPUT, ReadOptions
from hotloop.data.staging import (
    Staging,
    commit,
    discard_staging,
    input_directory,
    is_finished,
    is_read_only,
    keep_trained,
    kept_trained,
)
from hotloop.data.tokenizer import Tokenizer, train_tokenizer
from hotloop.data.tokenizer_specs import load_tokenizer, trained_size
from hotloop.data.wish import (
    NoTextError,
    Wish,
    no_text,
    plan_key,
    refuse_impossible,
    refuse_on,
    same_or_changed,
)
from hotloop.hardware.limits import cpu_quota

if TYPE_CHECKING:
    from hotloop.data.cluster.request import ClusterRequest


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a call of `prepare_text` did."""

    manifest: Manifest
    outcome: Literal["written", "updated", "up_to_date"]
    wall_s: float
    encoding: EncodingSummary | None
    """Of this call's own work; `None` when it had nothing to do."""


def prepare(
    sources: Sequence[str],
    out: Path,
    *,
    tokenizer: str,
    validation_fraction: float = 0.01,
    seed: int = 0,
    text_field: str = "text",
    force: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Write a prepared directory, or keep the one that is already the same. See `prepare_text`."""
    return prepare_text(
        sources,
        out,
        tokenizer=tokenizer,
        validation_fraction=validation_fraction,
        seed=seed,
        reading=ReadOptions(text_field=text_field),
        force=force,
        progress=progress,
    ).manifest


def prepare_text(
    sources: Sequence[str],
    out: Path,
    *,
    tokenizer: str,
    end_of_text: str | None = None,
    validation_fraction: float = 0.01,
    seed: int = 0,
    reading: ReadOptions | None = None,
    force: bool = False,
    workers: int | None = None,
    engine: str = AUTO,
    on: ClusterRequest | None = None,
    progress: Progress = silent,
    shard_tokens: int = SHARD_TOKENS,
    job_bytes: int | None = None,
) -> Preparation:
    """Write `out` whole or leave it as it was. Safe to interrupt, to kill and to run twice at once.

    What a killed run finished is kept, and where sources have changed, only their jobs are done
    again. `workers` (processes, or threads where the work cannot be cut; `None`: all CPUs), `engine`
    and `on` (ranks of an executor of datatrove, on any machines that share the storage) do not
    change the result; `shard_tokens` and `job_bytes` change where shards end.
    Raises `UsageError` for bad sources, options or tokenizer, and for an `out` that holds something
    else; `EnvironmentFailed` when the disk is full or cannot be written; with Slurm, `Interrupted`
    while its jobs are at work.
    """
    started = time.monotonic()
    wish = Wish(
        tuple(sources),
        tokenizer,
        end_of_text,
        validation_fraction,
        seed,
        reading or ReadOptions(),
        shard_tokens,
        job_bytes,
    )
    refuse_impossible(wish, workers, engine)
    if on is not None:
        refuse_on(on, wish, out, workers)
    ready = None
    if trained_size(tokenizer) is None:
        ready = load_tokenizer(tokenizer, end_of_text=end_of_text)
    if out.exists() and not out.is_dir():
        raise UsageError("a file stands where the result should go", where=str(out))
    if not force and STANDARD_INPUT not in sources and is_read_only(out):
        # The lock would have to be written, and needs not be: nobody writes here.
        planned = plan(sources, wish.reading, exclude=out)
        there = same_or_changed(out, wish, ready)
        if there.plan_key == plan_key(wish, planned, ready):
            return Preparation(there, "up_to_date", time.monotonic() - started, None)
    with locked(out, progress) as lock, ExitStack() as closing:
        finished = is_finished(out, force=force)
        collect_left(out, keep_submitted=on is not None and on.kind == "slurm")
        progress("looking at the sources", 0, None, "")
        if STANDARD_INPUT in sources and wish.reading.standard_input is None:
            spooled = spool_standard_input(closing.enter_context(input_directory(out)))
            wish = replace(wish, reading=replace(wish.reading, standard_input=str(spooled)))
        planned = plan(sources, wish.reading, exclude=out)
        key = plan_key(wish, planned, ready)
        before = same_or_changed(out, wish, ready) if finished and not force else None
        if before is not None and before.plan_key == key:
            discard_staging(out)
            wall_s = time.monotonic() - started
            return Preparation(before, "up_to_date", wall_s, None)
        try:
            ready, below = _tokenizer(out, wish, planned, key, ready, progress)
            executor = _executor(ready, wish, engine, workers, on, lock, progress)
            manifest = _encode(out, wish, planned, key, ready, below, before, executor)
        except BaseException as error:
            # What was made of a source without text helps nobody; of others, it may.
            useless = isinstance(error, NoTextError) and len(sources) == 1
            wrong = isinstance(error, EngineDiffers) or useless
            discarded = discard_staging(out, unless_useful=not wrong)
            if isinstance(error, HotloopError) and not (
                discarded or isinstance(error, Interrupted)
            ):
                again = (
                    "a command without it" if isinstance(error, NoTextError) else "the same command"
                )
                kept = f"what is finished is kept: {again} goes on from there"
                error.do = f"{error.do}\n  {kept}" if error.do else kept
            raise
        commit(out)
    outcome: Literal["written", "updated"] = "written" if before is None else "updated"
    return Preparation(manifest, outcome, time.monotonic() - started, executor.summary())


def _executor(
    ready: Tokenizer,
    wish: Wish,
    engine: str,
    workers: int | None,
    on: ClusterRequest | None,
    lock: int,
    progress: Progress,
) -> Executor:
    options: dict[str, Any] = {
        "tokenizer": ready,
        "reading": wish.reading,
        "engine": engine,
        "workers": workers or max(int(cpu_quota()), 1),
        "inherited": [lock],
        "progress": progress,
    }
    if on is None:
        return Executor(**options)
    from hotloop.data.cluster.executor import ClusterExecutor

    return ClusterExecutor(on, **options)


def _tokenizer(
    out: Path, wish: Wish, planned: Plan, key: str, ready: Tokenizer | None, progress: Progress
) -> tuple[Tokenizer, int]:
    """The tokenizer, trained if need be, and the split key below which text is held out.

    That key is a first guess unless everything was read for the tokenizer's sample.
    """
    guess = int(wish.validation_fraction * 2**64)
    if ready is not None:
        check_conversion(ready, planned.units, wish.reading, progress=progress)
        return ready, guess
    size = trained_size(wish.tokenizer)
    assert size is not None
    kept = kept_trained(out, key)
    if kept is not None:
        return kept
    sample = training_sample(
        planned.units,
        wish.reading,
        seed=wish.seed,
        validation_fraction=wish.validation_fraction,
        progress=progress,
    )
    if not sample.texts:
        raise no_text(wish.sources[0], planned.skipped[0].counts)
    progress("training the tokenizer", 0, None, wish.tokenizer)
    ready = train_tokenizer(sample.texts, size)
    below = guess if sample.held_out_below is None else sample.held_out_below
    keep_trained(out, key, ready, below)
    return ready, below


def _encode(
    out: Path,
    wish: Wish,
    planned: Plan,
    key: str,
    ready: Tokenizer,
    below: int,
    before: Manifest | None,
    executor: Executor,
) -> Manifest:
    """Do every job that is not done, and again those whose split has to be another."""
    total = sum(unit.num_bytes for unit in planned.units)
    job_bytes = job_bytes_for(total) if wish.job_bytes is None else wish.job_bytes
    jobs = jobs_of(planned.units, job_bytes)
    recipe = Recipe(
        tokenizer=ready.fingerprint,
        end_of_text=ready.end_of_text,
        seed=wish.seed,
        held_out_below=below,
        reading=json.dumps(wish.reading.key(), sort_keys=True),
        sources=wish.sources,
        shard_tokens=wish.shard_tokens,
        quick=is_large(total),
    )
    staging = Staging(out, [job_key(job, recipe) for job in jobs], ready)
    if before is not None:
        staging.keep(list(before.jobs), out)
    records = staging.records()
    executor.run([job for job in jobs if job.number not in records], recipe, staging, records)
    lowest = min((record.lowest_key for record in records.values()), default=2**64)
    highest = max((record.highest_key for record in records.values()), default=-1)
    right = held_out_below(wish.validation_fraction, lowest, highest)
    if right != below:
        # Only in a corpus of few documents: the jobs with the lowest or the highest key.
        moved = [
            job
            for job in jobs
            if min(right, below) <= records[job.number].highest_key
            and records[job.number].lowest_key < max(right, below)
        ]
        executor.run(moved, replace(recipe, held_out_below=right), staging, records)
    done = [records[job.number] for job in jobs]
    sources = summed(wish.sources, done, _left_out(wish, planned))
    for source in sources:
        if not source.documents:
            raise no_text(source.source, source.skipped)
    return _finish(wish, key, ready, sources, done, staging)


def _finish(
    wish: Wish,
    key: str,
    tokenizer: Tokenizer,
    sources: tuple[SourceSummary, ...],
    jobs: list[JobRecord],
    staging: Staging,
) -> Manifest:
    """Write the manifest beside the shards: from now on they are committed."""
    shards = [shard for job in jobs for shard in job.shards]
    manifest = Manifest(
        id_type=id_type_of(tokenizer.vocabulary_size),
        vocabulary_size=tokenizer.vocabulary_size,
        end_of_text=tokenizer.end_of_text,
        tokenizer=wish.tokenizer,
        tokenizer_fingerprint=tokenizer.fingerprint,
        plan_key=key,
        seed=wish.seed,
        validation_fraction=wish.validation_fraction,
        reading=wish.reading.key(),
        sources=sources,
        jobs=tuple(jobs),
        train=totals_of(tuple(shard for shard in shards if shard.split == "train")),
        validation=totals_of(tuple(shard for shard in shards if shard.split == "validation")),
        length_histogram=histogram_of(jobs),
    )
    tokenizer.save(staging.path / TOKENIZER)
    manifest = sealed(manifest)
    write_json(staging.path / MANIFEST, manifest)
    return manifest


def _left_out(wish: Wish, planned: Plan) -> list[SourceSummary]:
    """What planning left out, in the form of what jobs say."""
    return [
        SourceSummary(
            source,
            0,
            0,
            "",
            dict(report.counts),
            {reason: tuple(examples) for reason, examples in report.examples.items()},
        )
        for source, report in zip(wish.sources, planned.skipped)
    ]
