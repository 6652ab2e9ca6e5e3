"""Opens prepared directories, one or several in fixed shares, and refuses damaged ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.core.cache_entries import entry_in_use
from hotloop.core.errors import UsageError
from hotloop.data.manifest import MANIFEST, TOKENIZER, Manifest, Split, read_manifest
from hotloop.data.shards import LITTLE_ENDIAN
from hotloop.data.stream import ShardFile, TokenStream
from hotloop.data.tokenizer import fingerprint_of
from hotloop.data.verify import shard_damage

_AGAIN = "write it again with `hotloop prepare ... --force`"


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """An opened prepared directory. The streams are memory-mapped."""

    path: Path
    manifest: Manifest
    tokenizer_path: Path
    train: TokenStream
    validation: TokenStream
    """Empty when nothing was held out."""


def open_prepared(path: Path, *, verify: Literal["checksum", "size"] = "checksum") -> Prepared:
    """Open a prepared directory. `checksum` reads every byte, `size` only the sizes.

    Raises `UsageError` naming the file for a missing manifest, a missing, truncated or altered
    shard, and a tokenizer.json that is not the one the shards were made with.
    """
    manifest = read_manifest(path)
    tokenizer_path = path / TOKENIZER
    if fingerprint_of(tokenizer_path) != manifest.tokenizer_fingerprint:
        raise UsageError(
            "the shards are from another tokenizer than this file",
            where=str(tokenizer_path),
            do=f"put the right file back (fingerprint {manifest.tokenizer_fingerprint[:12]}), "
            f"or {_AGAIN}",
        )
    for shard in manifest.shards:
        wrong = shard_damage(shard, path, manifest.id_type, checksums=verify == "checksum")
        if wrong is not None:
            name, _, what = wrong.partition(": ")
            raise UsageError(f"damaged shard: {what}", where=str(path / name), do=_AGAIN)
    return Prepared(
        path=path,
        manifest=manifest,
        tokenizer_path=tokenizer_path,
        train=_stream(path, manifest, "train"),
        validation=_stream(path, manifest, "validation"),
    )


def _stream(path: Path, manifest: Manifest, split: Split) -> TokenStream:
    shards = []
    for shard in manifest.of_split(split):
        ids, ends = path / shard.file, path / shard.documents_file
        dtype = LITTLE_ENDIAN[manifest.id_type]
        try:
            shards.append(ShardFile(ids, ends, dtype=dtype, num_tokens=shard.tokens))
        except OSError as error:
            raise UsageError("missing shard", where=str(ids), do=_AGAIN) from error
    return TokenStream(
        shards, vocabulary_size=manifest.vocabulary_size, split=split, where=str(path)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Corpora:
    """Opened, all of one tokenizer."""

    members: tuple[Prepared, ...]
    weights: tuple[float, ...]

    @property
    def vocabulary_size(self) -> int:
        return self.members[0].manifest.vocabulary_size

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.members[0].manifest.tokenizer_fingerprint

    @property
    def tokenizer_json(self) -> bytes:
        return self.members[0].tokenizer_path.read_bytes()

    @property
    def fingerprint(self) -> str:
        """sha256 of all that decides what is read."""
        digests = [content_of(member) for member in self.members]
        if len(digests) == 1:
            return digests[0]
        text = json.dumps([digests, [weight / sum(self.weights) for weight in self.weights]])
        return hashlib.sha256(text.encode()).hexdigest()


def content_of(prepared: Prepared) -> str:
    """sha256 of the manifest, which holds those of the shards."""
    return hashlib.sha256((prepared.path / MANIFEST).read_bytes()).hexdigest()


def open_corpora(
    paths: Sequence[Path],
    weights: Sequence[float] = (1.0,),
    *,
    verify: Literal["checksum", "size"] = "checksum",
) -> Corpora:
    """Raises `UsageError` for directories of different tokenizers, and what `open_prepared` raises."""
    members = []
    for path in paths:
        entry_in_use(path)
        members.append(open_prepared(path, verify=verify))
    first = members[0]
    for other in members[1:]:
        if other.manifest.tokenizer_fingerprint != first.manifest.tokenizer_fingerprint:
            raise UsageError(
                f"the ids are of another tokenizer ({other.manifest.tokenizer}) than those of "
                f"{first.path} ({first.manifest.tokenizer})",
                where=str(other.path),
                do=f"prepare it with --tokenizer {first.tokenizer_path}",
            )
    return Corpora(tuple(members), tuple(weights))
