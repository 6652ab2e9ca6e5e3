"""Sources to a prepared directory: planned, encoded by all cores, the same bytes always."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.files import write_json
from hotloop.core.progress import Progress, silent
from hotloop.data.engines.check import EngineDiffers
from hotloop.data.engines.engine import ENGINES
from hotloop.data.execute import EncodingSummary, Executor
from hotloop.data.jobs import Recipe, is_large, job_bytes_for, job_key, jobs_of
from hotloop.data.manifest import (
    MANIFEST,
    PREPARED_SCHEMA,
    TOKENIZER,
    JobRecord,
    Manifest,
    SourceSummary,
    histogram_of,
    id_type_of,
    read_manifest,
    summed,
    totals_of,
)
from hotloop.data.prepared import open_prepared
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
    keep_trained,
    kept_trained,
    locked,
)
from hotloop.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer, trained_size
from hotloop.data.work import AUTO
from hotloop.hardware.limits import cpu_quota


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a call of `prepare_text` did."""

    manifest: Manifest
    outcome: Literal["written", "updated", "up_to_date"]
    wall_s: float
    encoding: EncodingSummary | None
    """Of this call's own work; `None` when it had nothing to do."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """The arguments that the result depends on."""

    sources: tuple[str, ...]
    tokenizer: str
    end_of_text: str | None
    validation_fraction: float
    seed: int
    reading: ReadOptions
    shard_tokens: int
    job_bytes: int | None


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
    progress: Progress = silent,
    shard_tokens: int = SHARD_TOKENS,
    job_bytes: int | None = None,
) -> Preparation:
    """Write `out` whole or leave it as it was. Safe to interrupt, to kill and to run twice at once.

    What a killed run finished is kept, and where sources have changed, only their jobs are done
    again. `workers` (processes, or threads where the work cannot be cut; `None`: all CPUs) and
    `engine` do not change the result; `shard_tokens` and `job_bytes` change where shards end.
    Raises `UsageError` for bad sources, options or tokenizer, and for an `out` that holds something
    else; `EnvironmentFailed` when the disk is full or cannot be written.
    """
    started = time.monotonic()
    wish = _Wish(
        tuple(sources),
        tokenizer,
        end_of_text,
        validation_fraction,
        seed,
        reading or ReadOptions(),
        shard_tokens,
        job_bytes,
    )
    _refuse_impossible(wish, workers, engine)
    ready = None
    if trained_size(tokenizer) is None:
        ready = load_tokenizer(tokenizer, end_of_text=end_of_text)
    if out.exists() and not out.is_dir():
        raise UsageError("a file stands where the result should go", where=str(out))
    with locked(out, progress) as lock, ExitStack() as closing:
        finished = is_finished(out, force=force)
        progress("looking at the sources", 0, None, "")
        if STANDARD_INPUT in sources and wish.reading.standard_input is None:
            spooled = spool_standard_input(closing.enter_context(input_directory(out)))
            wish = replace(wish, reading=replace(wish.reading, standard_input=str(spooled)))
        planned = plan(sources, wish.reading, exclude=out)
        key = _plan_key(wish, planned, ready)
        before = _same_or_changed(out, wish, ready) if finished and not force else None
        if before is not None and before.plan_key == key:
            discard_staging(out)
            wall_s = time.monotonic() - started
            return Preparation(before, "up_to_date", wall_s, None)
        try:
            ready, below = _tokenizer(out, wish, planned, key, ready, progress)
            executor = Executor(
                tokenizer=ready,
                reading=wish.reading,
                engine=engine,
                workers=workers or max(int(cpu_quota()), 1),
                inherited=[lock],
                progress=progress,
            )
            manifest = _encode(out, wish, planned, key, ready, below, before, executor)
        except EngineDiffers:
            discard_staging(out)
            raise
        except BaseException as error:
            if not discard_staging(out, unless_useful=True) and isinstance(error, HotloopError):
                kept = "what is finished is kept: the same command goes on from there"
                error.do = f"{error.do}\n  {kept}" if error.do else kept
            raise
        commit(out)
    outcome: Literal["written", "updated"] = "written" if before is None else "updated"
    return Preparation(manifest, outcome, time.monotonic() - started, executor.summary())


def _tokenizer(
    out: Path, wish: _Wish, planned: Plan, key: str, ready: Tokenizer | None, progress: Progress
) -> tuple[Tokenizer, int]:
    """The tokenizer, trained if need be, and the split key below which text is held out.

    That key is a first guess unless everything was read for the tokenizer's sample.
    """
    guess = int(wish.validation_fraction * 2**64)
    if ready is not None:
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
        raise no_text(wish.sources[0], planned.skipped[0].total)
    progress("training the tokenizer", 0, None, wish.tokenizer)
    ready = train_tokenizer(sample.texts, size)
    below = guess if sample.held_out_below is None else sample.held_out_below
    keep_trained(out, key, ready, below)
    return ready, below


def _encode(
    out: Path,
    wish: _Wish,
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
            raise no_text(source.source, sum(source.skipped.values()))
    return _finish(wish, key, ready, sources, done, staging)


def _finish(
    wish: _Wish,
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
    write_json(staging.path / MANIFEST, manifest)
    return manifest


def _left_out(wish: _Wish, planned: Plan) -> list[SourceSummary]:
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


def no_text(source: str, skipped: int) -> UsageError:
    return UsageError(
        "the source holds no text" + (f" ({skipped} files skipped)" if skipped else ""),
        where=source,
        do="give a file or directory with UTF-8 text",
    )


def _refuse_impossible(wish: _Wish, workers: int | None, engine: str) -> None:
    if not wish.sources:
        raise UsageError("no source given", do="name a file, a directory, or `python-stdlib`")
    if not 0 <= wish.validation_fraction < 1:
        raise UsageError(f"validation fraction {wish.validation_fraction} is not in [0, 1)")
    if not 0 <= wish.seed < 2**63:
        raise UsageError(f"seed {wish.seed} is not in [0, 2**63)")
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers", do="give --workers 1 or more")
    if engine != AUTO and engine not in ENGINES:
        raise UsageError(f"no such engine `{engine}`", do=f"choose auto, {', '.join(ENGINES)}")
    trained = trained_size(wish.tokenizer) is not None or wish.tokenizer == "bytes"
    if wish.end_of_text is not None and trained:
        raise UsageError(
            f"--end-of-text has no effect with the tokenizer {wish.tokenizer}", do="leave it out"
        )


def _plan_key(wish: _Wish, planned: Plan, ready: Tokenizer | None) -> str:
    """sha256 of everything the result depends on."""
    units = [
        [unit.source, unit.name, unit.format, unit.compression, unit.begin, unit.end, unit.state]
        for unit in planned.units
    ]
    description = [
        PREPARED_SCHEMA,
        wish.sources,
        wish.tokenizer if ready is None else [ready.fingerprint, ready.end_of_text],
        wish.validation_fraction,
        wish.seed,
        wish.reading.key(),
        wish.shard_tokens,
        wish.job_bytes,
        [report.counts for report in planned.skipped],
    ]
    digest = hashlib.sha256(json.dumps(description).encode())
    for unit in units:
        digest.update(json.dumps(unit).encode())
    return digest.hexdigest()


def _same_or_changed(out: Path, wish: _Wish, ready: Tokenizer | None) -> Manifest:
    """The manifest of `out` if it was asked for as now and is undamaged. Raises `UsageError`."""
    again = "give --force to write it again, or choose another directory"
    try:
        manifest = read_manifest(out)
        open_prepared(out, verify="checksum")
    except UsageError as error:
        raise UsageError(error.what, where=error.where, do=again) from error
    same_tokenizer = manifest.tokenizer == wish.tokenizer
    if ready is not None:
        same_tokenizer = manifest.tokenizer_fingerprint == ready.fingerprint
    options = (manifest.seed, manifest.validation_fraction, manifest.reading)
    differences = [
        name
        for name, same in (
            ("sources", tuple(s.source for s in manifest.sources) == wish.sources),
            ("tokenizer", same_tokenizer),
            ("options", options == (wish.seed, wish.validation_fraction, wish.reading.key())),
        )
        if not same
    ]
    if differences:
        raise UsageError(
            f"the directory holds another preparation (other {' and '.join(differences)})",
            where=str(out),
            do=again,
        )
    return manifest
