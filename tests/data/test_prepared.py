"""What was not written by `hotloop prepare`, or not all of it, is refused with its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.data.prepared import Prepared, open_prepared
from hotloop.data.tokenizer import train_tokenizer


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0\0")


@pytest.mark.parametrize("pattern", ["train-00001.bin", "train-*.docs", "validation-*.bin"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "its checksum"),
        (cut, "bytes instead of"),
        (lengthen, "damaged shard"),
        (Path.unlink, "No such file"),
    ],
)
def test_damaged_shard_is_refused_with_its_name(
    prepared: Prepared, pattern: str, damage: Callable[[Path], None], message: str
) -> None:
    path = min(prepared.path.glob(pattern))
    damage(path)
    with pytest.raises(UsageError, match=message) as caught:
        open_prepared(prepared.path)
    assert caught.value.where == str(path)
    assert caught.value.do is not None
    if damage is flip:
        open_prepared(prepared.path, verify="size")
    else:
        with pytest.raises(UsageError, match=message):
            open_prepared(prepared.path, verify="size")


def test_shards_from_another_tokenizer_are_refused(prepared: Prepared) -> None:
    train_tokenizer(["some other text"], 300).save(prepared.tokenizer_path)
    with pytest.raises(UsageError, match="from another tokenizer") as caught:
        open_prepared(prepared.path)
    assert caught.value.where == str(prepared.tokenizer_path)


def test_missing_pieces_are_refused_with_their_names(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such prepared directory"):
        open_prepared(tmp_path / "nowhere")
    prepared.tokenizer_path.unlink()
    with pytest.raises(UsageError, match="no such tokenizer file"):
        open_prepared(prepared.path)
    (prepared.path / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"no manifest\.json"):
        open_prepared(prepared.path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "hotloop.prepared/99"),
        ("id_type", "uint32"),
        ("id_type", "float64"),
        ("end_of_text", 257),
        ("train", {"tokens": 3, "documents": 1, "shards": 1}),
        ("jobs", [{"file": "../../etc/passwd"}]),
    ],
)
def test_inconsistent_manifest_is_refused(prepared: Prepared, key: str, value: object) -> None:
    path = prepared.path / "manifest.json"
    values = json.loads(path.read_text())
    values[key] = value
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError) as caught:
        open_prepared(prepared.path)
    assert caught.value.where == str(path)


def test_shard_outside_the_directory_is_refused(prepared: Prepared) -> None:
    path = prepared.path / "manifest.json"
    path.write_text(path.read_text().replace("train-00000.bin", "../train-00000.bin"))
    with pytest.raises(UsageError, match="not the name of a shard"):
        open_prepared(prepared.path)
