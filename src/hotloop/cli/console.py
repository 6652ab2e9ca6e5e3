"""The standard streams of a command, and the one way to write notes to stderr.

What a command shows can neither end nor alter what it does: a write that fails (the reader went away,
the disk under a log is full, the descriptor was closed) turns that descriptor into /dev/null and is
remembered. `main.py` looks at the end whether standard output was lost. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys

from hotloop.core.errors import EnvironmentFailed


class _Stream(io.FileIO):
    """A descriptor whose writes do not fail; `lost` is what went wrong, if anything did."""

    def __init__(self, descriptor: int, *, was_closed: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._was_closed = was_closed
        self.lost: OSError | None = None

    def write(self, data) -> int:  # type: ignore[no-untyped-def]  # any buffer
        try:
            if self._was_closed:
                raise OSError(errno.EBADF, "it is closed")
            while (written := super().write(data)) is None:  # a descriptor that does not wait
                select.select([], [self], [])
            return written
        except OSError as error:
            self.lost = self.lost or error
            self._was_closed = False
            with contextlib.suppress(OSError):
                _to_nowhere(self.fileno())
            return len(data)


def guard_streams() -> None:
    """Make sure that descriptors 0 to 2 are open, and that what is printed cannot fail.

    A descriptor that is left closed would be given to the next file that is opened, a checkpoint say,
    and what a library prints would land inside it.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        was_closed = False
        try:
            os.fstat(descriptor)
        except OSError:
            was_closed = True
            _to_nowhere(descriptor)
        if name == "stdin":
            continue
        before = getattr(sys, name)
        stream = io.TextIOWrapper(
            io.BufferedWriter(_Stream(descriptor, was_closed=was_closed)),
            encoding=getattr(before, "encoding", None) or "utf-8",
            errors="replace",  # a terminal that is not UTF-8 shows `?`
            line_buffering=name == "stderr" or os.isatty(descriptor),
            write_through=getattr(before, "write_through", False),
        )
        setattr(sys, name, stream)


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def refuse_lost_output() -> None:
    """Raises `EnvironmentFailed` when standard output could not be written; not for a reader that left."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    lost = raw.lost if isinstance(raw, _Stream) else None
    if lost is None or lost.errno == errno.EPIPE:
        return
    reason = "no space left on the disk" if lost.errno == errno.ENOSPC else lost.strerror
    raise EnvironmentFailed(
        f"cannot write standard output: {reason}",
        do="give it a file or a pipe that can be written, then run the same command again",
    )


def say(text: str) -> None:
    """A line (or several) on stderr, without what a terminal would obey."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201


def printable(text: str) -> str:
    """The text with `?` for what a terminal would obey: a file name may hold it."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def note(message: str) -> None:
    """What the user should know although the command goes on."""
    say(f"note: {message}")


def say_if_read(text: str) -> None:
    """`say`, unless the reader is so far behind that this process would wait for it."""
    if can_show():
        say(text)


def can_show() -> bool:
    """True if stderr takes a line now: a pager or a terminal that is stopped does not."""
    try:
        return bool(select.select([], [sys.stderr], [], 0)[1])
    except (OSError, ValueError):  # not a descriptor: a test's or a notebook's stream
        return True
