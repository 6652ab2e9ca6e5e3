"""What one microbatch of text is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B windows of T tokens. The arrays belong to whoever asked for the batch."""

    tokens: np.ndarray
    """int64 (B, T), contiguous."""
    targets: np.ndarray
    """int64 (B, T), contiguous: the token after each token."""
    num_targets: int
    """Targets that count in the loss."""
    position: int
    """Of the loader after this batch, in windows since the start of training."""
    document_starts: np.ndarray | None = None
    """bool (B, T): the first tokens of documents. `None` unless the loader was asked for them."""
