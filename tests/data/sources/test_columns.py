"""Parquet, Arrow and saved data sets: only the text column, in bounded pieces."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions
from hotloop.data.sources.plan import plan

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"document {n} é世 " * (n % 7) for n in range(500)]


def write(path: Path, table: Any) -> Path:
    """In the format of the suffix, several groups or batches."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=60)
        return path
    new = pa.ipc.new_file if path.suffix == ".feather" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=60)
    return path


@pytest.fixture(params=["a.parquet", "a.feather", "a.arrow"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_texts_are_read_in_order(path: Path, read, kind: Any) -> None:
    column = (
        pa.array(TEXTS).cast(kind)
        if "dict" not in str(kind)
        else pa.array(TEXTS).dictionary_encode()
    )
    write(path, pa.table({"id": range(500), "text": column}))
    found, report = read(path)
    assert [d.text for d in found] == [text for text in TEXTS if text]
    assert report.counts == {"empty": TEXTS.count("")}


def test_units_do_not_change_the_documents(
    path: Path, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, pa.table({"text": TEXTS}))
    whole = read(path)[0]
    monkeypatch.setattr(sys.modules["hotloop.data.sources.plan"], "UNIT_BYTES", 1)
    assert len(plan([str(path)]).units) == 9
    assert read(path)[0] == whole


def test_nested_column(path: Path, read) -> None:
    write(path, pa.table({"id": [1, 2], "doc": [{"text": "a", "n": 1}, {"text": "b", "n": 2}]}))
    assert [d.text for d in read(path, text_field="doc.text")[0]] == ["a", "b"]


def test_missing_column_shows_the_columns(path: Path, read) -> None:
    write(path, pa.table({"id": [1], "body": ["x"]}))
    with pytest.raises(UsageError, match="no column 'text'") as caught:
        read(path)
    assert "body, id" in str(caught.value.do)
    with pytest.raises(UsageError, match="column 'id' holds int64, not text"):
        read(path, text_field="id")
    assert read(path, skip_bad=True)[1].counts == {"record without the field": 1}


def test_nulls_are_counted(path: Path, read) -> None:
    write(path, pa.table({"text": ["a", None, "b", None]}))
    found, report = read(path)
    assert [d.text for d in found] == ["a", "b"]
    assert report.counts == {"null instead of text": 2}


def test_bytes_that_are_not_utf8(path: Path, read) -> None:
    column = pa.array([b"good", b"caf\xe9", b"fine"]).view(pa.string())
    write(path, pa.table({"text": column}))
    with pytest.raises(UsageError, match="not UTF-8 text: byte 0xe9"):
        read(path)
    found, report = read(path, encoding_errors="skip")
    assert [d.text for d in found] == ["good", "fine"]
    assert report.counts == {"not UTF-8": 1}
    found, report = read(path, encoding_errors="replace")
    assert [d.text for d in found] == ["good", "caf\ufffd", "fine"]


def test_long_value_comes_in_parts(path: Path, read, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("documents", "arrow"):
        monkeypatch.setattr(f"hotloop.data.sources.{name}.PIECE_BYTES", 1000)
    long = "word " * 1000
    write(path, pa.table({"text": ["a", long, "b"]}))
    found, _ = read(path)
    assert "".join(d.text for d in found) == f"a{long}b"
    assert [d.part for d in found].count(False) == 3
    assert max(len(d.text) for d in found) <= 1000


def test_damaged_file_is_refused_or_counted(path: Path, read) -> None:
    write(path, pa.table({"text": TEXTS}))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UsageError, match=r"not a|damaged"):
        read(path)
    found, report = read(path, skip_bad=True)
    assert report.counts["damaged file"] == 1
    assert found == []


def test_file_without_rows_is_empty(path: Path, read) -> None:
    write(path, pa.table({"text": pa.array([], pa.string())}))
    assert read(path)[0] == []


def test_missing_package_is_named(tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"text": ["a"]}))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    for options in ({}, {"skip_bad": True}):
        with pytest.raises(UsageError, match="needs the package pyarrow") as caught:
            read(path, **options)
        assert caught.value.do == "pip install 'hotloop[parquet]'"


def test_only_the_text_column_of_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"] * 10, "other": ["x" * 10_000] * 10}), path)
    (unit,) = plan([str(path)], ReadOptions()).units
    assert unit.num_bytes < 1000


def test_saved_data_set(tmp_path: Path, read) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(500))})
    rows.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert [d.text for d in read(tmp_path / "saved")[0]] == [text for text in TEXTS if text]
    both = datasets.DatasetDict({"train": rows, "test": rows.select(range(5))})
    both.save_to_disk(str(tmp_path / "both"))
    with pytest.raises(UsageError, match="splits train, test"):
        read(tmp_path / "both")
    assert len(read(tmp_path / "both/test")[0]) == 4
    shuffled = rows.shuffle(seed=1)
    shuffled.save_to_disk(str(tmp_path / "shuffled"))
    assert [d.text for d in read(tmp_path / "shuffled")[0]] == [t for t in shuffled["text"] if t]


def test_hub_data_set_out_of_a_directory(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, texts in (("train", TEXTS), ("test", TEXTS[:9])):
        records = "".join(json.dumps({"text": t, "n": 1}) + "\n" for t in texts)
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / f"mine/{split}.jsonl").write_text(records)
    source = f"hf:{tmp_path / 'mine'}"
    assert [d.text for d in read(source)[0]] == [text for text in TEXTS if text]
    assert len(read(f"{source}:test")[0]) == 7
    assert len(read(f"{source}:default:test")[0]) == 7
    assert len(read(f"{source}:train[:10]")[0]) == 8
    with pytest.raises(UsageError, match="no column 'body'"):
        read(source, text_field="body")
    with pytest.raises(UsageError, match="cannot load it"):
        read(f"{source}:nowhere")


def test_hub_without_its_package_says_what_to_install(
    read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UsageError, match="needs the package datasets"):
        read("hf:some/name")


def test_damaged_pages_of_a_parquet_file_with_checksums_are_found(tmp_path: Path, read) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"text number {number} " * 9 for number in range(400)]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    whole = [document.text for document in read(path)[0]]
    content = path.read_bytes()
    last = pq.ParquetFile(path).metadata.row_group(0).column(0).total_compressed_size
    refused = 0
    for number in range(40):
        changed = bytearray(content)
        changed[100 + number * (last - 100) // 40] ^= 1 << number % 8
        path.write_bytes(changed)
        try:
            found = [document.text for document in read(path)[0]]
        except UsageError:
            refused += 1
        else:
            assert found == whole
    assert refused > 10
