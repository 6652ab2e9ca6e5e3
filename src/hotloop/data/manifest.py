"""`manifest.json`: what a prepared directory holds. It is written last: with it, all is there."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hotloop.core.errors import UsageError
from hotloop.core.files import read_json, to_plain
from hotloop.data.sources import Report

PREPARED_SCHEMA = "hotloop.prepared/2"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SHARD_NAME = re.compile(r"(train|validation)-[0-9]{5,}(-[0-9]{3,})?\.(bin|docs)")

Split = Literal["train", "validation"]
IdType = Literal["uint16", "uint32"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One `.bin` of raw little-endian ids and its `.docs` of document ends."""

    file: str
    documents_file: str
    """Little-endian uint64: the end of every document, in tokens from the shard's start."""
    split: Split
    tokens: int
    documents: int
    sha256: str
    documents_sha256: str

    @property
    def files(self) -> tuple[str, str]:
        return self.file, self.documents_file


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """Totals of what was read from one source."""

    source: str
    documents: int
    bytes: int
    """UTF-8 bytes of all documents."""
    sha256: str
    """Over the fingerprints of what its jobs read, in order: another text is another one."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Files and documents left out, counted by reason."""
    skipped_examples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    altered: dict[str, int] = field(default_factory=dict)
    """Documents that were kept, but not as they were, by reason."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The shards of one job, and everything needed to keep it when others are done again."""

    key: str
    """sha256 of all that its shards depend on: the units with their states, tokenizer, options."""
    shards: tuple[Shard, ...]
    """Those of the training split first. Empty when it read no document."""
    sources: tuple[tuple[int, SourceSummary], ...]
    """By the source's place in the list; the sha256 is over the documents' own."""
    lowest_key: int
    """The lowest of the documents' split keys, with `highest_key`; 2**64 and -1 where there was none."""
    highest_key: int
    held_out_below: int
    """Documents whose split key lies below this went to validation."""
    engine: str = ""
    """The engine, with versions. The ids do not depend on it; empty in directories that were
    prepared before it was recorded."""

    @property
    def files(self) -> list[str]:
        return [name for shard in self.shards for name in shard.files]


@dataclass(frozen=True, slots=True)
class Totals:
    tokens: int
    documents: int
    shards: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything needed to read the shards and to make them again."""

    id_type: IdType
    vocabulary_size: int
    end_of_text: int
    """Id that ends every document."""
    tokenizer: str
    """As it was asked for: `train:N`, `bytes`, a path or a name."""
    tokenizer_fingerprint: str
    """sha256 of the canonical tokenizer.json."""
    plan_key: str
    """sha256 of all that the directory depends on; equal again means up to date."""
    seed: int
    """Seeds the split and the tokenizer's sample."""
    validation_fraction: float
    reading: dict[str, Any]
    """The options of reading."""
    sources: tuple[SourceSummary, ...]
    jobs: tuple[JobRecord, ...]
    """In order. Their shards in a row are the corpus."""
    train: Totals
    validation: Totals
    digest: str = ""
    """sha256 of all the others, see `sealed`."""
    schema: str = PREPARED_SCHEMA

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Those of both splits, each in order."""
        return self.of_split("train") + self.of_split("validation")

    @property
    def tokens(self) -> int:
        return self.train.tokens + self.validation.tokens

    @property
    def documents(self) -> int:
        return self.train.documents + self.validation.documents

    @property
    def source_bytes(self) -> int:
        return sum(source.bytes for source in self.sources)

    def of_split(self, split: Split) -> tuple[Shard, ...]:
        return tuple(shard for job in self.jobs for shard in job.shards if shard.split == split)


def sealed(manifest: Manifest) -> Manifest:
    """With its `digest`, by which a change to the file is noticed."""
    return replace(manifest, digest=_digest_of(to_plain(manifest)))


def _digest_of(plain: dict[str, Any]) -> str:
    canonical = json.dumps({**plain, "digest": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def id_type_of(vocabulary_size: int) -> IdType:
    """The smallest type that holds every id."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


def totals_of(shards: tuple[Shard, ...]) -> Totals:
    return Totals(
        sum(shard.tokens for shard in shards), sum(shard.documents for shard in shards), len(shards)
    )


def summary_of(
    source: str, report: Report, *, documents: int = 0, bytes: int = 0, sha256: str = ""
) -> SourceSummary:
    return SourceSummary(
        source=source,
        documents=documents,
        bytes=bytes,
        sha256=sha256,
        skipped=dict(sorted(report.counts.items())),
        skipped_examples={key: tuple(report.examples[key]) for key in sorted(report.examples)},
        altered=dict(sorted(report.altered.items())),
    )


def summed(
    sources: Sequence[str], jobs: Iterable[JobRecord], planned: Sequence[Report]
) -> tuple[SourceSummary, ...]:
    """Totals of each source over all jobs, with what was left out when it was `planned`."""
    read: list[list[SourceSummary]] = [[summary_of("", report)] for report in planned]
    for job in jobs:
        for number, summary in job.sources:
            read[number].append(summary)
    return tuple(_sum_of(source, parts) for source, parts in zip(sources, read))


def _sum_of(source: str, parts: list[SourceSummary]) -> SourceSummary:
    report, digest = Report(), hashlib.sha256()
    for part in parts:
        examples = {reason: list(found) for reason, found in part.skipped_examples.items()}
        report.merge(Report(Counter(part.skipped), examples, Counter(part.altered)))
        digest.update(part.sha256.encode())
    return summary_of(
        source,
        report,
        documents=sum(part.documents for part in parts),
        bytes=sum(part.bytes for part in parts),
        sha256=digest.hexdigest(),
    )


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a prepared directory. Raises `UsageError` when missing or inconsistent."""
    path = directory / MANIFEST
    if not directory.is_dir():
        raise UsageError(
            "no such prepared directory", where=str(directory), do="write it with `hotloop prepare`"
        )
    if not path.is_file():
        raise UsageError(
            "no manifest.json: not a prepared directory, or its preparation did not finish",
            where=str(directory),
            do="write it with `hotloop prepare` (with --force where shards are left)",
        )
    manifest = read_json(path, Manifest)
    wrong = _inconsistency(manifest) or _difference(path)
    if wrong is not None:
        do = "write it again with `hotloop prepare ... --force`"
        raise UsageError(f"damaged: {wrong}", where=str(path), do=do)
    return manifest


def _inconsistency(manifest: Manifest) -> str | None:
    """What may not be believed even of a manifest with the right digest."""
    for shard in manifest.shards:
        if not all(map(SHARD_NAME.fullmatch, shard.files)):
            return f"{shard.file!r} is not the name of a shard"
        if shard.split != shard.file.partition("-")[0]:
            return f"{shard.file} in the {shard.split} split"
        if not 0 < shard.documents <= shard.tokens:
            return f"{shard.file} with {shard.tokens} tokens in {shard.documents} documents"
    if manifest.id_type != id_type_of(manifest.vocabulary_size):
        return f"id type {manifest.id_type} for {manifest.vocabulary_size} ids"
    if not 0 <= manifest.end_of_text < manifest.vocabulary_size:
        return "the end of text is not in the vocabulary"
    return None


def _difference(path: Path) -> str | None:
    """Looks at the bytes: reading passes over keys that it does not know, and over spaces."""
    content = path.read_bytes()
    plain = json.loads(content)
    written = (json.dumps(plain, indent=1) + "\n").encode()
    if written != content or _digest_of(plain) != plain.get("digest"):
        return "it is not as it was written"
    return None
