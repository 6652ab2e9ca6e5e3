"""Batches are a pure function of position, and every target is seen once an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.core.errors import UsageError
from hotloop.data.loader import Loader, PlainRows
from hotloop.data.prepared import Prepared
from hotloop.data.stream import TokenStream
from token_streams import token_stream


def test_windows_across_shards_are_whole() -> None:
    tokens = token_stream([3, 4], [2], [1, 10, 5])
    for length in (1, 2, 5, 12, 25):
        starts = np.arange(len(tokens) - length + 1)[::-1]
        assert np.array_equal(tokens.read(starts, length), starts[:, None] + np.arange(length))
    assert tokens.read(np.array([0]), 3).dtype == np.uint32
    with pytest.raises(IndexError):
        tokens.read(np.array([23]), 3)
    with pytest.raises(IndexError):
        tokens.read(np.array([-1]), 3)


def test_document_starts_are_where_documents_start_across_shards() -> None:
    lengths = [[3, 4], [2], [1, 10, 5]]
    tokens = token_stream(*lengths)
    truth = np.zeros(len(tokens), dtype=bool)
    truth[np.cumsum([0, *(n for shard in lengths for n in shard)])[:-1]] = True
    for length in (1, 2, 5, 12, 25):
        starts = np.arange(len(tokens) - length + 1)
        assert np.array_equal(
            tokens.document_starts(starts, length), truth[starts[:, None] + np.arange(length)]
        )


def test_id_outside_the_vocabulary_names_the_shard() -> None:
    tokens = token_stream([3, 4], [2], [1, 10, 5], vocabulary_size=20)
    tokens.read(np.array([15]), 5)
    with pytest.raises(UsageError, match="id 20 at token 11") as caught:
        tokens.read(np.array([3, 16]), 5)
    assert caught.value.where == "train-00002.bin"


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
def test_every_target_is_seen_once_an_epoch(order: str) -> None:
    loader = Loader(PlainRows(token_stream([60, 41]), context=10), order=order, seed=5)  # type: ignore[arg-type]
    assert loader.num_sequences == 10
    for epoch in range(3):
        batches = [loader.batch(epoch * 10 + at, 2) for at in range(0, 10, 2)]
        targets = np.concatenate([batch.targets.ravel() for batch in batches])
        assert np.array_equal(np.sort(targets), np.arange(1, 101))
        assert all(np.array_equal(batch.tokens + 1, batch.targets) for batch in batches)
        assert sum(batch.num_targets for batch in batches) == 100


def test_batch_is_a_pure_function_of_its_position() -> None:
    tokens = token_stream([7001])
    straight = Loader(PlainRows(tokens, context=2), order="shuffled", seed=1)
    first = [straight.batch(position, 8) for position in range(0, 8000, 8)]
    jumping = Loader(PlainRows(tokens, context=2), order="shuffled", seed=1)
    for index in np.random.default_rng(0).permutation(len(first)).tolist():
        again = jumping.batch(index * 8, 8)
        assert np.array_equal(again.tokens, first[index].tokens)
    other = Loader(PlainRows(tokens, context=2), order="shuffled", seed=2)
    assert not np.array_equal(other.indices(0, 100), straight.indices(0, 100))


def test_large_batch_is_its_small_batches() -> None:
    loader = Loader(PlainRows(token_stream([7001]), context=2), order="shuffled", seed=1)
    large = loader.batch(1000, 3000)  # across blocks and the end of an epoch
    small = [loader.batch(position, 10).tokens for position in range(1000, 4000, 10)]
    assert np.array_equal(large.tokens, np.concatenate(small))


def test_sequential_order_is_the_text() -> None:
    loader = Loader(PlainRows(token_stream([50]), context=10), order="sequential", seed=9)
    assert loader.num_sequences == 4
    assert np.array_equal(loader.batch(0, 4).tokens.ravel(), np.arange(40))
    assert np.array_equal(loader.indices(3, 2), [3, 0])


def test_arrays_of_a_batch_are_contiguous_and_belong_to_the_caller() -> None:
    rows = PlainRows(token_stream([50]), context=10, within_documents=True)
    loader = Loader(rows, order="sequential", seed=9)
    batch = loader.batch(0, 2)
    assert batch.tokens.flags.c_contiguous
    assert batch.targets.flags.c_contiguous
    batch.tokens[:] = 0
    assert loader.batch(0, 2).tokens[0, 1] == 1
    assert batch.document_starts is not None
    assert np.argwhere(batch.document_starts).tolist() == [[0, 0]]


def test_documents_are_not_looked_up_unless_asked_for() -> None:
    assert (
        Loader(PlainRows(token_stream([50]), context=10), order="sequential", seed=9)
        .batch(0, 1)
        .document_starts
        is None
    )


def test_text_shorter_than_a_window_is_refused_with_what_to_do() -> None:
    Loader(PlainRows(token_stream([11]), context=10), order="shuffled", seed=0)
    with pytest.raises(
        UsageError, match="holds 10 tokens, and one sequence of 10 needs 11"
    ) as caught:
        Loader(PlainRows(token_stream([10]), context=10), order="shuffled", seed=0)
    assert caught.value.where == "somewhere"
    assert "model.context" in str(caught.value)
    nothing = TokenStream([], vocabulary_size=9, split="validation", where="somewhere")
    with pytest.raises(UsageError, match="validation text holds 0 tokens"):
        Loader(PlainRows(nothing, context=10), order="shuffled", seed=0)


def test_text_smaller_than_a_batch_is_refused_with_what_to_do() -> None:
    loader = Loader(PlainRows(token_stream([50]), context=10), order="shuffled", seed=0)
    with pytest.raises(
        UsageError, match="4 sequences of 10 tokens, and one batch takes 5"
    ) as caught:
        loader.batch(0, 5)
    assert "train.microbatch" in str(caught.value)


def test_prepared_text_is_read_back_through_batches(prepared: Prepared) -> None:
    assert prepared.manifest.train.shards > 3
    rows = PlainRows(prepared.train, context=16, within_documents=True)
    loader = Loader(rows, order="sequential", seed=0)
    batch = loader.batch(0, loader.num_sequences)
    whole = prepared.train.read(np.array([0]), len(prepared.train))[0]
    assert np.array_equal(batch.tokens.ravel(), whole[: batch.tokens.size])
    assert batch.document_starts is not None
    starts = batch.document_starts.ravel()
    assert starts[0]
    assert np.array_equal(starts[1:], batch.tokens.ravel()[:-1] == prepared.manifest.end_of_text)
