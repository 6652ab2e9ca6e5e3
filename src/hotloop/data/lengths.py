"""Estimates of the filler in each layout of rows, from the lengths of all documents of a corpus.

Padding and buckets are counted, but for the last batch of a bucket. Packing is tried on a sample, and how
many documents concatenation cuts is what to expect of their lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotloop.data.piece_index import best_fit, bucket_widths
from hotloop.data.stream import TokenStream

_AT_ONCE = 1 << 20
"""Documents looked at together: bounds the memory."""
_SIMULATED = 4096
"""Documents packed to see what packing leaves over."""


@dataclass(frozen=True, slots=True)
class LayoutEstimate:
    """Fractions of all slots that hold filler, but for the last two."""

    pad_waste: float
    """One document to a row."""
    bucket_waste: float
    pack_waste: float
    cut_documents: float
    """Fraction of documents that plain concatenation cuts, though they are no longer than a row."""
    long_tokens: float
    """Fraction of tokens in documents longer than a row, which every layout cuts."""

    def recommended(self) -> tuple[str, str]:
        """A value of `data.layout`, and why."""
        if self.cut_documents < 0.05:
            return "concatenate", "hardly a document that fits a row is cut, and no slot is lost"
        if self.long_tokens > 0.9:
            return "concatenate", "nearly all tokens are in documents that every layout cuts"
        if self.pack_waste <= self.bucket_waste + 0.02:
            return "pack", "whole documents side by side, with the least filler"
        return "bucket", "packing would leave more filler"


def length_counts(stream: TokenStream) -> tuple[np.ndarray, np.ndarray]:
    """int64 twice: the lengths of documents that there are, ascending, and how many have each."""
    lengths = counts = np.empty(0, np.int64)
    for _, previous, ends in stream.document_blocks(_AT_ONCE):
        found, times = np.unique(np.diff(ends, prepend=previous), return_counts=True)
        lengths, inverse = np.unique(np.concatenate((lengths, found)), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate((counts, times))).astype(np.int64)
    return lengths, counts


def estimate_layouts(
    lengths: np.ndarray, counts: np.ndarray, context: int
) -> LayoutEstimate | None:
    """For rows of `context` tokens, from `length_counts`. `None` for a corpus without a target."""
    known = lengths > 1
    slots, counts = lengths[known] - 1, counts[known]
    if not len(slots):
        return None
    full, rest = slots // context, slots % context
    total = float((slots * counts).sum())
    widths = np.array(bucket_widths(context))
    last_rows = np.where(rest > 0, widths[np.searchsorted(widths, np.maximum(rest, 1))], 0)
    long = slots > context
    return LayoutEstimate(
        pad_waste=1 - total / float(((full + (rest > 0)) * counts).sum() * context),
        bucket_waste=1 - total / float(((full * context + last_rows) * counts).sum()),
        pack_waste=_packed_waste(slots, counts, context),
        cut_documents=float((np.where(long, 0.0, (slots - 1) / context) * counts).sum())
        / int(counts.sum()),
        long_tokens=float((slots * counts)[long].sum()) / total,
    )


def layout_lines(stream: TokenStream, context: int = 1024) -> list[str]:
    """The estimate in words, for a terminal."""
    found = estimate_layouts(*length_counts(stream), context)
    if found is None:
        return []
    layout, why = found.recommended()
    return [
        f"rows of {context} would hold filler: pad {found.pad_waste:.1%}, "
        f"bucket {found.bucket_waste:.1%}, pack {found.pack_waste:.1%} (packing: estimated)",
        f"concatenated, about {found.cut_documents:.1%} of the documents are cut that would fit a row",
        f"recommended: `data.layout: {layout}`: {why}",
    ]


def _packed_waste(slots: np.ndarray, weights: np.ndarray, context: int) -> float:
    """Fraction of filler when documents drawn evenly from all lengths are packed."""
    at = (np.arange(_SIMULATED) + 0.5) / _SIMULATED * weights.sum()
    drawn = slots[np.searchsorted(np.cumsum(weights), at)]
    # A document of many rows leaves one tail, as every other: its full rows are counted, not packed.
    full = int((drawn // context).sum())
    tails = drawn % context
    tails = tails[tails > 0]
    rows = full + (int(best_fit(tails, context).max()) + 1 if len(tails) else 0)
    return 1 - float(drawn.sum()) / (rows * context)
