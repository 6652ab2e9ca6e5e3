"""Characters that are hard to type, written with a backslash."""

from __future__ import annotations

import re

from hotloop.core.errors import UsageError

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.?))", re.DOTALL)


def unescape(typed: str) -> str:
    """A string as typed, with `\\n`, `\\t`, `\\r`, `\\0`, `\\x1e` and `\\\\` understood. Raises `UsageError`."""

    def meant(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] not in _ESCAPES:
            raise UsageError(
                f"cannot read the separator {typed!r}",
                do="after a backslash comes n, t, r, 0, x and two digits of a hexadecimal number, or "
                "another backslash",
            )
        return _ESCAPES[match[2]]

    text = _ESCAPED.sub(meant, typed)
    if not text:
        raise UsageError("the separator is empty", do="give a string, blank-line or file")
    return text


def delimiter_of(typed: str) -> str:
    """The one character between columns. Raises `UsageError`."""
    text = unescape(typed) if typed else ""
    if len(text) != 1 or text in '"\r\n\0':
        raise UsageError(
            f"cannot read the delimiter {typed!r}",
            do="give one character, as ; or \\t, and neither a quote nor a line end",
        )
    return text
