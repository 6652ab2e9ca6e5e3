"""Sources to a prepared directory: planned, encoded by all cores, the same bytes always."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hotloop.core.cache import cache_limit_bytes, entry_in_use, make_room
from hotloop.core.errors import HotloopError, Interrupted, UsageError
from hotloop.core.files import write_json
from hotloop.core.progress import Progress, silent
from hotloop.data.cluster import ClusterRequest
from hotloop.data.cluster.round import collect_left
from hotloop.data.engines import AUTO, EngineDiffers, check_conversion
from hotloop.data.execute import EncodingSummary, Executor
from hotloop.data.gather import held_out_below, training_sample
from hotloop.data.jobs import Recipe, is_large, job_bytes_for, job_key, jobs_of
from hotloop.data.manifest import (
    MANIFEST,
    TOKENIZER,
    Manifest,
    id_type_of,
    sealed,
    summed,
    totals_of,
)
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import STANDARD_INPUT
from hotloop.data.sources.files import spool_standard_input
from hotloop.data.sources.plan import Plan, plan
from hotloop.data.spec import (
    NoTextError,
    Spec,
    cached_path,
    check_on,
    check_spec,
    no_text,
    plan_key,
    required_manifest,
)
from hotloop.data.staging import (
    STAGING,
    Staging,
    commit,
    discard_staging,
    is_finished,
    is_read_only,
    keep_trained,
    kept_trained,
    locked,
)
from hotloop.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer, trained_size
from hotloop.hardware.limits import cpu_quota


@dataclass(frozen=True, slots=True)
class Preparation:
    """The result of a call of `prepare_text`."""

    manifest: Manifest
    outcome: Literal["written", "updated", "up_to_date"]
    wall_s: float
    encoding: EncodingSummary | None
    """This call's own work; `None` when it had nothing to do."""


def prepare_text(
    spec: Spec,
    out: Path,
    *,
    force: bool = False,
    workers: int | None = None,
    engine: str = AUTO,
    on: ClusterRequest | None = None,
    progress: Progress = silent,
) -> Preparation:
    """Write `out` whole or leave it as it was. Safe to interrupt, to kill and to run twice at once.

    What a killed run finished is kept, and where sources have changed, only their jobs are done
    again. `workers` (processes, or threads where the work cannot be cut; `None`: all CPUs), `engine`
    and `on` (ranks of an executor of datatrove, on any machines that share the storage) do not
    change the result.
    Raises `UsageError` for bad sources, options or tokenizer, and for an `out` that holds something
    else; `EnvironmentFailed` when the disk is full or cannot be written; with Slurm, `Interrupted`
    while its jobs are at work.
    """
    started = time.monotonic()
    sources, tokenizer, end_of_text = spec.sources, spec.tokenizer, spec.end_of_text
    check_spec(spec, workers, engine)
    if on is not None:
        check_on(on, spec, out, workers)
    ready = None
    if trained_size(tokenizer) is None:
        ready = load_tokenizer(tokenizer, end_of_text=end_of_text)
    if out.exists() and not out.is_dir():
        raise UsageError("a file stands where the result should go", where=str(out))
    if not force and STANDARD_INPUT not in sources and is_read_only(out):
        # The lock would have to be written, and needs not be: nobody writes here.
        planned = plan(sources, spec.reading, exclude=out)
        there = required_manifest(out, spec, ready)
        if there.plan_key == plan_key(spec, planned, ready):
            return Preparation(there, "up_to_date", time.monotonic() - started, None)
    with locked(out, progress), ExitStack() as closing:
        finished = is_finished(out, force=force)
        collect_left(out, keep_submitted=on is not None and on.kind == "slurm")
        progress("looking at the sources", 0, None, "")
        if STANDARD_INPUT in sources and spec.reading.standard_input is None:
            made = TemporaryDirectory(prefix=f"{STAGING}-input-", dir=out)
            spooled = spool_standard_input(Path(closing.enter_context(made)))
            spec = replace(spec, reading=replace(spec.reading, standard_input=str(spooled)))
        planned = plan(sources, spec.reading, exclude=out)
        key = plan_key(spec, planned, ready)
        before = required_manifest(out, spec, ready) if finished and not force else None
        if before is not None and before.plan_key == key:
            discard_staging(out)
            wall_s = time.monotonic() - started
            return Preparation(before, "up_to_date", wall_s, None)
        try:
            ready, below = _tokenizer(out, spec, planned, key, ready, progress)
            make: Callable[..., Executor] = Executor
            if on is not None:
                from hotloop.data.cluster.executor import ClusterExecutor

                make = partial(ClusterExecutor, on)
            executor = make(
                tokenizer=ready,
                engine=engine,
                workers=workers or max(int(cpu_quota()), 1),
                progress=progress,
            )
            manifest = _encode(out, spec, planned, key, ready, below, before, executor)
        except BaseException as error:
            _keep_what_is_useful(out, error, len(sources))
            raise
        commit(out)
    outcome: Literal["written", "updated"] = "written" if before is None else "updated"
    return Preparation(manifest, outcome, time.monotonic() - started, executor.summary())


def _keep_what_is_useful(out: Path, error: BaseException, num_sources: int) -> None:
    """Discards finished work that helps nobody after this error; else its remedy says that it is kept."""
    without_text = isinstance(error, NoTextError) and num_sources == 1
    wrong = isinstance(error, EngineDiffers) or without_text
    discarded = discard_staging(out, unless_useful=not wrong)
    if isinstance(error, HotloopError) and not (discarded or isinstance(error, Interrupted)):
        kept = "what is finished is kept: the next command continues from there"
        error.do = f"{error.do}\n  {kept}" if error.do else kept


def _tokenizer(
    out: Path, spec: Spec, planned: Plan, key: str, ready: Tokenizer | None, progress: Progress
) -> tuple[Tokenizer, int]:
    """The tokenizer, trained if need be, and the split key below which text is held out.

    That key is a first guess unless everything was read for the tokenizer's sample.
    """
    guess = int(spec.validation_fraction * 2**64)
    if ready is not None:
        check_conversion(ready, planned.units, spec.reading, progress=progress)
        return ready, guess
    size = trained_size(spec.tokenizer)
    assert size is not None
    kept = kept_trained(out, key)
    if kept is not None:
        return kept
    texts, exact = training_sample(
        planned.units,
        spec.reading,
        seed=spec.seed,
        validation_fraction=spec.validation_fraction,
        progress=progress,
    )
    if not texts:
        raise no_text(spec.sources[0], planned.skipped[0].counts)
    progress("training the tokenizer", 0, None, spec.tokenizer)
    ready = train_tokenizer(texts, size)
    below = guess if exact is None else exact
    keep_trained(out, key, ready, below)
    return ready, below


def _encode(
    out: Path,
    spec: Spec,
    planned: Plan,
    key: str,
    ready: Tokenizer,
    below: int,
    before: Manifest | None,
    executor: Executor,
) -> Manifest:
    """Do every job that is not done, and again those whose split has to be another."""
    total = sum(unit.num_bytes for unit in planned.units)
    job_bytes = job_bytes_for(total) if spec.job_bytes is None else spec.job_bytes
    jobs = jobs_of(planned.units, job_bytes)
    recipe = Recipe(
        tokenizer=ready.fingerprint,
        end_of_text=ready.end_of_text,
        seed=spec.seed,
        held_out_below=below,
        reading=spec.reading,
        sources=spec.sources,
        shard_tokens=spec.shard_tokens,
        quick=is_large(total),
    )
    staging = Staging(out, [job_key(job, recipe) for job in jobs], ready)
    if before is not None:
        staging.keep(list(before.jobs), out)
    records = staging.records()
    executor.run([job for job in jobs if job.number not in records], recipe, staging, records)
    lowest = min((record.lowest_key for record in records.values()), default=2**64)
    highest = max((record.highest_key for record in records.values()), default=-1)
    right = held_out_below(spec.validation_fraction, lowest, highest)
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
    sources = summed(spec.sources, done, planned.skipped)
    for source in sources:
        if not source.documents:
            raise no_text(source.source, source.skipped)
    shards = [shard for job in done for shard in job.shards]
    manifest = sealed(
        Manifest(
            id_type=id_type_of(ready.vocabulary_size),
            vocabulary_size=ready.vocabulary_size,
            end_of_text=ready.end_of_text,
            tokenizer=spec.tokenizer,
            tokenizer_fingerprint=ready.fingerprint,
            plan_key=key,
            seed=spec.seed,
            validation_fraction=spec.validation_fraction,
            reading=spec.reading.key(),
            sources=sources,
            jobs=tuple(done),
            train=totals_of(tuple(shard for shard in shards if shard.split == "train")),
            validation=totals_of(tuple(shard for shard in shards if shard.split == "validation")),
        )
    )
    ready.save(staging.path / TOKENIZER)
    write_json(staging.path / MANIFEST, manifest)  # from now on the shards are committed
    return manifest


def ensure_prepared(
    spec: Spec,
    *,
    verify: Literal["checksum", "size"] = "size",
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Path:
    """The cached prepared directory of a text, prepared now if it is not there.

    A source is known by the names, sizes and times of change of what it holds, the standard library by
    the interpreter. It stays as long as this process lives. What `verify` finds damaged is prepared
    again, and `warn` told. Raises what `prepare_text` raises, and `UsageError` for a limit that is none.
    """
    cache_limit_bytes()  # read at the end; refused before the work
    path = cached_path(spec)
    entry_in_use(path)  # before it is looked at: nobody takes it away now
    there = (path / "manifest.json").exists()
    if there:
        try:
            open_prepared(path, verify=verify)
            return path
        except UsageError as error:
            warn(f"damaged in the cache, prepared again: {error.where or path}: {error.what}")
    prepare_text(spec, path, force=there, progress=progress)
    if not there:
        make_room()
    return path
