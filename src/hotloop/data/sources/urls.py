"""URLs: which files there are behind one, and how each is opened."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.data.sources.http import http_file
from hotloop.data.sources.remote import RemoteFile, state_from, wait_or_fail
from hotloop.data.sources.tree import SKIPPED_DIRECTORIES, chosen
from hotloop.data.sources.unit import ReadOptions, Report

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs",
             "abfs": "adlfs", "hdfs": "pyarrow", "sftp": "paramiko"}  # fmt: skip
_TAGS = ("ETag", "etag", "LastModified", "mtime", "updated", "modified", "created", "md5Hash")


def local_path_of(url: str) -> str | None:
    """The path that a `file://` URL names."""
    if not url.startswith("file://"):
        return None
    return urllib.request.url2pathname(urllib.parse.urlsplit(url).path)


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def remote_file(url: str) -> RemoteFile:
    """One file. Raises `UsageError` if it is not there or cannot be reached."""
    if is_http(url):
        return http_file(url)
    system, path = _file_system(url)
    info = _asked(url, system, lambda: system.info(path))
    size = info.get("size")

    def fetch(begin: int, end: int) -> bytes:
        return bytes(system.cat_file(path, start=begin, end=end))

    state = state_from(size, *(info.get(tag) for tag in _TAGS))
    return RemoteFile(url, size, state, fetch if size is not None else None)


def remote_files(url: str, options: ReadOptions, report: Report) -> Iterator[tuple[str, bool]]:
    """(URL, whether it stands in a directory) of the files behind a URL, sorted."""
    if is_http(url):
        yield url, False
        return
    system, path = _file_system(url)
    if any(sign in path for sign in "*?["):
        for name in sorted(_asked(url, system, lambda: system.glob(path))):
            if not _asked(url, system, partial(system.isdir, name)):
                yield system.unstrip_protocol(name), False
        return
    if not _asked(url, system, lambda: system.isdir(path)):
        yield url, False
        return
    names = sorted(_asked(url, system, lambda: system.find(path)))
    root = PurePosixPath(path)
    for name in names:
        relative = PurePosixPath(name).relative_to(root)
        full = system.unstrip_protocol(name)
        if any(part.startswith(".") or part in SKIPPED_DIRECTORIES for part in relative.parts):
            report.add("hidden", full)
        elif (why := chosen(relative.as_posix(), options)) is not None:
            report.add(why, full)
        else:
            yield full, True


def _file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    try:
        import fsspec.core
    except ImportError as error:
        raise UsageError(
            "reading URLs needs the package fsspec", where=url, do="pip install fsspec"
        ) from error
    protocol = url.split("://")[0].split("::")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(
            f"reading {protocol}:// needs another package: {error}",
            where=url,
            do=f"pip install {_PACKAGES.get(protocol, f'what fsspec needs for {protocol}')}",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"cannot read {protocol}://: {error}", where=url, do="see the protocols fsspec knows"
        ) from error
    return system, str(path)


def _asked(url: str, system: Any, question: Callable[[], Any]) -> Any:
    """The answer, also if the connection fails at first. Raises `UsageError`, `EnvironmentFailed`."""
    failures = 0
    while True:
        try:
            system.invalidate_cache()
            return question()
        except FileNotFoundError as error:
            raise UsageError("no such source", where=url) from error
        except PermissionError as error:
            raise UsageError(f"no permission: {error}", where=url) from error
        except Exception as error:  # noqa: BLE001  (every file system has its own)
            wait_or_fail(url, 0, failures, error)
            failures += 1
