"""Other machines that a command was seen to connect to. Standard library only: foreign processes import this."""

from __future__ import annotations

from pathlib import Path

CONNECTIONS_FILE = "connections.txt"
"""In a run directory, `host:port` a line."""


def connections_of(directory: Path) -> tuple[str, ...]:
    """Each once, in the order in which they were made."""
    try:
        lines = (directory / CONNECTIONS_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    return tuple(dict.fromkeys(lines.split()))
