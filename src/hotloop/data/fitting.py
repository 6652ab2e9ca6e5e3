"""Documents cut to at most one row, and put together so that rows are full. Pure functions of lengths."""

from __future__ import annotations

import numpy as np


def pieces_of(ends: np.ndarray, previous_end: int, context: int) -> tuple[np.ndarray, np.ndarray]:
    """First token and slots (int64 each) of the pieces of documents in a row, in order.

    `ends` (uint64) and `previous_end` are tokens of the shard. A document of n tokens has n - 1 targets
    and takes as many slots. A longer one than a row is cut where rows end; the pieces share one token,
    so that no target is lost. One without a target has no piece.
    """
    ends = ends.astype(np.int64)
    starts = np.concatenate((np.array([previous_end], np.int64), ends[:-1]))
    slots = ends - starts - 1
    counts = -(-slots // context)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    offset = (np.arange(int(counts.sum()), dtype=np.int64) - first) * context
    return np.repeat(starts, counts) + offset, np.minimum(
        np.repeat(slots, counts) - offset, context
    )


def best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """The row (int64, from 0) of each item: best-fit decreasing.

    The largest item first, each into the fullest row that still has room. Rows are numbered by the
    first item (not the largest) that they hold.
    """
    row_of = [0] * len(sizes)
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # bit r: some row has r slots left
    num_rows = 0
    order = np.argsort(-sizes, kind="stable")
    for item, size in zip(order.tolist(), sizes[order].tolist()):
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            row, room = num_rows, capacity
            num_rows += 1
        row_of[item] = row
        left = room - size
        if left:
            by_room[left].append(row)
            rooms |= 1 << left
    found = np.array(row_of, dtype=np.int64)
    firsts = np.full(num_rows, len(sizes), dtype=np.int64)
    np.minimum.at(firsts, found, np.arange(len(sizes)))
    renumbered = np.empty(num_rows, dtype=np.int64)
    renumbered[np.argsort(firsts)] = np.arange(num_rows)
    return renumbered[found]


def bucket_widths(context: int) -> tuple[int, ...]:
    """Row widths of the length buckets, ascending, at most six: every width is a shape to compile."""
    eighth = -(-context // 8)
    return tuple(sorted({min(eighth * n, context) for n in (1, 2, 3, 4, 6, 8)}))
