"""The arguments of a preparation: their errors, their key, and the directory that was made by them."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hotloop.core.cache import cache_directory
from hotloop.core.errors import UsageError
from hotloop.data.cluster import ClusterRequest
from hotloop.data.engines import AUTO, ENGINES
from hotloop.data.manifest import PREPARED_SCHEMA, Manifest
from hotloop.data.prepared import open_prepared
from hotloop.data.shards import SHARD_TOKENS
from hotloop.data.sources import PYTHON_STDLIB, STANDARD_INPUT, ReadOptions
from hotloop.data.sources.plan import Plan, plan
from hotloop.data.sources.tree import standard_library_path
from hotloop.data.tokenizer import Tokenizer, tokenizer_file, trained_size


@dataclass(frozen=True, slots=True)
class Spec:
    """What `hotloop prepare` is asked for: sources, how to read them, tokenizer, split, shards."""

    sources: tuple[str, ...]
    tokenizer: str = "bytes"
    end_of_text: str | None = None
    reading: ReadOptions = field(default_factory=ReadOptions)
    validation_fraction: float = 0.01
    seed: int = 0
    shard_tokens: int = SHARD_TOKENS
    job_bytes: int | None = None
    """Source bytes of a job, `None` by default; like `shard_tokens` it changes where shards end."""


def check_spec(spec: Spec, workers: int | None, engine: str) -> None:
    if not spec.sources:
        raise UsageError("no source given", do="name a file, a directory, or `python-stdlib`")
    if not 0 <= spec.validation_fraction < 1:
        raise UsageError(f"validation fraction {spec.validation_fraction} is not in [0, 1)")
    if not 0 <= spec.seed < 2**63:
        raise UsageError(f"seed {spec.seed} is not in [0, 2**63)")
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers", do="give --workers 1 or more")
    if engine != AUTO and engine not in ENGINES:
        raise UsageError(f"no such engine `{engine}`", do=f"choose auto, {', '.join(ENGINES)}")
    trained = trained_size(spec.tokenizer) is not None or spec.tokenizer == "bytes"
    if spec.end_of_text is not None and trained:
        raise UsageError(
            f"--end-of-text has no effect with the tokenizer {spec.tokenizer}", do="leave it out"
        )


def check_on(on: ClusterRequest, spec: Spec, out: Path, workers: int | None) -> None:
    if workers is not None:
        do = "say the ranks by --on, and their CPUs by --on-option cpus_per_task=N where it exists"
        raise UsageError("--workers has no effect with --on", do=do)
    if on.kind != "slurm":
        return
    if STANDARD_INPUT in spec.sources:
        do = "write it to a file on storage that all machines share"
        raise UsageError("standard input cannot be read by jobs of Slurm", do=do)
    if any(character.isspace() for character in str(out.absolute())):
        raise UsageError(
            "datatrove's scripts for Slurm cannot name a directory with a space in its path",
            where=str(out),
            do="choose another --out",
        )


def plan_key(spec: Spec, planned: Plan, ready: Tokenizer | None) -> str:
    """sha256 of everything the result depends on."""
    description = [
        PREPARED_SCHEMA,
        spec.sources,
        spec.tokenizer if ready is None else [ready.fingerprint, ready.end_of_text],
        spec.validation_fraction,
        spec.seed,
        spec.reading.key(),
        spec.shard_tokens,
        spec.job_bytes,
        [report.counts for report in planned.skipped],
    ]
    digest = hashlib.sha256(json.dumps(description).encode())
    for unit in planned.units:
        digest.update(json.dumps([unit.source, *unit.key]).encode())
    return digest.hexdigest()


def required_manifest(out: Path, spec: Spec, ready: Tokenizer | None) -> Manifest:
    """The manifest of `out` if it was asked for as now and is undamaged. Raises `UsageError`."""
    again = "give --force to write it again, or choose another directory"
    try:
        manifest = open_prepared(out).manifest
    except UsageError as error:
        raise UsageError(error.what, where=error.where, do=again) from error
    same_tokenizer = manifest.tokenizer == spec.tokenizer
    if ready is not None:
        same_tokenizer = manifest.tokenizer_fingerprint == ready.fingerprint
    options = (manifest.seed, manifest.validation_fraction, manifest.reading)
    differences = [
        name
        for name, same in (
            ("sources", tuple(s.source for s in manifest.sources) == spec.sources),
            ("tokenizer", same_tokenizer),
            ("options", options == (spec.seed, spec.validation_fraction, spec.reading.key())),
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


class NoTextError(UsageError):
    """A source gives no document: the same command can only fail again."""


def no_text(source: str, left_out: Mapping[str, int]) -> NoTextError:
    """`left_out`: how much of it, by reason."""
    what = "the source holds no text"
    if not left_out:
        return NoTextError(what, where=source, do="give a file or directory with UTF-8 text")
    most = sorted(left_out.items(), key=lambda entry: -entry[1])[:3]
    reasons = ", ".join(f"{count} {reason}" for reason, count in most)
    return NoTextError(
        f"{what}: all was left out ({reasons})",
        where=source,
        do="give one with UTF-8 text, or change the options that leave it out",
    )


def cached_path(spec: Spec) -> Path:
    """The directory that holds it, or will. Raises `UsageError` for no such source."""
    key = json.dumps(
        [
            PREPARED_SCHEMA,
            _sources_key(spec),
            _tokenizer_key(spec.tokenizer),
            spec.end_of_text,
            spec.reading.key(),
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", Path(spec.sources[0]).name)[:40]
    return cache_directory() / "prepared" / f"{name}-{digest}"


def _sources_key(spec: Spec) -> list[object]:
    if spec.sources == (PYTHON_STDLIB,):
        return [PYTHON_STDLIB, sys.version, str(standard_library_path())]
    if STANDARD_INPUT in spec.sources:
        do = "write it with `hotloop prepare`"
        raise UsageError("standard input cannot be read again", where=STANDARD_INPUT, do=do)
    units = plan(spec.sources, spec.reading, exclude=None).units
    places = [str(Path(source).resolve()) for source in spec.sources]
    return [places, [(u.source, u.name, u.begin, u.end, u.state) for u in units]]


def _tokenizer_key(spec: str) -> list[object]:
    path = tokenizer_file(Path(spec).expanduser())
    if not path.is_file():
        return [spec]
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
