"""Characters that are hard to type, written with a backslash."""

from __future__ import annotations

from hotloop.core.errors import UsageError

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_NAMES = {meant: name for name, meant in _ESCAPES.items()}


def unescape(separator: str) -> str:
    """A separator as typed, with `\\n`, `\\t`, `\\r`, `\\0` and `\\\\` understood. Raises `UsageError`."""
    text, rest = "", separator
    while rest:
        if rest[0] == "\\":
            if rest[1:2] not in _ESCAPES or not rest[1:]:
                raise UsageError(
                    f"cannot read the separator {separator!r}",
                    do="after a backslash comes n, t, r, 0 or another backslash",
                )
            text += _ESCAPES[rest[1]]
            rest = rest[2:]
        else:
            text += rest[0]
            rest = rest[1:]
    if not text:
        raise UsageError("the separator is empty", do="give a string, blank-line or file")
    return text


def escape(text: str) -> str:
    """What `unescape` reads back as `text`."""
    return "".join(f"\\{_NAMES[c]}" if c in _NAMES else c for c in text)
