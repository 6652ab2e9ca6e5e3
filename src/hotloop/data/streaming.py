"""Training while the text is being read and tokenized: the order of sequences, and the process that prepares.

The first epoch goes through the sequences of finished jobs in blocks of `buffer` sequences, each permuted: a
block is given as soon as all of it is there. The last block is what is left over. From the second epoch on
the whole corpus is permuted, as without streaming. So the order is a function of the seed, the position and
the number of tokens, and not of how fast the text was prepared; any position can be asked for again.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from hotloop.core.errors import EnvironmentFailed, HotloopError, UsageError
from hotloop.data.cache import Wanted, prepare_wanted
from hotloop.data.growing import Growing
from hotloop.data.loader import PlainRows, RowLoader, Rows
from hotloop.data.manifest import Split
from hotloop.data.order import EpochOrder, permuted
from hotloop.data.pool import end_with_parent, kill_processes
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
    """`prepare_text` in a process of its own, for as long as the training needs it."""

    def __init__(self, wanted: Wanted, path: Path) -> None:
        """Raises `EnvironmentFailed` when no process can be started."""
        self._process = ProcessPoolExecutor(
            1, get_context("spawn"), end_with_parent, (os.getpid(),)
        )
        try:
            self._done = self._process.submit(prepare_wanted, wanted, path)
        except OSError as error:
            raise EnvironmentFailed(f"cannot start a process: {error.strerror}") from error

    def check(self) -> None:
        """Raises the error that the preparation ended with."""
        try:
            self._done.result(timeout=0)
        except TimeoutError:
            pass
        except BrokenProcessPool as error:
            raise EnvironmentFailed(
                "preparing the text failed: its process was killed",
                do="run the same command again: it continues from there",
            ) from error
        except HotloopError as error:
            raise type(error)(
                f"preparing the text failed: {error.what}", where=error.where, do=error.do
            ) from error

    def close(self) -> None:
        """End it if it is still at work: what is finished is kept, and the next run continues from there."""
        kill_processes(self._process)
