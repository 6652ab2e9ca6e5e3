"""A run's checkpoints in an object store or on another disk, through fsspec: `URL/step-00000250-1a2b3c4d/...`.

An object store has no rename. So the manifest is put last, and one is whole where a manifest is and all of its
files have the size that it says. `run.json` says which run the place belongs to. All that is read here may
be anybody's: names, sizes and hashes are checked, and what is unpacked never grows beyond its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from hotloop.checkpoint import store
from hotloop.checkpoint.entries import Entry, StoredFile, step_of
from hotloop.core.errors import EnvironmentFailed, HotloopError, UsageError, importing, pip_install
from hotloop.core.files import is_temporary, storing, write_atomically
from hotloop.core.untrusted import MAX_BYTES

T = TypeVar("T")

ATTEMPTS = 5
"""Of what fails, beside those that the store's own client makes."""
FIRST_WAIT_S = 1.0
"""Before the second attempt; twice as long before each one after it."""
BLOCK_BYTES = 8 << 20
"""Sent as one part, and read at once. S3 takes up to 10,000 parts of 5 MiB or more."""
SAMPLE_BYTES = 1 << 20
PAYS = 0.9
"""A sample that shrinks to this share or less: a tenth less to send is worth a CPU's time."""
RECORDS = ("config.yaml", "steps*.jsonl", "evals.jsonl", "rollbacks.jsonl", "sessions.jsonl")
"""Files of the run directory that go with a checkpoint: for another machine, what the run was until then."""
LEFT = "left.json"
"""What the manifest of a checkpoint becomes that the run no longer continues from."""
OTHER_PLACE = "choose another `checkpoint.upload` or another `name`"
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure"}
_REMEDIES = (
    ("Credentials", "give credentials as the store's own tools take them: by environment or file"),
    ("xpired", "renew the credentials, then run the same command again"),
    ("PermissionError", "these credentials must read, write, list and delete there"),
    ("bucket does not exist", "make the bucket, or correct `checkpoint.upload`"),
    ("", "run the same command when it can be reached; `checkpoint.upload=null` does without"),
)


class Damaged(ValueError):
    """What lies there is not what was uploaded; another attempt would not change it."""


class Remote:
    """One run's place. Methods raise `EnvironmentFailed` where the store refuses or cannot be reached."""

    def __init__(self, url: str, *, wait: Callable[[float], object] = time.sleep) -> None:
        """wait: sleeps before another attempt, and may raise. Raises `UsageError` for a URL that cannot be opened."""
        import fsspec.core

        self.url, self._wait = url.rstrip("/"), wait
        protocol = url.partition("://")[0]
        try:
            # An instance of its own: another one's listings and connections may be of another time.
            self._fs, path = fsspec.core.url_to_fs(self.url, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            extra = EXTRAS.get(protocol) if isinstance(error, ImportError) else None
            do = pip_install(extra) if extra else "for example s3://bucket/prefix"
            raise UsageError(f"cannot open {protocol}://: {error}", where=url, do=do) from error
        self._root = str(path).rstrip("/")
        self._is_local = protocol in ("file", "local")

    def tried(self, doing: str, action: Callable[[], T], *, attempts: int = ATTEMPTS) -> T:
        """What `action` returns, also if it fails at first. Not again: damage, and what is not permitted."""
        for attempt in range(1, attempts + 1):
            try:
                return action()
            except (Damaged, HotloopError):
                raise
            except Exception as error:  # every store has errors of its own
                kind, text = type(error).__name__, str(error).split("\n")[0]
                if kind == "ZstdError":
                    raise Damaged(f"altered: {text}") from error
                if attempt == attempts or "Credentials" in kind or kind == "PermissionError":
                    do = next(do for word, do in _REMEDIES if word in f"{kind} {text}")
                    what = f"cannot {doing}: {text or kind}"
                    raise EnvironmentFailed(what, where=self.url, do=do) from error
                self._wait(FIRST_WAIT_S * 2 ** (attempt - 1))
        raise AssertionError("returned or raised")

    def listed(self, name: str = "", *, attempts: int = ATTEMPTS) -> dict[str, dict[str, Any]]:
        """What the store says of each thing directly below, by name."""
        path = self._path(name)

        def listed() -> list[dict[str, Any]]:
            self._fs.invalidate_cache()
            try:
                return list(self._fs.ls(path, detail=True))
            except FileNotFoundError as error:
                if "bucket does not exist" in str(error):
                    raise
                return []

        found = self.tried("list what was uploaded", listed, attempts=attempts)
        # Neither an object that stands for the directory itself, nor a pipe that would be waited for.
        names = {each["name"].rstrip("/"): each for each in found if each["type"] != "other"}
        return {at.rpartition("/")[2]: each for at, each in names.items() if at != path}

    def claim(self, identity: bytes) -> bytes:
        """Write `identity` into run.json where the place is new, and return what stands there now.

        Raises `UsageError` where something lies there that is no run's.
        """
        there = self.listed(attempts=2)
        if "run.json" not in there:
            if not all(map(is_temporary, there)):  # one of run.json, whose writer was killed
                what = "something lies there, and no run.json says of which run"
                raise UsageError(what, where=self.url, do=OTHER_PLACE)
            self.put("run.json", identity, mode="create", attempts=2)
            there = self.listed()
        return self._read("run.json", there)

    def entries(self) -> Iterator[Entry]:
        """All that lies there, newest step first, each looked at when it is asked for."""
        for name in sorted(self.listed(), reverse=True):
            if step_of(name) is not None:
                yield self._entry(name)

    def _entry(self, name: str) -> Entry:
        step, there = step_of(name) or 0, self.listed(name)
        if LEFT in there:
            return Entry(name, step, "set aside", "the run went on from an earlier step")
        if store.MANIFEST not in there:
            return Entry(name, step, "half-written", "no manifest: its upload was cut short")
        try:
            content = self._read(
                f"{name}/{store.MANIFEST}", {store.MANIFEST: there[store.MANIFEST]}
            )
            manifest = store.manifest_of(content, step)
        except ValueError as error:
            return Entry(name, step, "damaged", str(error))
        problem = None
        for file, said in (*manifest.files.items(), *manifest.records.items()):
            size = there.get(_stored(file, said), {}).get("size", "no")
            if size != (said.bytes if said.zstd_bytes is None else said.zstd_bytes):
                problem = f"{_stored(file, said)} has {size} bytes there"
        for each in manifest.records:
            if not any(fnmatch(each, pattern) for pattern in RECORDS):
                problem = f"its manifest has a record that no run has: {each}"
        return Entry(
            name, step, "damaged" if problem else "whole", problem, manifest.saved_at, manifest
        )

    def put_file(
        self, at: str, file: BufferedReader | BufferedRandom, *, compress: bool, there: bool, sent: Callable[[int], None]
    ) -> StoredFile:  # fmt: skip
        """Upload a file as `at`, with .zst where that pays, and verify it there.

        Verified by size and checksum. S3's ETag is the MD5 of an object, or of the MD5s of its parts: one that is equal cannot
        be so by luck. Where it is not (KMS keys, other stores) or there is none, all is read back. Where something may
        be `there` from an earlier process, it stays if it verifies. `sent` is told of the bytes before they are sent.
        """
        num_bytes = os.fstat(file.fileno()).st_size
        block = max(BLOCK_BYTES, -(-num_bytes // 9000))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        compressed = compress and _pays(file)
        at += ".zst" if compressed else ""

        def source() -> Any:
            file.seek(0)
            return _zstd().ZstdCompressor().stream_reader(file, closefd=False) if compressed else file  # fmt: skip

        def put() -> int:
            if there and self._holds(at, *(found := _digest(source(), block)), block):
                return found[0]
            if not self._holds(at, *(found := self._send(at, source(), block, sent)), block):
                raise OSError(f"{at} is not there as it was sent")
            return found[0]

        size = self.tried(f"upload {at}", put)
        return StoredFile(num_bytes, digest, size if compressed else None)

    def _send(self, at: str, source: Any, block: int, sent: Callable[[int], None]) -> tuple[int, str]:  # fmt: skip
        if self._is_local:
            Path(self._path(at)).parent.mkdir(parents=True, exist_ok=True)
        out = self._fs.open(self._path(at), "wb", block_size=block)
        try:
            found = _digest(source, block, lambda piece: sent(len(piece)), out.write)
            if self._is_local:
                out.flush()
                os.fsync(out.f.fileno())
            out.close()
        except BaseException:
            # Else closing it, which its end does as well, would make an object of what has arrived.
            with contextlib.suppress(Exception):
                out.discard()
            with contextlib.suppress(AttributeError):
                out.closed = True
            raise
        return found

    def _holds(self, at: str, size: int, digest: str, block: int) -> bool:
        try:
            self._fs.invalidate_cache()
            info = self._fs.info(self._path(at))
        except FileNotFoundError:
            return False
        if info["size"] != size or str(info.get("ETag", "")).strip('"') == digest:
            return bool(info["size"] == size)
        with self._fs.open(self._path(at), "rb", block_size=block) as file:
            return _digest(file, block) == (size, digest)

    def put(
        self, at: str, content: bytes, *, mode: str = "overwrite", attempts: int = ATTEMPTS
    ) -> None:
        """Write a small file, whole or not at all. `create`: leave what another process has put there meanwhile."""

        def put() -> None:
            with contextlib.suppress(FileExistsError):
                if self._is_local:
                    write_atomically(Path(self._path(at)), content)
                else:
                    self._fs.pipe_file(self._path(at), content, mode=mode)

        self.tried(f"write {at}", put, attempts=attempts)

    def fetch(self, entry: Entry, root: Path) -> store.Checkpoint:
        """Download one into a fresh step directory under `root`, by the commit protocol; the run's records beside `root`.

        Raises `Damaged` for what is not as its manifest says.
        """
        assert entry.manifest is not None
        directory = store.new_directory(root, entry.step)
        try:
            self._get_all(entry, lambda name: directory / name)
            for name in entry.manifest.records:
                if name != "config.yaml" or not (root.parent / name).exists():
                    os.replace(directory / name, root.parent / name)
            saved = store.commit(directory, list(entry.files), saved_at=entry.saved_at)
            if store.entry(directory).content != entry.content:
                raise Damaged("the disk holds something else than what was downloaded")
            return saved
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def check(self, entry: Entry) -> str | None:
        """`None` when every uploaded file has the hash of the manifest, else what has not. Reads all of it."""
        try:
            self._get_all(entry, lambda name: Path(os.devnull))
        except Damaged as error:
            return str(error)
        return entry.problem

    def _get_all(self, entry: Entry, to: Callable[[str], Path]) -> None:
        assert entry.manifest is not None
        for name, said in (*entry.files.items(), *entry.manifest.records.items()):
            at = f"{entry.name}/{_stored(name, said)}"
            self.tried(f"download {at}", partial(self._get, at, said, to(name)))

    def _get(self, at: str, said: StoredFile, to: Path) -> None:
        digest, left = hashlib.sha256(), said.bytes
        with self._fs.open(self._path(at), "rb") as source, to.open("wb") as out:
            if said.zstd_bytes is not None:
                source = _zstd().ZstdDecompressor(max_window_size=128 << 20).stream_reader(source)
            while piece := source.read(min(1 << 20, left + 1)):
                if (left := left - len(piece)) < 0:
                    raise Damaged(f"{at} has more than {said.bytes} bytes")
                digest.update(piece)
                with storing(to, "download a checkpoint"):
                    out.write(piece)
        if digest.hexdigest() != said.sha256:
            raise Damaged(f"{at} was altered: its checksum differs")

    def set_aside(self, *, newer_than: int) -> None:
        """The run goes on from `newer_than`: what was uploaded of later steps is never continued from. Its files stay."""
        for entry in self.entries():
            if entry.step > newer_than and entry.state in ("whole", "damaged"):
                self.put(f"{entry.name}/{LEFT}", entry.manifest.to_json() if entry.manifest else b"{}")  # fmt: skip
                self._delete(f"{entry.name}/{store.MANIFEST}")

    def remove(self, entry: Entry) -> None:
        """Delete an uploaded checkpoint, its manifest first."""
        self._delete(f"{entry.name}/{store.MANIFEST}")
        self._delete(entry.name)

    def _delete(self, at: str) -> None:
        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(self._path(at), recursive=True)

        self.tried(f"delete {at}", delete)

    def _read(self, at: str, there: dict[str, dict[str, Any]]) -> bytes:
        if not there or max(each["size"] or 0 for each in there.values()) > MAX_BYTES:
            raise Damaged(f"{at} is missing or too large")
        return self.tried(f"read {at}", lambda: bytes(self._fs.cat_file(self._path(at))))

    def _path(self, at: str) -> str:
        return f"{self._root}/{at}" if at else self._root


def _digest(source: Any, block: int, *told: Callable[[Any], object]) -> tuple[int, str]:
    """Size and MD5 of the content as S3 makes an ETag of what is sent in parts of `block` bytes."""
    digests, size = [], 0
    while piece := source.read(block):
        for tell in told:
            tell(piece)
        digests.append(hashlib.md5(piece, usedforsecurity=False).digest())
        size += len(piece)
    joined = hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()
    if size >= block:
        return size, f"{joined}-{len(digests)}"
    return size, digests[0].hex() if digests else joined  # sent at once


def _stored(name: str, said: StoredFile) -> str:
    return name if said.zstd_bytes is None else f"{name}.zst"


def _zstd() -> Any:
    with importing("zstd", "compressed checkpoints need the package zstandard"):
        import zstandard
    return zstandard


def _pays(file: BufferedReader | BufferedRandom) -> bool:
    """Measured in the middle of the file, since it begins with names."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - SAMPLE_BYTES) // 2)
    sample = file.read(SAMPLE_BYTES)
    return bool(len(_zstd().ZstdCompressor().compress(sample)) <= PAYS * len(sample))
