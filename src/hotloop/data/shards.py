"""Writes token shards: raw ids in `.bin`, document ends in `.docs`, both checksummed as written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.files import fsync_directory
from hotloop.data.manifest import IdType, Shard, Split

SHARD_TOKENS = 500_000_000
"""A shard is closed before it would grow longer than this, unless one document is."""

LITTLE_ENDIAN: dict[IdType, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
DOCUMENT_ENDS = np.dtype("<u8")
_BUFFER = 1 << 20


class HashedFile:
    """A file under a temporary name that is hashed while it is written."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._temporary = temporary_name(directory, name)
        self._file = self._temporary.open("wb", buffering=_BUFFER)
        self._hash = hashlib.sha256()

    def write(self, content: np.ndarray) -> None:
        view = content.view(np.uint8).data
        self._file.write(view)
        self._hash.update(view)

    def finish(self) -> str:
        """Close it; the sha256."""
        self._file.close()
        return self._hash.hexdigest()

    def abandon(self) -> None:
        if not self._file.closed:
            try:
                self._file.close()
            except OSError:
                pass  # what could not be written is not wanted any more
        self._temporary.unlink(missing_ok=True)


class ShardWriter:
    """The shards of one split of one job. Raises the `OSError` of a failed write."""

    def __init__(
        self,
        directory: Path,
        split: Split,
        number: int,
        *,
        id_type: IdType,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        self._directory = directory
        self._split = split
        self._number = number
        self.dtype = LITTLE_ENDIAN[id_type]
        self._shard_tokens = shard_tokens
        self._open: tuple[HashedFile, HashedFile] | None = None
        self._closed: list[tuple[HashedFile, HashedFile, int, int]] = []
        self._tokens = 0
        self._documents = 0
        self._inside = False

    def write(self, ids: np.ndarray, ends: np.ndarray) -> None:
        """Append ids (their type is `dtype`) in which documents end after `ends`, int64.

        Ids after the last end begin a document whose end comes with a later call.
        """
        begin = first = 0
        while first < len(ends):
            room = max(self._shard_tokens - self._tokens, 0)
            fits = int(np.searchsorted(ends[first:] - begin, room, side="right"))
            if fits == 0:
                if self._documents and not self._inside:
                    self._close()
                    continue
                fits = 1  # a document longer than a shard gets one of its own
            last = int(ends[first + fits - 1])
            self._append(ids[begin:last], ends[first : first + fits] - begin)
            begin, first = last, first + fits
        if begin < len(ids):
            self._append(ids[begin:], ends[:0])

    def _append(self, ids: np.ndarray, ends: np.ndarray) -> None:
        if self._open is None:
            part = f"-{len(self._closed):03d}" if self._closed else ""
            name = f"{self._split}-{self._number:05d}{part}"
            self._open = (
                HashedFile(self._directory, f"{name}.bin"),
                HashedFile(self._directory, f"{name}.docs"),
            )
        self._open[0].write(ids)
        self._open[1].write((ends + self._tokens).astype(DOCUMENT_ENDS))
        self._tokens += len(ids)
        self._documents += len(ends)
        self._inside = not len(ends)

    def _close(self) -> None:
        if self._open is not None:
            self._closed.append((*self._open, self._tokens, self._documents))
        self._open = None
        self._tokens = self._documents = 0

    def finish(self) -> tuple[Shard, ...]:
        """Close them; the shards written, none of them empty, for `make_durable`."""
        self._close()
        return tuple(
            Shard(
                file=ids.name,
                documents_file=ends.name,
                split=self._split,
                tokens=tokens,
                documents=documents,
                sha256=ids.finish(),
                documents_sha256=ends.finish(),
            )
            for ids, ends, tokens, documents in self._closed
        )

    def abandon(self) -> None:
        """Let go of the open files after a failure."""
        self._close()
        for ids, ends, _, _ in self._closed:
            ids.abandon()
            ends.abandon()


def temporary_name(directory: Path, name: str) -> Path:
    """The path of a file until it is durable."""
    return directory / f".{name}.part"


def make_durable(names: Iterable[str], directory: Path) -> None:
    """Give finished files, of whatever process, their own names. Raises `OSError`."""
    for name in names:
        with temporary_name(directory, name).open("rb") as file:
            os.fsync(file.fileno())
        os.replace(file.name, directory / name)
    fsync_directory(directory)
