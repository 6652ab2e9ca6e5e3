"""`manifest.json`: what a prepared directory holds. It is written last: with it, all is there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hotloop.core.errors import UsageError
from hotloop.core.files import read_json

PREPARED_SCHEMA = "hotloop.prepared/1"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SHARD_NAME = re.compile(r"(train|validation)-[0-9]{5,}\.(bin|docs)")

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


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """What was read from one source."""

    source: str
    documents: int
    bytes: int
    """UTF-8 bytes of all documents."""
    sha256: str
    """Over the documents in order, each preceded by its length."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Files left out, counted by reason."""
    skipped_examples: tuple[str, ...] = ()


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
    seed: int
    """Of the split and of the tokenizer's sample."""
    validation_fraction: float
    text_field: str
    sources: tuple[SourceSummary, ...]
    shards: tuple[Shard, ...]
    train: Totals
    validation: Totals
    length_histogram: tuple[int, ...]
    """Documents by length: entry k counts 2**k to 2**(k+1)-1 tokens, the end of text included."""
    schema: str = PREPARED_SCHEMA

    @property
    def tokens(self) -> int:
        return self.train.tokens + self.validation.tokens

    @property
    def documents(self) -> int:
        return self.train.documents + self.validation.documents

    @property
    def source_bytes(self) -> int:
        return sum(source.bytes for source in self.sources)

    @property
    def id_bytes(self) -> int:
        return 2 if self.id_type == "uint16" else 4

    def of_split(self, split: Split) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if shard.split == split)


def id_type_of(vocabulary_size: int) -> IdType:
    """The smallest type that holds every id."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


def totals_of(shards: tuple[Shard, ...]) -> Totals:
    return Totals(
        sum(shard.tokens for shard in shards), sum(shard.documents for shard in shards), len(shards)
    )


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a prepared directory. Raises `UsageError` when missing or inconsistent."""
    path = directory / MANIFEST
    if not directory.is_dir():
        raise UsageError(
            "no such prepared directory", where=str(directory), do="write it with `hotloop prepare`"
        )
    if not path.exists():
        raise UsageError(
            "no manifest.json: not a prepared directory, or its preparation did not finish",
            where=str(directory),
            do="write it with `hotloop prepare` (with --force where shards are left)",
        )
    manifest = read_json(path, Manifest)
    wrong = _inconsistency(manifest)
    if wrong is not None:
        raise UsageError(
            f"damaged: {wrong}",
            where=str(path),
            do="write it again with `hotloop prepare ... --force`",
        )
    return manifest


def _inconsistency(manifest: Manifest) -> str | None:
    for shard in manifest.shards:
        if not all(SHARD_NAME.fullmatch(name) for name in (shard.file, shard.documents_file)):
            return f"{shard.file!r} is not the name of a shard"
        if not 0 < shard.documents <= shard.tokens:
            return f"{shard.file} with {shard.tokens} tokens in {shard.documents} documents"
    if manifest.id_type != id_type_of(manifest.vocabulary_size):
        return f"id type {manifest.id_type} for {manifest.vocabulary_size} ids"
    if not 0 <= manifest.end_of_text < manifest.vocabulary_size:
        return "the end of text is not in the vocabulary"
    for split, totals in (("train", manifest.train), ("validation", manifest.validation)):
        if totals_of(tuple(s for s in manifest.shards if s.split == split)) != totals:
            return f"the {split} totals do not add up"
    return None
