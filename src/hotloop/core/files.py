"""Reading and writing the stored stages: versioned JSON, written whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.untrusted import parse_json, read_bytes

T = TypeVar("T")

ROLLBACKS_FILE = "rollbacks.jsonl"
"""In a run directory: a line for every time that training went back to a checkpoint."""
SESSIONS_FILE = "sessions.jsonl"
"""In a run directory: what `train.session_log` says of each process that trained there."""


def process_space() -> str:
    """Which processes this one can see, hence which locks: the boot and the PID namespace; empty: not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


_NOT_THE_PLACE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EAGAIN, errno.ENOMEM, errno.ECHILD, errno.ESRCH, errno.EINTR})  # fmt: skip
"""Errors of a process or of the machine: another directory would not help."""


def storage_error(error: OSError, path: Path | str, doing: str) -> EnvironmentFailed:
    """The clear form of an `OSError` from writing `path`."""
    reason = {
        errno.ENOSPC: "no space left on the disk",
        errno.EDQUOT: "the disk quota is used up",
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.EROFS: "the file system is read-only",
        errno.ENOTDIR: "a part of the path is a file, not a directory",
        errno.EEXIST: "a part of the path is a file, not a directory",
    }.get(error.errno or 0, error.strerror or str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space or choose another directory, then run the same command again"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit of open files (`ulimit -n`), then run the same command again"
    elif error.errno in _NOT_THE_PLACE:
        remedy = "run the same command again: what is finished stays"
    else:
        remedy = "choose a directory that can be written"
    return EnvironmentFailed(f"cannot {doing}: {reason}", where=str(path), do=remedy)


@contextmanager
def storing(path: Path | str, doing: str) -> Iterator[None]:
    """Within it an `OSError` becomes the `storage_error` of `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, doing) from error


def append_line(path: Path, value: dict[str, Any], doing: str) -> None:
    """Add a line of JSON to a file, also behind one that a killed process left torn. Raises `EnvironmentFailed`."""
    with storing(path, doing), path.open("ab", buffering=0) as file:
        file.write(b"\n" + json.dumps(value).encode())


def fsync_directory(path: Path) -> None:
    """Make renames and creations inside `path` durable (a no-op where directories cannot be opened)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or leave the old one: temporary file beside it, fsync, rename, fsync.

    Raises `EnvironmentFailed` when the disk is full or the directory cannot be written.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
        fsync_directory(path.parent)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise storage_error(error, path, "write") from error


_TEMPORARY = re.compile(r"\.[a-z0-9-]+\.(json|jsonl|yaml)\.[a-z0-9_]{8}")


def is_temporary(name: str) -> bool:
    """True for what a killed process leaves of `write_atomically`."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(directory: Path) -> None:
    """Delete what killed processes left of `write_atomically`; for the only one that writes there."""
    for path in directory.iterdir():
        if is_temporary(path.name):
            path.unlink()


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Made once for each kind: a measurement's takes 11 ms, and a report reads dozens of them."""


def to_plain(value: Any) -> Any:
    """The JSON-ready form of a core dataclass, or of `None`."""
    return _adapter(type(value)).dump_python(value, mode="json")


def finite(value: Any) -> Any:
    """JSON-ready values with null for a number that is not finite, such as a loss: strict JSON has no word for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a core dataclass (or plain mapping) as indented JSON, atomically."""
    plain = value if isinstance(value, (dict, list)) else to_plain(value)
    write_atomically(path, (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())


AGAIN = "remove it, and make it again with the command that wrote it"


def read_json(path: Path, kind: type[T], *, finite: bool = True) -> T:
    """Read a core dataclass back. Raises `UsageError` when missing, damaged or of another version.

    Python's NaN and Infinity are damage, unless `finite` is false.
    """
    try:
        plain = parse_json(read_bytes(path), finite=finite)
    except FileNotFoundError as error:
        raise UsageError("no such file", where=str(path)) from error
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise UsageError(f"not valid JSON: {error}", where=str(path), do=AGAIN) from error
    wanted = getattr(kind, "__dataclass_fields__", {}).get("schema")
    if wanted is not None and isinstance(plain, dict) and plain.get("schema") != wanted.default:
        what = f"schema {plain.get('schema')!r} is not {wanted.default!r}"
        do = "write it again with this version of hotloop"
        raise UsageError(what, where=str(path), do=do)
    try:
        return validated(kind, plain)
    except ValueError as error:
        raise UsageError(f"damaged: {error}", where=str(path), do=AGAIN) from error


def validated(kind: type[T], plain: Any) -> T:
    """A core dataclass of plain values. Raises `ValueError` naming the first field that is wrong."""
    try:
        value: T = _adapter(kind).validate_python(plain)
        return value
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{field}: {first['msg']}" if field else first["msg"]) from error
