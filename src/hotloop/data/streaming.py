"""Training while the text is being read and tokenized: the order of sequences, and the process that prepares.

The first epoch goes through the sequences of finished jobs in blocks of `buffer` sequences, each permuted: a
block is given as soon as all of it is there. The last block is what is left over. From the second epoch on
the whole corpus is permuted, as without streaming. So the order is a function of the seed, the position and
the number of tokens, and not of how fast the text was prepared; any position can be asked for again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import IO

import numpy as np

from hotloop.core.errors import CommandFailed, EnvironmentFailed, ExitCode, HotloopError, UsageError
from hotloop.core.escapes import escape
from hotloop.data.cache import Wanted
from hotloop.data.growing import Growing
from hotloop.data.loader import PlainRows, RowLoader, Rows
from hotloop.data.manifest import Split
from hotloop.data.order import EpochOrder, permuted
from hotloop.data.sources import ReadOptions
from hotloop.data.stream import TokenStream


class StreamedLoader(RowLoader):
    """Sequences of a growing split. A batch waits until its sequences are there."""

    def __init__(
        self,
        growing: Growing,
        split: Split,
        *,
        context: int,
        buffer: int,
        seed: int,
        shuffled: bool = True,
        within_documents: bool = False,
    ) -> None:
        """`within_documents` as in `PlainRows`."""
        self._growing = growing
        self._split = split
        self._context = context
        self._buffer = buffer
        self._seed = seed
        self._shuffled = shuffled
        self._within = within_documents
        self._known: tuple[TokenStream, Rows] | None = None
        self._block: tuple[int, np.ndarray] | None = None
        self._epochs: EpochOrder | None = None

    @property
    def num_windows(self) -> int:
        """So far; of one epoch once all the text is prepared."""
        return max(len(self._growing.streams[self._split]) - 1, 0) // self._context

    def wait(self, num_windows: int) -> bool:
        """Wait until there are `num_windows` sequences, or all that there will ever be; True when there are."""
        return self._growing.wait(self._split, num_windows * self._context + 1)

    def indices(self, position: int, num_windows: int) -> np.ndarray:
        """See `RowLoader`. Raises what ended the preparation."""
        if position < 0 or num_windows <= 0:
            raise ValueError(f"no batch of {num_windows} sequences at position {position}")
        parts = []
        while num_windows:
            part = self._from(position)[:num_windows]
            parts.append(part)
            position += len(part)
            num_windows -= len(part)
        return np.concatenate(parts)

    def _from(self, position: int) -> np.ndarray:
        """Some of the sequences from `position` on, at least one."""
        block, inside = divmod(position, self._buffer)
        whole = self.wait((block + 1) * self._buffer)
        size = self._buffer if whole else self.num_windows - block * self._buffer
        if inside < size:
            if self._block is None or self._block[0] != block:
                items = np.arange(size, dtype=np.int64)
                if self._shuffled:
                    items = permuted(items, size, seed=self._seed, epoch=block)
                self._block = (block, block * self._buffer + items)
            return self._block[1][inside:]
        if not self.num_windows:
            raise UsageError(
                f"the {self._split} text holds less than one sequence of {self._context} tokens",
                where=str(self._growing.path),
                do="give more text, or lower `model.context`",
            )
        if self._epochs is None:
            order = "shuffled" if self._shuffled else "sequential"
            self._epochs = EpochOrder(self.num_windows, order, self._seed)  # type: ignore[arg-type]
        return self._epochs.run(position, 1)

    def current_rows(self) -> Rows:
        stream = self._growing.streams[self._split]
        if self._known is None or self._known[0] is not stream:
            rows = PlainRows(stream, context=self._context, within_documents=self._within)
            self._known = (stream, rows)
        return self._known[1]


class Preparation:
    """`hotloop prepare` in a process of its own, for as long as the training needs it."""

    def __init__(self, wanted: Wanted, path: Path) -> None:
        """Raises `EnvironmentFailed` when no process can be started."""
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        command = [sys.executable, "-m", "hotloop", "prepare", f"--out={path}"]
        command += [f"--tokenizer={wanted.tokenizer}", *as_arguments(wanted.reading)]
        if wanted.end_of_text is not None:
            command.append(f"--end-of-text={wanted.end_of_text}")
        command += ["--", *wanted.sources]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                start_new_session=True,  # Ctrl-C is for the training, which ends this one
            )
        except OSError as error:
            raise EnvironmentFailed(f"cannot start `hotloop prepare`: {error.strerror}") from error

    def check(self) -> None:
        """Raises the error that the preparation ended with."""
        code = self._process.poll()
        if not code:
            return
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        what, *rest = output.rpartition("error: ")[2].strip().split("\n") or [""]
        where = next((line[5:] for line in rest if line.startswith("  at ")), None)
        do = next((line[2:] for line in rest if line[:2] == "  " and line[:5] != "  at "), None)
        if code == ExitCode.RESUMABLE or code < 0:  # what it wrote before was no error
            by = "interrupted" if code == ExitCode.RESUMABLE else f"ended by {_signal_name(-code)}"
            what, where = f"its process was {by}", None
            do = "run the same command again: it continues from there"
        what = f"preparing the text failed: {what or f'exit code {code}'}"
        kinds: dict[int, type[HotloopError]] = {
            ExitCode.USAGE: UsageError,
            ExitCode.ENVIRONMENT: EnvironmentFailed,
        }
        kind = kinds.get(code)
        if kind is None:
            raise CommandFailed(what, where=where, do=do, returncode=code)
        raise kind(what, where=where, do=do)

    def close(self) -> None:
        """End it if it is still at work: what is finished is kept, and the next run continues from there."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()


def as_arguments(reading: ReadOptions) -> list[str]:
    """The options of `hotloop prepare` that mean `reading`; none for a default."""
    arguments = []
    default = ReadOptions()
    for entry in fields(ReadOptions):
        value, flag = getattr(reading, entry.name), f"--{entry.name.replace('_', '-')}"
        if value == getattr(default, entry.name):
            continue
        if value is True:
            arguments.append(flag)
        elif isinstance(value, tuple):
            arguments += [f"{flag}={pattern}" for pattern in value]
        else:
            arguments.append(
                f"{flag}={escape(value) if entry.name in ('separator', 'delimiter') else value}"
            )
    return arguments


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
