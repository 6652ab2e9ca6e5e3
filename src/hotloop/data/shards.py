"""Writes token shards: raw ids in `.bin`, document ends in `.docs`, both checksummed as written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.manifest import IdType, Shard, Split

SHARD_TOKENS = 100_000_000
"""A shard is closed before it would grow longer than this."""

LITTLE_ENDIAN: dict[IdType, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
DOCUMENT_ENDS = np.dtype("<u8")


class _File:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._hash = hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)

    def finish(self) -> str:
        """Make it durable; the sha256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._hash.hexdigest()

    def abandon(self) -> None:
        self._file.close()


class ShardWriter:
    """Appends documents to the shards of one split. Raises the `OSError` of a failed write."""

    def __init__(
        self,
        directory: Path,
        split: Split,
        *,
        id_type: IdType,
        vocabulary_size: int,
        end_of_text: int,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        self._directory = directory
        self._split = split
        self._type = LITTLE_ENDIAN[id_type]
        self._vocabulary_size = vocabulary_size
        self._end_of_text = end_of_text
        self._shard_tokens = shard_tokens
        self._ids: _File | None = None
        self._ends: _File | None = None
        self._tokens = 0
        self._documents = 0
        self._shards: list[Shard] = []

    def write(self, documents: Sequence[Sequence[int]]) -> np.ndarray:
        """Append documents of ids, each ended here. Their lengths in tokens, the end included."""
        lengths = np.array([len(ids) + 1 for ids in documents], dtype=np.int64)
        first = 0
        while first < len(documents):
            ends = self._tokens + np.cumsum(lengths[first:])
            fits = int(np.searchsorted(ends, self._shard_tokens, side="right"))
            if fits == 0 and self._tokens:
                self._close_shard()
                continue
            count = max(fits, 1)  # a document longer than a shard gets one of its own
            self._append(documents[first : first + count], ends[:count])
            first += count
        return lengths

    def _append(self, documents: Sequence[Sequence[int]], ends: np.ndarray) -> None:
        if self._ids is None or self._ends is None:
            name = f"{self._split}-{len(self._shards):05d}"
            self._ids = _File(self._directory / f"{name}.bin")
            self._ends = _File(self._directory / f"{name}.docs")
        flat = np.empty(int(ends[-1]) - self._tokens, dtype=np.int64)
        start = 0
        for ids, end in zip(documents, (ends - self._tokens).tolist()):
            flat[start : end - 1] = ids
            flat[end - 1] = self._end_of_text
            start = end
        highest = int(flat.max())
        if highest >= self._vocabulary_size or int(flat.min()) < 0:
            raise UsageError(
                f"the tokenizer gave id {highest}, beyond its {self._vocabulary_size} ids"
            )
        self._ids.write(flat.astype(self._type).tobytes())
        self._ends.write(ends.astype(DOCUMENT_ENDS).tobytes())
        self._tokens = int(ends[-1])
        self._documents += len(documents)

    def _close_shard(self) -> None:
        if self._ids is None or self._ends is None:
            return
        self._shards.append(
            Shard(
                file=self._ids.path.name,
                documents_file=self._ends.path.name,
                split=self._split,
                tokens=self._tokens,
                documents=self._documents,
                sha256=self._ids.finish(),
                documents_sha256=self._ends.finish(),
            )
        )
        self._ids = self._ends = None
        self._tokens = self._documents = 0

    def finish(self) -> tuple[Shard, ...]:
        """Close and make durable; the shards written, none of them empty."""
        self._close_shard()
        return tuple(self._shards)

    def abandon(self) -> None:
        """Let go of the open files after a failure."""
        for file in (self._ids, self._ends):
            if file is not None:
                file.abandon()
