"""Rows of equal length out of the tokens of a split. They are numbered; `order` orders them."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.batch import IGNORED_TARGET, Batch
from hotloop.data.stream import TokenStream


class Rows(Protocol):
    """A split, cut into rows. All methods are pure."""

    @property
    def num_rows(self) -> int: ...

    @property
    def stream(self) -> TokenStream: ...

    def read(self, rows: np.ndarray) -> Batch:
        """The rows with these numbers (int64), each with at least one target."""

    def count_targets(self, rows: np.ndarray) -> int:
        """The `num_targets` of `read`, without reading tokens."""


def check_length(num_tokens: int, context: int, *, split: str, where: str) -> None:
    """Raises `UsageError` for text that is shorter than one sequence."""
    if num_tokens <= context:
        raise UsageError(
            f"the {split} text holds {num_tokens} tokens, and one sequence of {context} needs {context + 1}",
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
        within_documents: bool = False,
    ) -> None:
        """`within_documents` gives the starts of documents, and ignores their first tokens as targets: what
        stands before them does not predict them. Raises `UsageError` for a stream shorter than one row.
        """
        self.stream = stream
        self.num_rows = max(len(stream) - 1, 0) // context
        self._context = context
        self._within = within_documents
        check_length(len(stream), context, split=stream.split, where=stream.where)

    def read(self, rows: np.ndarray) -> Batch:
        starts = rows * self._context
        ids = self.stream.read(starts, self._context + 1)
        # Widened here, straight into the arrays that are handed out: embeddings and the loss want int64.
        tokens, targets = ids[:, :-1].astype(np.int64), ids[:, 1:].astype(np.int64)
        if not self._within:
            return Batch(tokens, targets, targets.size)
        firsts = self.stream.document_starts(starts, self._context)
        ignored = self._ignored(starts)
        targets[ignored] = IGNORED_TARGET
        return Batch(tokens, targets, targets.size - int(ignored.sum()), firsts)

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
