"""Damage in a prepared directory: every byte read, by all cores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress, silent
from hotloop.core.untrusted import open_regular
from hotloop.data.manifest import (
    SHARD_NAME,
    TOKENIZER,
    IdType,
    JobRecord,
    Manifest,
    Shard,
    read_manifest,
)
from hotloop.data.shards import DOCUMENT_ENDS, LITTLE_ENDIAN
from hotloop.data.tokenizer import Tokenizer, fingerprint_of, written_form
from hotloop.hardware.limits import cpu_quota

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
    wrong = _tokenizer(directory / TOKENIZER, manifest)
    damaged = [] if wrong is None else [f"{TOKENIZER}: {wrong}"]
    checks: list[Callable[[], tuple[str | None, int]]] = []
    for shard in manifest.shards:
        checks.append(partial(_ids, directory, shard, manifest))
        checks.append(partial(_ends, directory, shard))
    total = sum(s.tokens * manifest.id_bytes + 8 * s.documents for s in manifest.shards)
    read = 0
    with ThreadPoolExecutor(max(int(cpu_quota()), 1)) as threads:
        for wrong, size in threads.map(lambda check: check(), checks):
            read += size
            if wrong is not None:
                damaged.append(wrong)
            progress("verifying", min(read, total), total, "")
    files = {name for shard in manifest.shards for name in (shard.file, shard.documents_file)}
    damaged += [
        f"{path.name}: not of this preparation"
        for path in sorted(directory.iterdir())
        if SHARD_NAME.fullmatch(path.name) and path.name not in files
    ]
    return Verification(
        files=len(checks) + 1,
        bytes=read,
        tokens=manifest.tokens,
        documents=manifest.documents,
        damaged=tuple(damaged),
    )


def _tokenizer(path: Path, manifest: Manifest) -> str | None:
    try:
        if fingerprint_of(path) != manifest.tokenizer_fingerprint:
            return "not the one the shards were made with"
        content = path.read_bytes()
        if written_form(json.loads(content)) != content:
            return "not as it was written"
        end_of_text = Tokenizer.load(path).end_of_text
    except UsageError as error:
        return error.what
    if end_of_text != manifest.end_of_text:
        return f"ends a text with id {end_of_text}, the manifest with {manifest.end_of_text}"
    return None


def _ids(directory: Path, shard: Shard, manifest: Manifest) -> tuple[str | None, int]:
    dtype = LITTLE_ENDIAN[manifest.id_type]
    highest = 0

    def look(block: bytes) -> None:
        nonlocal highest
        whole = len(block) - len(block) % dtype.itemsize
        if whole:
            highest = max(highest, int(np.frombuffer(block[:whole], dtype=dtype).max()))

    (ids, size, sha256), _ = files_of(shard, manifest.id_type)
    wrong, read = file_damage(directory / ids, size, sha256, look)
    if wrong is None and highest >= manifest.vocabulary_size:
        wrong = f"{shard.file}: id {highest}, but the tokenizer has {manifest.vocabulary_size} ids"
    return wrong, read


def _ends(directory: Path, shard: Shard) -> tuple[str | None, int]:
    blocks: list[bytes] = []
    path = directory / shard.documents_file
    wrong, size = file_damage(
        path, shard.documents * DOCUMENT_ENDS.itemsize, shard.documents_sha256, blocks.append
    )
    if wrong is None:
        ends = np.frombuffer(b"".join(blocks), dtype=DOCUMENT_ENDS)
        if int(ends[-1]) != shard.tokens or not (np.diff(ends.astype(np.int64)) > 0).all():
            wrong = f"{path.name}: document ends do not fit the {shard.tokens} tokens"
    return wrong, size


def files_of(shard: Shard, id_type: IdType) -> tuple[tuple[str, int, str], tuple[str, int, str]]:
    """Name, bytes and sha256 of a shard's ids and of its document ends."""
    return (
        (shard.file, shard.tokens * LITTLE_ENDIAN[id_type].itemsize, shard.sha256),
        (shard.documents_file, shard.documents * DOCUMENT_ENDS.itemsize, shard.documents_sha256),
    )


def file_damage(
    path: Path, size: int, sha256: str | None, look: Callable[[bytes], object] = len
) -> tuple[str | None, int]:
    """The damage of a file, in words, and the bytes read; `look` is given every block.

    Without a `sha256` only its size is compared.
    """
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
                    look(block)
    except OSError as error:
        return f"{path.name}: {error.strerror or error}", read
    if read != size:
        found = "longer" if read > size else f"{read} bytes"
        return f"{path.name}: {found} instead of {size}", read
    if sha256 is not None and digest.hexdigest() != sha256:
        return f"{path.name}: its checksum is not the manifest's", read
    return None, read


def shard_damage(
    shard: Shard, directory: Path, id_type: IdType, *, checksums: bool = True
) -> str | None:
    """The damage of a shard's files, every byte of which is read unless without `checksums`."""
    for name, size, sha256 in files_of(shard, id_type):
        wrong, _ = file_damage(directory / name, size, sha256 if checksums else None)
        if wrong is not None:
            return wrong
    return None


def record_damage(record: JobRecord, directory: Path, id_type: IdType) -> str | None:
    """The damage of the shards of a finished job."""
    found = (shard_damage(shard, directory, id_type) for shard in record.shards)
    return next((wrong for wrong in found if wrong is not None), None)
