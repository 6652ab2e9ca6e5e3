"""Rows of whole documents: nothing lost, nothing twice, every row full enough and with a target.

Token k of the streams has id k + 1: 0 is the filler's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.data import packing, piece_index
from hotloop.data.loader import IGNORED_TARGET, Loader, PlainRows
from hotloop.data.packing import BucketLoader, PackedRows
from hotloop.data.piece_index import best_fit, bucket_index, bucket_widths, packed_index, pieces_of
from token_streams import token_stream

LENGTHS = st.lists(
    st.lists(st.one_of(st.integers(1, 12), st.integers(1, 90)), min_size=1, max_size=40),
    min_size=1,
    max_size=4,
)
SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


pytestmark = pytest.mark.usefixtures("own_cache")


def name_of(lengths: list[list[int]]) -> str:
    return repr(lengths)


def every_target(lengths: list[list[int]]) -> list[int]:
    """Ids of all tokens but the first of each document: what must be learned, once."""
    flat = [n for shard in lengths for n in shard]
    ends = np.cumsum(flat)
    return [t + 1 for end, n in zip(ends.tolist(), flat) for t in range(end - n + 1, end)]


@SETTINGS
@given(LENGTHS, st.integers(1, 40))
def test_packed_rows_hold_every_target_once_and_none_is_empty(
    lengths: list[list[int]], context: int
) -> None:
    wanted = every_target(lengths)
    tokens = token_stream(*lengths, first_id=1)
    index = packed_index(tokens, context, content=name_of(lengths))
    if not wanted:
        assert index.num_groups == 0
        return
    rows = PackedRows(tokens, index, context=context, with_documents=True)
    read = rows.read(np.arange(rows.num_rows))
    counts = read.targets != IGNORED_TARGET
    assert sorted(read.targets[counts].tolist()) == wanted
    assert np.array_equal(read.tokens[counts] + 1, read.targets[counts])
    assert counts.any(axis=1).all()
    assert read.num_targets == counts.sum() == rows.count_targets(np.arange(rows.num_rows))
    # Whatever is not preceded by its own document's token begins something of its own.
    assert read.document_starts is not None
    follows = np.zeros_like(counts)
    follows[:, 1:] = (read.tokens[:, 1:] == read.tokens[:, :-1] + 1) & counts[:, :-1]
    own_first = np.isin(read.tokens, [t for t in range(1, len(tokens) + 1) if t not in wanted])
    assert not read.document_starts[counts & follows & ~own_first].any()
    assert read.document_starts[counts & ~follows].all()
    assert read.document_starts[counts & own_first].all()


@SETTINGS
@given(st.lists(st.integers(1, 30), min_size=1, max_size=200))
def test_best_fit_never_overfills_and_wastes_less_than_half(sizes: list[int]) -> None:
    items = np.array(sizes)
    rows = best_fit(items, 30)
    filled = np.bincount(rows, weights=items)
    assert filled.max() <= 30
    assert filled.min() > 0
    assert len(filled) < 2 or np.sort(filled)[:2].sum() > 30  # else two rows would be one
    firsts = [int(np.flatnonzero(rows == row)[0]) for row in range(len(filled))]
    assert firsts == sorted(firsts)


def test_long_document_is_cut_where_rows_end_and_loses_no_target() -> None:
    starts, slots = pieces_of(np.array([3, 26, 27], "<u8"), 0, 10)
    assert list(zip(starts.tolist(), slots.tolist())) == [(0, 2), (3, 10), (13, 10), (23, 2)]


def test_index_is_made_once_and_again_when_it_is_damaged(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [[5, 7, 3, 9, 2, 30]]
    tokens = token_stream(*lengths, first_id=1)
    first = packed_index(tokens, 10, content="c")
    with monkeypatch.context() as patch:
        patch.setattr(piece_index, "best_fit", None)
        again = packed_index(tokens, 10, content="c")
    for name in ("begins", "starts", "slots"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    starts = first.starts.copy()
    (directory,) = (own_cache / "pieces").iterdir()
    file = directory / "starts"
    file.write_bytes(bytes(file.stat().st_size))
    assert np.array_equal(packed_index(tokens, 10, content="c").starts, starts)
    packed_index(tokens, 10, content="other")
    assert len(list((own_cache / "pieces").iterdir())) == 2


@pytest.mark.parametrize("is_damaged", [False, True])
def test_index_that_another_process_finished_meanwhile_is_left_where_it_is(
    own_cache: Path, is_damaged: bool
) -> None:
    tokens = token_stream([5, 7, 3, 9, 2, 30], first_id=1)
    if is_damaged:
        packed_index(tokens, 10, content="c")
        (directory,) = (own_cache / "pieces").iterdir()
        (directory / "slots").write_bytes(b"")
    finished: list[int] = []

    def number() -> int:
        (directory,) = (own_cache / "pieces").glob("[!.]*")
        return directory.stat().st_ino

    def faster(*_: object) -> None:
        packed_index(tokens, 10, content="c")
        finished.append(number())

    packed_index(tokens, 10, content="c", progress=faster)
    assert finished == [number()]


def test_blocks_bound_what_is_packed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [[4] * 10, [4] * 3]
    whole = packed_index(token_stream(*lengths, first_id=1), 6, content="a")
    assert whole.num_groups == 7  # two of 3 slots to a row, and shards are not packed together
    monkeypatch.setattr(piece_index, "_BLOCK", 3)
    cut = packed_index(token_stream(*lengths, first_id=1), 6, content="a")
    assert cut.num_groups == 2 + 2 + 2 + 1 + 2
    assert cut.slots.sum() == whole.slots.sum() == 39


def bucket_loader(
    lengths: list[list[int]], context: int, microbatch: int, *, seed: int = 0
) -> BucketLoader:
    tokens, widths = token_stream(*lengths, first_id=1), bucket_widths(context)
    index = bucket_index(tokens, widths, content=name_of(lengths))
    return BucketLoader(tokens, index, widths, microbatch=microbatch, order="shuffled", seed=seed)


@SETTINGS
@given(LENGTHS, st.integers(1, 40), st.integers(1, 5), st.integers(0, 3))
def test_bucket_batches_keep_the_budget_and_give_every_target_once_an_epoch(
    lengths: list[list[int]], context: int, microbatch: int, epoch: int
) -> None:
    wanted = every_target(lengths)
    if not wanted:
        return
    loader = bucket_loader(lengths, context, microbatch)
    found: list[int] = []
    for number in range(epoch * loader.num_batches, (epoch + 1) * loader.num_batches):
        batch = loader.batch(number * microbatch, microbatch)
        assert batch.tokens.size <= microbatch * context
        counts = batch.targets != IGNORED_TARGET
        assert 0 < batch.num_targets == counts.sum()
        assert batch.num_targets == loader.count_targets(number * microbatch, microbatch)
        assert np.array_equal(batch.tokens[counts] + 1, batch.targets[counts])
        found += batch.targets[counts].tolist()
    assert sorted(found) == wanted
    whole = loader.count_targets(epoch * loader.num_sequences, loader.num_sequences)
    assert whole == len(wanted)


def test_bucket_batches_of_one_width_have_one_shape_and_little_filler() -> None:
    lengths = [np.random.default_rng(0).integers(2, 100, 2000).tolist()]
    loader = bucket_loader(lengths, 96, 8)
    shapes: dict[int, int] = {}
    filler = slots = 0
    for number in range(loader.num_batches):
        batch = loader.batch(number * 8, 8)
        assert shapes.setdefault(batch.tokens.shape[1], len(batch.tokens)) == len(batch.tokens)
        filler += batch.tokens.size - batch.num_targets
        slots += batch.tokens.size
    assert set(shapes) <= set(bucket_widths(96))
    assert filler / slots < 0.2 < 1 - np.mean(np.minimum(lengths[0], 96)) / 96


def test_bucket_batches_are_a_pure_function_of_their_number() -> None:
    lengths = [np.random.default_rng(1).integers(2, 60, 500).tolist()]
    straight = bucket_loader(lengths, 32, 4)
    first = [straight.batch(n * 4, 4).tokens for n in range(3 * straight.num_batches)]
    jumping = bucket_loader(lengths, 32, 4)
    for n in np.random.default_rng(0).permutation(len(first)).tolist():
        assert np.array_equal(jumping.batch(n * 4, 4).tokens, first[n])
    with pytest.raises(ValueError, match="batches of 4 sequences"):
        straight.batch(2, 4)
    with pytest.raises(ValueError, match="batches of 4 sequences"):
        straight.batch(0, 1)


@SETTINGS
@given(LENGTHS, st.integers(1, 20))
def test_plain_rows_within_documents_predict_no_first_token(
    lengths: list[list[int]], context: int
) -> None:
    tokens = token_stream(*lengths, first_id=1)
    if len(tokens) <= context:
        return
    rows = PlainRows(tokens, context=context, within_documents=True)
    read = rows.read(np.arange(rows.num_rows))
    firsts = np.cumsum([0, *(n for shard in lengths for n in shard)])[:-1] + 1
    is_first = np.isin(read.tokens + 1, firsts)
    kept = is_first.all(axis=1)  # empty documents alone: a row without a target is worse
    ignored = read.targets == IGNORED_TARGET
    assert np.array_equal(ignored, is_first & ~kept[:, None])
    assert not ignored.all(axis=1).any()
    assert read.num_targets == (~ignored).sum() == rows.count_targets(np.arange(rows.num_rows))


def test_copying_pieces_and_looking_tokens_up_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = [np.random.default_rng(3).integers(1, 60, 50).tolist() for _ in range(3)]
    tokens = token_stream(*lengths, first_id=1)
    index = packed_index(tokens, 32, content="y")
    rows = PackedRows(tokens, index, context=32, with_documents=True)
    read = []
    for least in (0, 10**9):
        monkeypatch.setattr(packing, "_LONG", least)
        read.append(rows.read(np.arange(rows.num_rows)))
    for name in ("tokens", "targets", "document_starts"):
        assert np.array_equal(getattr(read[0], name), getattr(read[1], name))


def test_packed_batches_do_not_depend_on_how_they_are_split() -> None:
    lengths = [np.random.default_rng(2).integers(2, 60, 700).tolist()]
    tokens = token_stream(*lengths, first_id=1)
    rows = PackedRows(
        tokens, packed_index(tokens, 32, content="x"), context=32, with_documents=True
    )
    loader = Loader(rows, order="shuffled", seed=4)
    whole = loader.batch(rows.num_rows - 50, 100)
    parts = [loader.batch(rows.num_rows - 50 + at, 5) for at in range(0, 100, 5)]
    for name in ("tokens", "targets", "document_starts"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(getattr(whole, name), joined)
    assert loader.count_targets(rows.num_rows - 50, 100) == whole.num_targets
