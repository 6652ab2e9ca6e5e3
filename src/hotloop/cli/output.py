"""What a command writes: its standard streams, notes on stderr, and the file that `--json FILE` names.

What it shows can neither end nor alter what it does: a write that fails (the reader went away,
the disk under a log is full, the descriptor was closed) turns that descriptor into /dev/null and is
remembered. `main.py` looks at the end whether standard output was lost. It is loaded for `hotloop --help`,
so that only click and the standard library are imported here.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from hotloop.core.errors import EnvironmentFailed, UsageError

F = TypeVar("F", bound=Callable[..., Any])


class _Stream(io.FileIO):
    """A descriptor whose writes do not fail; `lost` is what went wrong, if anything did.

    Text is kept only above it, not in a `BufferedWriter`: that one keeps what it gives to `write` until it returns, and
    where Ctrl-C comes between the system's write and the return, what was written already is written again.
    """

    def __init__(self, descriptor: int, *, was_closed: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._was_closed = was_closed
        self.lost: OSError | None = None

    def write(self, data) -> int:  # type: ignore[no-untyped-def]  # any buffer
        try:
            if self._was_closed:
                raise OSError(errno.EBADF, "it is closed")
            left = memoryview(data)
            while left:
                written = super().write(left)
                if written is None:  # a descriptor that does not wait
                    select.select([], [self], [])
                left = left[written or 0 :]
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
            _Stream(descriptor, was_closed=was_closed),  # as with `python -u`
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
    lost = _lost_output()
    if lost is None or lost.errno == errno.EPIPE:
        return
    reason = "no space left on the disk" if lost.errno == errno.ENOSPC else lost.strerror
    do = "give it a file or a pipe that can be written, then run the same command again"
    raise EnvironmentFailed(f"cannot write standard output: {reason}", do=do)


def is_unread() -> bool:
    """Whether the reader of standard output has gone away."""
    lost = _lost_output()
    return lost is not None and lost.errno == errno.EPIPE


def _lost_output() -> OSError | None:
    stream = getattr(sys.stdout, "buffer", None)
    return stream.lost if isinstance(stream, _Stream) else None


def say(text: str) -> None:
    """A line (or several) on stderr, without what a terminal would obey."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201


def show(text: str, *, err: bool = False) -> None:
    """An answer: in colours on a terminal, plain elsewhere."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        click.echo(text, err=err)
        return
    from hotloop.cli.colour import print_answer

    print_answer(printable(text), stream)


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


def json_option(help: str) -> Callable[[F], F]:
    """`--json FILE` of a command, refused before its work where FILE could not be written after it."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def checked(*args: Any, json_file: str | None, **options: Any) -> Any:
            refuse_unwritable(json_file, made=options.get("out"))
            return command(*args, json_file=json_file, **options)

        return cast(F, click.option("--json", "json_file", metavar="FILE", help=help)(checked))

    return decorate


def refuse_unwritable(file: str | None, *, made: Path | None, option: str = "--json") -> None:
    """Raises what `write_object` would raise later. The directory `made` comes with the work."""
    if file is None or file == "-":
        return
    path = Path(file)
    if path.is_dir():
        raise UsageError("a directory, not a file", where=file, do=f"name a file for {option}")
    if not path.parent.is_dir():
        if made is None or made.absolute() not in path.absolute().parents:
            raise _no_directory(path, option)
    elif not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise EnvironmentFailed(
            "cannot write: permission denied", where=file, do=f"choose another file for {option}"
        )


def _no_directory(path: Path, option: str = "--json") -> UsageError:
    return UsageError(
        "no such directory",
        where=str(path.parent),
        do=f"make it, or choose another file for {option}",
    )


def write_object(value: dict[str, Any], file: str) -> None:
    """Write one object to a file, atomically, or to stdout for `-`; `finite`."""
    from hotloop.core.files import finite, storing, write_json

    plain = finite(value)
    if file == "-":
        click.echo(json.dumps(plain, indent=1, allow_nan=False))
        refuse_lost_output()
        return
    path = Path(file)
    if not path.parent.is_dir():
        raise _no_directory(path)
    if path.exists() and not path.is_file():
        # A device, a pipe or `/dev/fd/N`: written into. Renaming a file over it would destroy it.
        with storing(path, "write"):
            path.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return
    write_json(path.resolve(), plain)  # resolved: a symbolic link stays one


def tell_json(value: dict[str, Any], file: str | None) -> bool:
    """`write_object` where `--json` was given; returns whether words are wanted, too."""
    if file is not None:
        write_object(value, file)
    return file != "-"
