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
    """For rows of `context` tokens. Fractions are of all slots, but for the cut documents."""

    context: int
    pad_waste: float
    """One document to a row."""
    bucket_waste: float
    """`layout: bucket`."""
    pack_waste: float
    """`layout: pack`."""
    cut_documents: float
    """Fraction of documents that plain concatenation cuts, though they are no longer than a row."""
    long_tokens: float
    """Fraction of tokens in documents longer than a row, which every layout cuts."""
    recommended: str
    """`concatenate`, `pack` or `bucket`."""
    why: str


def length_counts(stream: TokenStream) -> tuple[np.ndarray, np.ndarray]:
    """int64 twice: the lengths of documents that there are, ascending, and how many have each."""
    lengths = counts = np.empty(0, np.int64)
    for shard in range(stream.num_shards):
        _, ends = stream.documents_of_shard(shard)
        previous = 0
        for first in range(0, len(ends), _AT_ONCE):
            block = ends[first : first + _AT_ONCE].astype(np.int64)
            found, times = np.unique(np.diff(block, prepend=previous), return_counts=True)
            lengths, inverse = np.unique(np.concatenate((lengths, found)), return_inverse=True)
            counts = np.bincount(inverse, np.concatenate((counts, times))).astype(np.int64)
            previous = int(block[-1])
    return lengths, counts


def estimate_layouts(
    lengths: np.ndarray, counts: np.ndarray, context: int
) -> LayoutEstimate | None:
    """From `length_counts`. `None` for a corpus without a target."""
    weights = counts
    slots = lengths - 1
    known = slots > 0
    slots, weights = slots[known], weights[known]
    if not len(slots):
        return None
    full, rest = slots // context, slots % context
    total = float((slots * weights).sum())
    rows = full + (rest > 0)
    pad = 1 - total / float((rows * weights).sum() * context)
    widths = np.array(bucket_widths(context))
    filled = full * context + np.where(
        rest > 0, widths[np.searchsorted(widths, np.maximum(rest, 1))], 0
    )
    bucket = 1 - total / float((filled * weights).sum())
    short = slots <= context
    cut = np.where(short, (slots - 1) / context, 0.0)
    long_tokens = float((slots * weights)[~short].sum()) / total
    cut_documents = float((cut * weights).sum() / weights.sum())
    estimate = (pad, bucket, _packed_waste(slots, weights, context), cut_documents, long_tokens)
    return LayoutEstimate(context, *estimate, *_recommended(*estimate))


def layout_lines(stream: TokenStream, context: int = 1024) -> list[str]:
    """The estimate in words, for a terminal."""
    found = estimate_layouts(*length_counts(stream), context)
    if found is None:
        return []
    return [
        f"rows of {context} would hold filler: pad {_percent(found.pad_waste)}, "
        f"bucket {_percent(found.bucket_waste)}, pack {_percent(found.pack_waste)} "
        "(packing: estimated)",
        f"concatenated, about {_percent(found.cut_documents)} of the documents are cut that would fit a row",
        f"recommended: `data.layout: {found.recommended}`: {found.why}",
    ]


def _recommended(
    pad: float, bucket: float, pack: float, cut: float, long_tokens: float
) -> tuple[str, str]:
    if cut < 0.05:
        return "concatenate", "hardly a document that fits a row is cut, and no slot is lost"
    if long_tokens > 0.9:
        return (
            "concatenate",
            "nearly all tokens are in documents longer than a row, cut in any layout",
        )
    if pack <= bucket + 0.02:
        return "pack", "whole documents side by side, with the least filler"
    return "bucket", "packing would leave more filler"


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


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
