"""The estimates are near what the layouts really waste, and the advice follows from them."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.data import piece_index as module
from hotloop.data.piece_index import (
    best_fit,
    bucket_widths,
    estimate_layouts,
    layout_lines,
    length_counts,
    pieces_of,
)
from hotloop.data.stream import TokenStream
from token_streams import MappedShard


def stream_of(lengths: np.ndarray) -> TokenStream:
    """In two shards."""
    shards = []
    for part in np.array_split(lengths, 2):
        ends = np.cumsum(part).astype("<u8")
        ids = np.zeros(int(ends[-1]) if len(ends) else 0, "<u2")
        shards.append(MappedShard("shard", ids, ends))
    return TokenStream(shards, vocabulary_size=9, split="train", where="here")


def test_lengths_are_counted_over_shards_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 7)
    drawn = np.random.default_rng(0).integers(1, 9, 100)
    lengths, counts = length_counts(stream_of(drawn))
    assert np.array_equal(np.repeat(lengths, counts), np.sort(drawn))


@pytest.mark.parametrize(("median", "spread"), [(40, 0.5), (300, 1.0), (300, 0.2), (3000, 1.0)])
def test_estimates_are_near_the_truth(median: int, spread: float) -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(median), spread, 5000).astype(int) + 2
    found = estimate_layouts(*length_counts(stream_of(lengths)), 512)
    assert found is not None
    ends = np.cumsum(lengths)
    _, slots = pieces_of(ends.astype("<u8"), 0, 512)
    pad = 1 - slots.sum() / (len(slots) * 512)
    widths = np.array(bucket_widths(512))
    bucket = 1 - slots.sum() / widths[np.searchsorted(widths, slots)].sum()
    pack = 1 - slots.sum() / ((best_fit(slots, 512).max() + 1) * 512)
    starts = ends - lengths
    short = lengths - 1 <= 512
    cut = (starts // 512 != (ends - 2) // 512) & short
    assert found.pad_waste == pytest.approx(pad)
    assert found.bucket_waste == pytest.approx(bucket)
    assert found.pack_waste == pytest.approx(pack, abs=0.02)
    assert found.cut_documents == pytest.approx(cut.mean(), abs=0.03)
    long_tokens = (lengths - 1)[~short].sum() / (lengths - 1).sum()
    assert found.long_tokens == pytest.approx(long_tokens)


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        (np.full(1000, 20), "concatenate"),  # 19 slots in rows of 512: few are cut
        (np.random.default_rng(0).integers(50, 400, 1000), "pack"),
        (np.full(1000, 350), "bucket"),  # two never fit side by side
        (np.full(100, 100_000), "concatenate"),
    ],
)
def test_advice_follows_from_the_lengths(lengths: np.ndarray, wanted: str) -> None:
    found = estimate_layouts(*length_counts(stream_of(lengths)), 512)
    assert found is not None
    assert found.recommended()[0] == wanted


def test_lines_say_what_is_estimated_and_what_to_set() -> None:
    text = "\n".join(layout_lines(stream_of(np.arange(50, 400)), 512))
    assert "estimated" in text
    assert "`data.layout: pack`" in text
    assert layout_lines(stream_of(np.ones(7, np.int64)), 512) == []  # empty documents alone
