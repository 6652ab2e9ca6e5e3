"""A unified diff in bytes, for `git apply` and `patch -p1`; line ends and encodings as they are."""

from __future__ import annotations

import difflib
import re

from hotloop.doctor.patch.source import Unsafe

_NO_NEWLINE = b"\\ No newline at end of file\n"
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@\n")


def unified_diff(file: str, old: bytes, new: bytes) -> bytes:
    """From `a/file` to `b/file`. Raises `Unsafe` where it would not give back `new`."""
    name = file.encode()
    end = b"\t" if b" " in name else b""  # or the name would end at its first space
    lines = [
        line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE
        for line in difflib.diff_bytes(
            difflib.unified_diff, _lines(old), _lines(new), b"a/" + name + end, b"b/" + name + end
        )
    ]
    made = b"".join(lines)
    if patched(old, made) != new:
        raise Unsafe("its diff does not give the edited file")
    return made


def patched(old: bytes, diff: bytes) -> bytes:
    """`old` with a diff of one file applied, every line of context looked at. Raises `Unsafe`."""
    before, after, place = _lines(old), list[bytes](), 0
    lines = _lines(diff)[2:]
    for number, line in enumerate(lines):
        hunk = _HUNK.fullmatch(line)
        if hunk is not None:
            start = int(hunk[1]) - (hunk[2] != b"0")
            after += before[place:start]
            place = start
            continue
        if line == _NO_NEWLINE:
            continue
        kind, text = line[:1], line[1:]
        if number + 1 < len(lines) and lines[number + 1] == _NO_NEWLINE:
            text = text.removesuffix(b"\n")
        if kind in (b" ", b"-"):
            if place >= len(before) or before[place] != text:
                raise Unsafe("its diff does not fit the file")
            place += 1
        if kind in (b" ", b"+"):
            after.append(text)
    return b"".join([*after, *before[place:]])


def _lines(content: bytes) -> list[bytes]:
    r"""At `\n` alone: a diff knows no other line ends."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)
