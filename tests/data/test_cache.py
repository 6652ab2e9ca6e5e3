"""Prepared on first use, kept after."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.core.cache import cache_directory
from hotloop.core.errors import UsageError
from hotloop.data import prepare
from hotloop.data.prepare import ensure_prepared, prepare_text
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import ReadOptions
from hotloop.data.spec import Spec
from hotloop.data.tokenizer import byte_tokenizer

pytestmark = pytest.mark.usefixtures("own_cache")


def test_second_use_prepares_nothing(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_prepared(Spec((str(corpus),), "train:300"))
    assert first.is_relative_to(cache_directory())
    monkeypatch.setattr(prepare, "prepare_text", None)
    assert ensure_prepared(Spec((str(corpus),), "train:300")) == first
    open_prepared(first)


def test_changed_source_and_other_tokenizer_are_prepared_apart(corpus: Path) -> None:
    paths = {
        ensure_prepared(Spec((str(corpus),))),
        ensure_prepared(Spec((str(corpus),), "train:300")),
    }
    assert ensure_prepared(Spec((str(corpus),))) in paths
    (corpus / "new.py").write_text("new")
    paths.add(ensure_prepared(Spec((str(corpus),))))
    paths.add(ensure_prepared(Spec((str(corpus / "file_000.py"),))))
    assert len(paths) == 4


def test_damaged_copy_is_prepared_again(corpus: Path) -> None:
    path = ensure_prepared(Spec((str(corpus),)))
    (path / "train-00000.bin").write_bytes(b"")
    assert ensure_prepared(Spec((str(corpus),))) == path
    open_prepared(path)


def test_missing_source_is_refused_and_nothing_is_made(own_cache: Path) -> None:
    with pytest.raises(UsageError, match="no such source"):
        ensure_prepared(Spec(("nowhere",)))
    assert not own_cache.exists()


def test_cache_is_the_platforms_unless_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTLOOP_CACHE")
    assert cache_directory().name == "hotloop"


def test_everything_that_changes_the_ids_is_part_of_the_place(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "t" * n, "body": "b" * n}) for n in range(5, 60)]
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("\n".join(lines))
    first, second = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(byte_tokenizer().to_json())
    plain = Spec((first,), str(tokenizer))
    wanted = [
        plain,
        replace(plain, reading=ReadOptions(text_field="body")),
        replace(plain, reading=ReadOptions(min_chars=20)),
        replace(plain, end_of_text="!"),
        replace(plain, sources=(first, second)),
        replace(plain, sources=(second, first)),
    ]
    paths = [ensure_prepared(each) for each in wanted]
    assert len(set(paths)) == len(wanted)
    assert [ensure_prepared(each) for each in wanted] == paths
    for each, path in zip(wanted, paths):
        direct = prepare_text(each, tmp_path / "out", force=True).manifest
        assert [shard.sha256 for shard in open_prepared(path).manifest.shards] == [
            shard.sha256 for shard in direct.shards
        ]


def test_altered_copy_is_prepared_again_where_checksums_are_asked_for(corpus: Path) -> None:
    said: list[str] = []
    wanted = Spec((str(corpus),))
    path = ensure_prepared(wanted, verify="checksum", warn=said.append)
    assert not said
    shard = path / "train-00000.bin"
    whole = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    ensure_prepared(wanted, warn=said.append)
    assert not said
    assert ensure_prepared(wanted, verify="checksum", warn=said.append) == path
    assert len(said) == 1
    assert "prepared again" in said[0]
    assert str(shard) in said[0]
    assert shard.read_bytes() == whole


def test_bad_limit_is_refused_before_preparing_and_when_all_is_there(
    corpus: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", "5XB")
    with pytest.raises(UsageError, match="no size"):
        ensure_prepared(Spec((str(corpus),)))
    assert not own_cache.exists()
    monkeypatch.delenv("HOTLOOP_CACHE_LIMIT")
    ensure_prepared(Spec((str(corpus),)))
    monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", "5XB")
    with pytest.raises(UsageError, match="no size"):
        ensure_prepared(Spec((str(corpus),)))
