"""Shards are mapped when they are used, without an open file each."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from hotloop.core.errors import UsageError
from hotloop.data.manifest import Shard
from hotloop.data.stream import ShardFile, TokenStream


def shard(directory: Path, number: int, tokens: int = 10) -> ShardFile:
    ids = np.arange(number * tokens, (number + 1) * tokens).astype("<u2")
    path = directory / f"train-{number:05d}.bin"
    path.write_bytes(ids.tobytes())
    path.with_suffix(".docs").write_bytes(np.array([tokens], "<u8").tobytes())
    described = Shard(path.name, f"{path.stem}.docs", "train", tokens, 1, "", "")
    return ShardFile(described, directory, np.dtype("<u2"))


def test_more_shards_than_file_descriptors_can_be_mapped(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shards = [shard(tmp_path, n) for n in range(400)]
    stream = TokenStream(shards, vocabulary_size=10_000, split="train", where="here")
    taken = max(
        int(each.name) for each in Path("/dev/fd").iterdir()
    )  # other tests may have left some open
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 100, hard))
    try:
        starts = np.arange(0, 3990, 5)
        assert np.array_equal(stream.read(starts, 10), starts[:, None] + np.arange(10))
        assert stream.document_starts(np.array([0]), 4000).sum() == 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_opening_maps_nothing_and_a_replaced_shard_is_noticed(tmp_path: Path) -> None:
    first, second = shard(tmp_path, 0), shard(tmp_path, 1)
    stream = TokenStream([first, second], vocabulary_size=100, split="train", where="here")
    assert stream.read(np.array([0]), 5).tolist() == [[0, 1, 2, 3, 4]]
    new = tmp_path / "new"
    new.write_bytes(np.zeros(10, "<u2").tobytes())
    new.rename(tmp_path / "train-00001.bin")
    (tmp_path / "train-00000.bin").unlink()
    assert stream.read(np.array([5]), 5).tolist() == [[5, 6, 7, 8, 9]]  # mapped: it stays
    with pytest.raises(UsageError, match="written again while it was in use") as caught:
        stream.read(np.array([12]), 5)
    assert caught.value.where == str(tmp_path / "train-00001.bin")


def test_mapped_ids_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        shard(tmp_path, 0).ids[0] = 7
