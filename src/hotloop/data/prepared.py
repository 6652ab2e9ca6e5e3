"""Opens prepared directories, one or several in fixed shares, and finds damage in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.core.cache import entry_in_use
from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress, silent
from hotloop.core.untrusted import open_regular
from hotloop.data.manifest import (
    MANIFEST,
    SHARD_NAME,
    TOKENIZER,
    IdType,
    JobRecord,
    Manifest,
    Shard,
    Split,
    read_manifest,
)
from hotloop.data.shards import DOCUMENT_ENDS, LITTLE_ENDIAN
from hotloop.data.stream import ShardFile, TokenStream
from hotloop.data.tokenizer import fingerprint_of, written_form
from hotloop.hardware.limits import cpu_quota

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
    for name, size, sha256 in files_of(manifest.shards, manifest.id_type):
        wrong, _ = file_damage(path / name, size, sha256 if verify == "checksum" else None)
        if wrong is not None:
            raise UsageError(f"damaged shard: {wrong}", where=str(path / name), do=_AGAIN)
    return Prepared(
        path=path,
        manifest=manifest,
        tokenizer_path=tokenizer_path,
        train=_stream(path, manifest, "train"),
        validation=_stream(path, manifest, "validation"),
    )


def _stream(path: Path, manifest: Manifest, split: Split) -> TokenStream:
    dtype = LITTLE_ENDIAN[manifest.id_type]
    shards = [ShardFile(shard, path, dtype) for shard in manifest.of_split(split)]
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


_BLOCK = 4 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings of a verification."""

    files: int
    bytes: int
    tokens: int
    documents: int
    damaged: tuple[str, ...]
    """A line for each damaged file."""


def verify_prepared(directory: Path, *, progress: Progress = silent) -> Verification:
    """Check every file against the manifest. Raises `UsageError` without a usable manifest."""
    manifest = read_manifest(directory)
    wrong = _tokenizer_damage(directory / TOKENIZER, manifest)
    damaged = [] if wrong is None else [f"{TOKENIZER}: {wrong}"]
    files = files_of(manifest.shards, manifest.id_type)
    names = {name for name, _, _ in files}
    total = sum(size for _, size, _ in files)
    read = 0
    with ThreadPoolExecutor(max(int(cpu_quota()), 1)) as threads:
        checked = threads.map(lambda file: file_damage(directory / file[0], *file[1:]), files)
        for (name, *_), (wrong, size) in zip(files, checked):
            read += size
            if wrong is not None:
                damaged.append(f"{name}: {wrong}")
            progress("verifying", min(read, total), total, "")
    damaged += [
        f"{path.name}: not of this preparation"
        for path in sorted(directory.iterdir())
        if SHARD_NAME.fullmatch(path.name) and path.name not in names
    ]
    return Verification(
        files=len(files) + 1,
        bytes=read,
        tokens=manifest.tokens,
        documents=manifest.documents,
        damaged=tuple(damaged),
    )


def _tokenizer_damage(path: Path, manifest: Manifest) -> str | None:
    try:
        if fingerprint_of(path) != manifest.tokenizer_fingerprint:
            return "not the one the shards were made with"
        content = path.read_bytes()
        return None if written_form(json.loads(content)) == content else "not as it was written"
    except UsageError as error:
        return error.what


def files_of(shards: Iterable[Shard], id_type: IdType) -> list[tuple[str, int, str]]:
    """Name, bytes and sha256 of the ids and of the document ends of each shard."""
    size, end_size = LITTLE_ENDIAN[id_type].itemsize, DOCUMENT_ENDS.itemsize
    return [
        file
        for shard in shards
        for file in (
            (shard.file, shard.tokens * size, shard.sha256),
            (shard.documents_file, shard.documents * end_size, shard.documents_sha256),
        )
    ]


def file_damage(path: Path, size: int, sha256: str | None) -> tuple[str | None, int]:
    """The damage of a file, in words, and the bytes read. Without a `sha256` only its size is compared."""
    digest = hashlib.sha256()
    read = 0
    try:
        if sha256 is None:
            read = path.stat().st_size
        else:
            with open_regular(path) as file:
                while read <= size and (block := file.read(_BLOCK)):
                    read += len(block)
                    digest.update(block)
    except OSError as error:
        return error.strerror or str(error), read
    if read != size:
        found = "longer" if read > size else f"{read} bytes"
        return f"{found} instead of {size}", read
    if sha256 is not None and digest.hexdigest() != sha256:
        return "its checksum is not the manifest's", read
    return None, read


def record_damage(record: JobRecord, directory: Path, id_type: IdType) -> str | None:
    """The damage of the shards of a finished job, every byte of which is read."""
    for name, size, sha256 in files_of(record.shards, id_type):
        wrong, _ = file_damage(directory / name, size, sha256)
        if wrong is not None:
            return f"{name}: {wrong}"
    return None
