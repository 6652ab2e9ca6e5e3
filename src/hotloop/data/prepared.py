"""Opens what `hotloop prepare` wrote, and refuses what is not what it wrote."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.core.errors import UsageError
from hotloop.core.untrusted import open_regular
from hotloop.data.manifest import TOKENIZER, Manifest, Shard, Split, read_manifest
from hotloop.data.shards import DOCUMENT_ENDS, LITTLE_ENDIAN
from hotloop.data.stream import ShardFile, TokenStream
from hotloop.data.tokenizer import fingerprint_of

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
        _check(path / shard.file, shard.tokens * manifest.id_bytes, shard.sha256, verify)
        ends = path / shard.documents_file
        _check(ends, shard.documents * DOCUMENT_ENDS.itemsize, shard.documents_sha256, verify)
    return Prepared(
        path=path,
        manifest=manifest,
        tokenizer_path=tokenizer_path,
        train=_stream(path, manifest, "train"),
        validation=_stream(path, manifest, "validation"),
    )


def _check(path: Path, size: int, sha256: str, verify: Literal["checksum", "size"]) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            state = "truncated" if found < size else "altered"
            raise UsageError(
                f"{state} shard: {found} bytes instead of {size}", where=str(path), do=_AGAIN
            )
        if verify == "checksum":
            with open_regular(path) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise UsageError(
                        "altered shard: its checksum is not the manifest's",
                        where=str(path),
                        do=_AGAIN,
                    )
    except FileNotFoundError as error:
        raise UsageError("missing shard", where=str(path), do=_AGAIN) from error
    except OSError as error:
        raise UsageError(f"cannot read shard: {error.strerror}", where=str(path)) from error


def _stream(path: Path, manifest: Manifest, split: Split) -> TokenStream:
    return TokenStream(
        [shard_file(path, manifest, shard) for shard in manifest.of_split(split)],
        vocabulary_size=manifest.vocabulary_size,
        split=split,
        where=str(path),
    )


def shard_file(path: Path, manifest: Manifest, shard: Shard) -> ShardFile:
    """A shard of a directory, not mapped yet. Raises `UsageError` for a missing file."""
    try:
        return ShardFile(
            path / shard.file,
            path / shard.documents_file,
            dtype=LITTLE_ENDIAN[manifest.id_type],
            num_tokens=shard.tokens,
        )
    except OSError as error:
        raise UsageError("missing shard", where=str(path / shard.file), do=_AGAIN) from error
