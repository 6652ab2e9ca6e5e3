"""The rows of a token embedding that the examples read, trained in place of the whole table.

AdamW and SGD leave a row alone that never had a gradient, so that the result is the same, to the bit. But each
step would clear the gradients of all rows, take their norm and update them: of a few thousand texts most of a
table of 30,000 rows is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.finetune.tokens import Tokens


@dataclass(frozen=True, slots=True)
class UsedRows:
    embedding: nn.Embedding
    ids: np.ndarray
    """Token id of each row that is kept, ascending."""
    table: Tensor
    """The whole one."""

    def renumbered(self, tokens: Tokens) -> Tokens:
        return [np.searchsorted(self.ids, each).astype(np.int32) for each in tokens]

    def token_ids(self, tokens: Tokens) -> Tokens:
        return [self.ids[each].astype(np.int32) for each in tokens]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within it the model has its whole table, with the rows as they were trained."""
        own = self.embedding.weight
        self.table[torch.from_numpy(self.ids)] = own.detach().cpu()
        self.embedding.weight = nn.Parameter(self.table.to(own.device))
        try:
            yield
        finally:
            self.embedding.weight = own


def keep_used_rows(embedding: nn.Embedding, tokens: Tokens) -> UsedRows:
    """Shrink `embedding` to the rows of `tokens`, which then must be `renumbered`."""
    ids = np.unique(np.concatenate(tokens))
    used = UsedRows(embedding, ids, embedding.weight.detach())
    embedding.weight = nn.Parameter(used.table[torch.from_numpy(ids)])
    # Read by the gradient, which is none for the row of padding.
    (at,) = np.nonzero(ids == embedding.padding_idx)
    embedding.padding_idx = int(at[0]) if len(at) else None
    return used
