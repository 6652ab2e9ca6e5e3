"""The arrays of one microbatch of text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IGNORED_TARGET = -100
"""A target that takes no part in the loss: what fills a row up, and the start of another document."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B sequences of T tokens. The arrays belong to whoever asked for the batch."""

    tokens: np.ndarray
    """int64 (B, T), contiguous."""
    targets: np.ndarray
    """int64 (B, T), contiguous: the token after each token, or `IGNORED_TARGET`."""
    num_targets: int
    """Targets that count in the loss."""
    document_starts: np.ndarray | None = None
    """bool (B, T): the first tokens of documents. `None` without document masks."""
