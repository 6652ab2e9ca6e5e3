"""Shards out of arrays, without files, for streams of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class MappedShard:
    """A shard whose arrays are there."""

    file: str
    ids: np.ndarray
    document_ends: np.ndarray

    @property
    def num_tokens(self) -> int:
        return len(self.ids)
