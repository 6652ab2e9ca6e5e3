"""Batches of documents of similar length, one to a row: never more slots than the budget.

The batch is the unit: bucket j of width W has `budget // W` rows, and an epoch is all batches of all
buckets, permuted. All ranks know every batch from its number, so they take equally many steps, and
nobody has to be asked how many targets a step has. Every batch of a bucket has the same shape; the last
one is filled up with empty rows.
"""

from __future__ import annotations

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.batch import Batch
from hotloop.data.order import EpochOrder, Order
from hotloop.data.packing import read_pieces
from hotloop.data.piece_index import PieceIndex
from hotloop.data.stream import TokenStream


class BucketLoader:
    """Positions count as if every batch had `microbatch` sequences of `context` tokens: that is its budget."""

    def __init__(
        self,
        stream: TokenStream,
        index: PieceIndex,
        widths: tuple[int, ...],
        *,
        microbatch: int,
        order: Order,
        seed: int,
    ) -> None:
        """`index` is `bucket_index` of these widths. Raises `UsageError` for a split without a target."""
        self.unit = microbatch
        self._stream = stream
        self._index = index
        self._widths = widths
        self._begins = index.begins.astype(np.int64)
        sizes = np.diff(self._begins)
        self._rows = [microbatch * widths[-1] // width for width in widths]
        batches = [-(-int(size) // rows) for size, rows in zip(sizes, self._rows)]
        self._edges = np.cumsum(batches)
        self.num_batches = int(self._edges[-1])
        if not self.num_batches:
            raise UsageError(
                f"the {stream.split} text holds no document with two tokens",
                where=stream.where,
                do="give more text",
            )
        self.num_windows = self.num_batches * microbatch
        self._batches = EpochOrder(self.num_batches, order, seed)
        self._pieces = [
            EpochOrder(max(int(size), 1), order, seed + bucket) for bucket, size in enumerate(sizes)
        ]

    def batch(self, position: int, num_windows: int) -> Batch:
        """The batch at `position`. `num_windows` is `unit`, and `position` a multiple of it."""
        if num_windows != self.unit or position % self.unit or position < 0:
            raise ValueError(
                f"batches of {self.unit} sequences, not {num_windows} from {position} on"
            )
        width, rows, pieces = self._chosen(position // self.unit)
        return read_pieces(
            self._stream,
            self._index.starts[pieces].astype(np.int64),
            self._index.slots[pieces].astype(np.int64),
            np.arange(len(pieces)) * width,
            shape=(rows, width),
            with_documents=False,  # one document to a row: causal attention keeps it from the filler
        )

    def count_targets(self, position: int, num_windows: int) -> int:
        """Targets of the batches from `position` on, without reading tokens."""
        first = position // self.unit
        return sum(
            int(self._index.slots[self._chosen(first + i)[2]].sum(dtype=np.int64))
            for i in range(num_windows // self.unit)
        )

    def _chosen(self, number: int) -> tuple[int, int, np.ndarray]:
        """Width, rows and pieces of a batch, by its number since the start of training."""
        epoch = number // self.num_batches
        at = int(self._batches.run(number, 1)[0])
        bucket = int(np.searchsorted(self._edges, at, side="right"))
        inside = at - (int(self._edges[bucket - 1]) if bucket else 0)
        size = int(self._begins[bucket + 1] - self._begins[bucket])
        rows = self._rows[bucket]
        first = inside * rows
        places = self._pieces[bucket].run(epoch * size + first, min(rows, size - first))
        return self._widths[bucket], rows, self._begins[bucket] + places
