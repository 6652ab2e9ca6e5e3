"""How the tokens of a split become rows of equal length. Rows are numbered; the order is another matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.batch import IGNORED_TARGET
from hotloop.data.stream import TokenStream


@dataclass(frozen=True, slots=True, eq=False)
class RowsRead:
    """The arrays of a `Batch`, newly allocated."""

    tokens: np.ndarray
    targets: np.ndarray
    num_targets: int
    document_starts: np.ndarray | None


class Rows(Protocol):
    """A split, cut into rows. All methods are pure."""

    @property
    def num_rows(self) -> int: ...

    @property
    def stream(self) -> TokenStream: ...

    def read(self, rows: np.ndarray) -> RowsRead:
        """The rows with these numbers (int64), each with at least one target."""

    def count_targets(self, rows: np.ndarray) -> int:
        """What `read` would give as `num_targets`, without reading tokens."""


def refuse_short(num_tokens: int, context: int, *, split: str, where: str) -> None:
    """Raises `UsageError` for text that is shorter than one window."""
    if num_tokens <= context:
        raise UsageError(
            f"the {split} text holds {num_tokens} tokens, and one window of {context} needs {context + 1}",
            where=where,
            do="give more text, or lower `model.context`",
        )


class PlainRows:
    """Documents in a row, cut every `context` tokens.

    Row w holds tokens `w * context` to `(w + 1) * context` of the stream, so neighbours share one token
    and every token but the first is a target once, up to the end of the last whole row: the up to
    `context - 1` tokens after it are in no row.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        context: int,
        with_documents: bool = False,
        within_documents: bool = False,
    ) -> None:
        """`within_documents` ignores the first tokens of documents as targets: what stands before them
        says nothing of them. Raises `UsageError` for a stream shorter than one row.
        """
        self.stream = stream
        self.num_rows = max(len(stream) - 1, 0) // context
        self._context = context
        self._with_documents = with_documents or within_documents
        self._within = within_documents
        refuse_short(len(stream), context, split=stream.split, where=stream.where)

    def read(self, rows: np.ndarray) -> RowsRead:
        starts = rows * self._context
        ids = self.stream.read_ids(starts, self._context + 1)
        # Widened here, straight into the arrays that are handed out: embeddings and the loss want int64.
        tokens, targets = ids[:, :-1].astype(np.int64), ids[:, 1:].astype(np.int64)
        if not self._with_documents:
            return RowsRead(tokens, targets, targets.size, None)
        firsts = self.stream.document_starts(starts, self._context)
        if not self._within:
            return RowsRead(tokens, targets, targets.size, firsts)
        ignored = self._ignored(starts)
        targets[ignored] = IGNORED_TARGET
        return RowsRead(tokens, targets, targets.size - int(ignored.sum()), firsts)

    def count_targets(self, rows: np.ndarray) -> int:
        total = len(rows) * self._context
        if self._within:
            total -= int(self._ignored(rows * self._context).sum())
        return total

    def _ignored(self, starts: np.ndarray) -> np.ndarray:
        """bool (n, context): targets that are the first token of a document.

        None of a row that would have no target left: it lies in empty documents alone.
        """
        ignored = self.stream.document_starts(starts + 1, self._context)
        ignored[ignored.all(axis=1)] = False
        return ignored
