"""Reads files and JSON that anybody may have written. Standard library only.

Whatever is wrong with a file is an `OSError`, whatever is wrong with JSON is a `ValueError`: never a wait
for a pipe, an endless device, a recursion or a number that cannot be printed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 1 << 28
"""Bytes of a file that is read whole as one JSON value, or as text, and of a line of one that is read line by line."""
BLOCK_BYTES = 1 << 20
"""Read at once from the end of a file."""
MAX_DEPTH = 64
"""Lists and objects within each other."""
MAX_DIGITS = 20
"""Digits of an integer: 2**64 has as many."""


def open_regular(path: Path) -> BufferedReader:
    """A regular file, open for reading bytes. Raises `OSError` for a pipe, a device or a directory."""
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_bytes(path: Path, *, limit_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file of up to `limit_bytes`. Raises `OSError` for everything else."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"larger than {limit_bytes >> 10:,} KiB", str(path))
        return file.read()


def parse_json(content: bytes | str, *, finite: bool = True) -> Any:
    """The value. Raises `ValueError`, and nothing else. Python's NaN and Infinity are read unless `finite`."""
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        value = (_FINITE if finite else _ANY).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")


def parse_object(content: bytes | str, *, finite: bool = True) -> dict[str, Any]:
    """The same of a JSON object. Raises `ValueError` for any other value."""
    value = parse_json(content, finite=finite)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


TORN = "torn: the process ended while writing it"


def object_lines(path: Path, *, finite: bool = True) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each line that is not empty: its number, and its JSON object or what is wrong with it.

    A last line that has no end and holds no object is `TORN`. Raises `OSError`, also for a line of more than `MAX_BYTES`.
    """
    with open_regular(path) as file:
        for number in count(1):
            whole = file.readline(MAX_BYTES + 1)
            _check_line(whole, path)
            line = whole.removesuffix(b"\n")
            if line.strip():
                try:
                    yield number, parse_object(line, finite=finite)
                except ValueError as error:
                    yield number, TORN if line == whole else str(error)
            if line == whole:  # what is added meanwhile is the rest of this line
                return


def lines_from_end(path: Path) -> Iterator[bytes]:
    """The lines of a regular file, the last one first. Raises `OSError`, also for a line of more than `MAX_BYTES`."""
    with open_regular(path) as file:
        begin, line = file.seek(0, os.SEEK_END), b""
        while begin:
            size = min(begin, BLOCK_BYTES)
            begin = file.seek(begin - size)
            line, *lines = (file.read(size) + line).split(b"\n")
            yield from reversed(lines)
            _check_line(line, path)
        yield line


def _check_line(line: bytes, path: Path) -> None:
    if len(line) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"a line is larger than {MAX_BYTES >> 10:,} KiB", str(path))


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + digits.startswith("-"):
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


_FINITE = json.JSONDecoder(
    parse_int=_integer, parse_float=_finite_number, parse_constant=_no_number
)
_ANY = json.JSONDecoder(parse_int=_integer)
