"""Compressed text: the same documents as without, and every kind of damage noticed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions, Report, files
from hotloop.data.sources.documents import UnitReader
from hotloop.data.sources.plan import plan


def _zstd(content: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(content))


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": _zstd,
}
WORDS = random.Random(0).choices(["alpha", "beta", "世界", "gamma\n", "\n\n", "🎉"], k=60_000)
TEXT = " ".join(WORDS)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_those_of_the_plain_file(tmp_path: Path, read, kind: str) -> None:
    records = "".join(
        json.dumps({"text": TEXT[k : k + 5000]}) + "\n" for k in range(0, 50_000, 999)
    )
    table = "text,n\n" + "".join(f'"{TEXT[k : k + 500]}",{k}\n' for k in range(0, 50_000, 999))
    for name, content in (("a.txt", TEXT), ("a.jsonl", records), ("a.csv", table)):
        (tmp_path / name).write_bytes(content.encode())
        (tmp_path / f"{name}.{kind}").write_bytes(KINDS[kind](content.encode()))
        plain = [d.text for d in read(tmp_path / name)[0]]
        packed = [d.text for d in read(tmp_path / f"{name}.{kind}")[0]]
        assert packed == plain
        assert len(plain) > 30


@pytest.mark.parametrize("kind", KINDS)
def test_several_streams_in_one_file_are_all_read(tmp_path: Path, read, kind: str) -> None:
    path = tmp_path / f"a.txt.{kind}"
    path.write_bytes(b"".join(KINDS[kind](part) for part in (b"one ", b"", b"two ", b"three")))
    assert "".join(d.text for d in read(path)[0]) == "one two three"


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_file_is_refused_or_counted(tmp_path: Path, read, kind: str) -> None:
    content = random.Random(1).randbytes(300_000).hex()
    path = tmp_path / f"a.txt.{kind}"
    whole = KINDS[kind](content.encode())
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(
        UsageError, match=f"truncated {kind}, after {len(whole) * 2 // 3:,}"
    ) as error:
        read(path)
    assert error.value.where == str(path)
    found, report = read(path, skip_bad=True)
    assert content.startswith("".join(d.text for d in found))
    assert report.counts["rest of a damaged compressed file"] == 1
    # bz2 gives its first block only when that is complete
    assert found or kind in ("bz2", "xz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["flip", "garbage", "empty"])
def test_damage_is_noticed(tmp_path: Path, read, kind: str, damage: str) -> None:
    packed = bytearray(KINDS[kind](TEXT.encode()))
    if damage == "flip":
        if kind == "zst":
            pytest.skip("written without a checksum")
        packed[len(packed) // 2] ^= 0xFF
    elif damage == "garbage":
        packed += b"and something else"
    else:
        packed.clear()
    path = tmp_path / f"a.txt.{kind}"
    path.write_bytes(packed)
    with pytest.raises(UsageError, match=f"(damaged|truncated) {kind}"):
        read(path)
    assert read(path, skip_bad=True)[1].counts["rest of a damaged compressed file"] == 1


def test_padding_behind_a_stream_is_no_damage(tmp_path: Path, read) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one") + bytes(100_000) + gzip.compress(b" two") + bytes(3))
    assert "".join(d.text for d in read(path)[0]) == "one two"


def test_highly_compressed_text_is_read_in_bounded_blocks(tmp_path: Path) -> None:
    for kind, compress in (("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)):
        path = tmp_path / f"a.txt.{kind}"
        path.write_bytes(compress(bytes(20_000_000)))
        reader = UnitReader(plan([str(path)]).units[0], ReadOptions(), Report())
        with path.open("rb") as file:
            text = files.Decompressed(file, reader)
            sizes = []
            while block := text.read(10_000):
                sizes.append(len(block))
                assert len(text._ready) <= files.TEXT_BYTES
        assert sum(sizes) == 20_000_000
        assert max(sizes) <= 10_000


def test_compressed_file_in_a_tree(tmp_path: Path, read) -> None:
    (tmp_path / "a.py.gz").write_bytes(gzip.compress(b"print()"))
    (tmp_path / "notes.gz").write_bytes(gzip.compress("größe".encode()))
    (tmp_path / "picture.gz").write_bytes(gzip.compress(b"\0\1\2"))
    found, report = read(tmp_path)
    assert [d.text for d in found] == ["print()", "größe"]
    assert report.counts == {"binary": 1}


def test_zst_without_its_package_says_what_to_install(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    (tmp_path / "a.txt.zst").write_bytes(b"x")
    with pytest.raises(UsageError, match="zstandard") as caught:
        read(tmp_path / "a.txt.zst")
    assert caught.value.do == "pip install 'hotloop[zstd]'"
