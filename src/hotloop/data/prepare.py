"""Sources to a prepared directory: two streaming passes in bounded memory, the same bytes always."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.files import write_json
from hotloop.core.progress import Progress, silent
from hotloop.data.manifest import (
    MANIFEST,
    TOKENIZER,
    Manifest,
    id_type_of,
    read_manifest,
    totals_of,
)
from hotloop.data.prepared import open_prepared
from hotloop.data.scan import SAMPLE_BYTES, Scan, SourceReader, document_keys, scan_sources
from hotloop.data.shards import SHARD_TOKENS, ShardWriter
from hotloop.data.staging import is_finished, locked, staged
from hotloop.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer, trained_size

BATCH_BYTES = 1 << 20
"""Text encoded at once; an encoding takes about a hundred times the memory of its ids."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a call of `prepare_text` did."""

    manifest: Manifest
    outcome: Literal["written", "up_to_date"]
    wall_s: float


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
        text_field=text_field,
        force=force,
        progress=progress,
    ).manifest


def prepare_text(
    sources: Sequence[str],
    out: Path,
    *,
    tokenizer: str,
    validation_fraction: float = 0.01,
    seed: int = 0,
    text_field: str = "text",
    force: bool = False,
    progress: Progress = silent,
    shard_tokens: int = SHARD_TOKENS,
) -> Preparation:
    """Write `out` whole or leave it as it was. Safe to interrupt, to kill and to run twice at once.

    Raises `UsageError` for bad sources, options or tokenizer, and for an `out` that holds something
    else; `EnvironmentFailed` when the disk is full or cannot be written.
    """
    started = time.monotonic()
    if not sources:
        raise UsageError("no source given", do="name a file, a directory, or `python-stdlib`")
    if not 0 <= validation_fraction < 1:
        raise UsageError(f"validation fraction {validation_fraction} is not in [0, 1)")
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed {seed} is not in [0, 2**63)")
    size = trained_size(tokenizer)
    ready = load_tokenizer(tokenizer) if size is None else None
    if out.exists() and not out.is_dir():
        raise UsageError("a file stands where the result should go", where=str(out))
    with locked(out, progress):
        finished = is_finished(out, force=force)
        scan = scan_sources(
            sources,
            text_field=text_field,
            validation_fraction=validation_fraction,
            seed=seed,
            sample_bytes=0 if size is None else SAMPLE_BYTES,
            exclude=out,
            progress=progress,
        )
        if finished and not force:
            manifest = _same_or_refuse(
                out, scan, tokenizer, ready, (seed, validation_fraction, text_field)
            )
            return Preparation(manifest, "up_to_date", time.monotonic() - started)
        with staged(out) as staging:
            if ready is None:
                assert size is not None
                progress("training the tokenizer", 0, None, tokenizer)
                ready = train_tokenizer(scan.sample, size)
            manifest = _write(
                staging,
                scan,
                ready,
                spec=tokenizer,
                seed=seed,
                validation_fraction=validation_fraction,
                text_field=text_field,
                shard_tokens=shard_tokens,
                exclude=out,
                progress=progress,
            )
    return Preparation(manifest, "written", time.monotonic() - started)


def _same_or_refuse(
    out: Path,
    scan: Scan,
    spec: str,
    ready: Tokenizer | None,
    options: tuple[int, float, str],
) -> Manifest:
    """The manifest of `out` if it is the same preparation, undamaged. Raises `UsageError`."""
    again = "give --force to write it again, or choose another directory"
    try:
        manifest = read_manifest(out)
        open_prepared(out, verify="checksum")
    except UsageError as error:
        raise UsageError(error.what, where=error.where, do=again) from error
    same_tokenizer = (
        manifest.tokenizer == spec
        if ready is None
        else manifest.tokenizer_fingerprint == ready.fingerprint
    )
    differences = [
        name
        for name, same in (
            ("sources", manifest.sources == scan.sources),
            ("tokenizer", same_tokenizer),
            (
                "options",
                (manifest.seed, manifest.validation_fraction, manifest.text_field) == options,
            ),
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


def _write(
    directory: Path,
    scan: Scan,
    tokenizer: Tokenizer,
    *,
    spec: str,
    seed: int,
    validation_fraction: float,
    text_field: str,
    shard_tokens: int,
    exclude: Path,
    progress: Progress,
) -> Manifest:
    id_type = id_type_of(tokenizer.vocabulary_size)
    writers = [
        ShardWriter(
            directory,
            split,
            id_type=id_type,
            vocabulary_size=tokenizer.vocabulary_size,
            end_of_text=tokenizer.end_of_text,
            shard_tokens=shard_tokens,
        )
        for split in ("train", "validation")
    ]
    histogram = np.zeros(64, dtype=np.int64)
    texts: list[str] = []
    held_out: list[bool] = []
    pending = done = num_tokens = 0

    def flush() -> None:
        nonlocal pending, done, num_tokens
        encoded = tokenizer.encode_batch(texts)
        for writer, side in zip(writers, (False, True)):
            lengths = writer.write([ids for ids, out in zip(encoded, held_out) if out is side])
            # frexp is exact where log2 rounds: length = m * 2**e with m in [0.5, 1)
            np.add.at(histogram, np.frexp(lengths)[1] - 1, 1)
            num_tokens += int(lengths.sum())
        done += pending
        progress("encoding", done, scan.bytes, f"{num_tokens:,} tokens")
        texts.clear()
        held_out.clear()
        pending = 0

    try:
        for summary in scan.sources:
            reader = SourceReader(summary.source, text_field=text_field, exclude=exclude)
            for document, content in reader:
                texts.append(document.text)
                held_out.append(document_keys(content, seed)[0] < scan.held_out_below)
                pending += len(content)
                if pending >= BATCH_BYTES:
                    flush()
            if reader.summary() != summary:
                raise UsageError(
                    "the source changed while it was read",
                    where=summary.source,
                    do="run the same command again",
                )
        if texts:
            flush()
        shards = writers[0].finish() + writers[1].finish()
    finally:
        for writer in writers:
            writer.abandon()
    tokenizer.save(directory / TOKENIZER)
    manifest = Manifest(
        id_type=id_type,
        vocabulary_size=tokenizer.vocabulary_size,
        end_of_text=tokenizer.end_of_text,
        tokenizer=spec,
        tokenizer_fingerprint=tokenizer.fingerprint,
        seed=seed,
        validation_fraction=validation_fraction,
        text_field=text_field,
        sources=scan.sources,
        shards=shards,
        train=totals_of(tuple(shard for shard in shards if shard.split == "train")),
        validation=totals_of(tuple(shard for shard in shards if shard.split == "validation")),
        length_histogram=tuple(np.trim_zeros(histogram, "b").tolist()),
    )
    write_json(directory / MANIFEST, manifest)
    return manifest
