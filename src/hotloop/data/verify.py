"""Whether a prepared directory is what was written: every byte read, by all cores."""

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
    """What was found."""

    files: int
    bytes: int
    tokens: int
    documents: int
    damaged: tuple[str, ...]
    """What is wrong, a line for each file."""


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

    wrong, size = file_damage(
        directory / shard.file, shard.tokens * dtype.itemsize, shard.sha256, look
    )
    if wrong is None and highest >= manifest.vocabulary_size:
        wrong = f"{shard.file}: id {highest}, but the tokenizer has {manifest.vocabulary_size} ids"
    return wrong, size


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


def file_damage(
    path: Path, size: int, sha256: str, look: Callable[[bytes], None]
) -> tuple[str | None, int]:
    """What is wrong with a file, and the bytes read; `look` is given every block."""
    digest = hashlib.sha256()
    read = 0
    try:
        if path.exists() and not path.is_file():
            return f"{path.name}: not a file", 0
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                read += len(block)
                if read > size:
                    break
                digest.update(block)
                look(block)
    except OSError as error:
        return f"{path.name}: {error.strerror or error}", read
    if read != size:
        return (
            f"{path.name}: {'longer' if read > size else f'{read} bytes'} instead of {size}",
            read,
        )
    if digest.hexdigest() != sha256:
        return f"{path.name}: its checksum is not the manifest's", read
    return None, read


def record_damage(record: JobRecord, directory: Path, id_type: IdType) -> str | None:
    """What is wrong with the files of a finished job, every byte of which is read."""
    for shard in record.shards:
        for name, size, sha256 in (
            (shard.file, shard.tokens * LITTLE_ENDIAN[id_type].itemsize, shard.sha256),
            (
                shard.documents_file,
                shard.documents * DOCUMENT_ENDS.itemsize,
                shard.documents_sha256,
            ),
        ):
            wrong, _ = file_damage(directory / name, size, sha256, lambda _: None)
            if wrong is not None:
                return wrong
    return None
