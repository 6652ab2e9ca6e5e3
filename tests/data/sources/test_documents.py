"""What becomes a document, and what is refused or counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.data.sources.documents import MALFORMED, NO_FIELD, NOT_TEXT
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import FILE_PIECE_BYTES


def test_tree_is_read_in_sorted_order_without_hidden_and_binary_files(tmp_path: Path, read) -> None:
    for name in ("b.py", "a/z.txt", "a/README", ".git/config", "__pycache__/x.py", ".hidden"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "archive").write_bytes(b"\x1f\x8b\x08\xff\xfe")
    (tmp_path / "empty.py").write_text("")
    found, skipped = read(tmp_path)
    assert [document.text for document in found] == ["b.py", "a/README", "a/z.txt"]
    assert skipped.counts == {"binary": 2, "empty": 1, "hidden": 3}
    assert str(tmp_path / "picture.png") in skipped.examples["binary"]


def test_directory_that_is_written_to_is_not_read(tmp_path: Path) -> None:
    for name in ("text.txt", "out/tokenizer.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    units = plan([str(tmp_path)], exclude=tmp_path / "out").units
    assert [unit.name for unit in units] == [str(tmp_path / "text.txt")]


@pytest.mark.parametrize("inside_tree", [False, True])
def test_text_that_is_not_utf8_is_refused_with_file_and_offset(
    tmp_path: Path, read, inside_tree: bool
) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("é".encode() * 3000 + b"caf\xe9 au lait")
    with pytest.raises(UsageError, match="byte 0xe9 at offset 6003") as caught:
        read(tmp_path if inside_tree else path)
    assert caught.value.where == str(path)


def test_utf16_text_is_refused(tmp_path: Path, read) -> None:
    (tmp_path / "wide.txt").write_text("hello", encoding="utf-16")
    with pytest.raises(UsageError, match="not UTF-8 text: byte 0xff at offset 0"):
        read(tmp_path)


def test_character_cut_off_at_the_end_of_a_file_is_refused(tmp_path: Path, read) -> None:
    (tmp_path / "cut.txt").write_bytes("ab世".encode()[:-1])
    with pytest.raises(UsageError, match="offset 2"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 5000,
        "line\n" * 5000,
        "paragraph\n\n" * 3000,
        "世界🎉" * 5000,
        "x" * FILE_PIECE_BYTES[0],
        "x" * (FILE_PIECE_BYTES[0] + 1),
    ],
)
def test_pieces_of_a_large_file_join_to_the_file_and_are_bounded(
    tmp_path: Path, read, text: str
) -> None:
    path = tmp_path / "book.txt"
    path.write_text(text)
    found, _ = read(path)
    assert "".join(document.text for document in found) == text
    assert max(len(document.text.encode()) for document in found) <= FILE_PIECE_BYTES[0]
    assert (len(found) == 1) == (len(text.encode()) <= FILE_PIECE_BYTES[0])


def test_byte_order_mark_is_not_text(tmp_path: Path, read) -> None:
    (tmp_path / "a.txt").write_text("hello", encoding="utf-8-sig")
    assert read(tmp_path / "a.txt")[0][0].text == "hello"


def test_jsonl_gives_one_document_a_line(tmp_path: Path, read) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "one\\ntwo"}\n\n{"body": ""}\n{"body": "three", "id": 3}')
    found, skipped = read(path, text_field="body")
    assert [document.text for document in found] == ["one\ntwo", "three"]
    assert found[1].origin == f"{path}@{path.read_text().rindex(chr(10)) + 1}"
    assert skipped.counts == {"empty": 1}


@pytest.mark.parametrize(
    ("line", "message", "reason"),
    [
        ("{not json", "malformed line", MALFORMED),
        ("[1, 2]", "not a JSON object", MALFORMED),
        ('{"body": "x"}', "no field 'text'", NO_FIELD),
        ('{"text": 3}', "not a string", NOT_TEXT),
        ('{"text": "\\ud800"}', "surrogate", MALFORMED),
        ("[" * 100_000, "malformed line", MALFORMED),
    ],
)
def test_bad_line_is_refused_or_counted_with_its_number(
    tmp_path: Path, read, line: str, message: str, reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    fine = json.dumps({"text": "fine"})
    path.write_text(f"{fine}\n{line}\n{fine}\n")
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert caught.value.where == f"{path}:2"
    found, report = read(path, skip_bad=True)
    assert [document.text for document in found] == ["fine", "fine"]
    assert report.counts == {reason: 1}
    assert report.examples[reason][0].startswith(f"{path}:2: ")


def test_missing_source_is_refused(tmp_path: Path, read) -> None:
    with pytest.raises(UsageError, match="no such source"):
        read(tmp_path / "nowhere")


def test_standard_library_skips_and_counts_only_what_is_in_another_encoding(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "os.py").write_text("import sys\n")
    (tmp_path / "notes.txt").write_text("not a source")
    (tmp_path / "koi.py").write_bytes(b"#!/usr/bin/python\n# -*- coding: koi8-r -*-\n'\xf0\xcf'\n")
    (tmp_path / "bad.py").write_bytes(b"print('b\xf6se')\n")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/other.py").write_text("not ours")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    found, skipped = read("python-stdlib")
    assert [document.text for document in found] == ["import sys\n"]
    assert skipped.counts == {"binary": 2}
    (tmp_path / "os.py").unlink()
    with pytest.raises(UsageError, match="no source files"):
        read("python-stdlib")


def test_blank_line_of_either_kind_is_no_text(tmp_path: Path, read) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\n\r\ntwo\n\nthree\r\n\r\n\r\nfour\r\n")
    found, _ = read(path, separator="blank-line")
    assert [d.text for d in found] == ["one", "two", "three", "four\r\n"]


@pytest.mark.parametrize("content", ["a--b", "a---b", "a----b"])
def test_separators_that_overlap_hold_no_document(tmp_path: Path, read, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    found, report = read(tmp_path / "a.txt", separator="--")
    assert [d.text for d in found] == ["a", "b"]
    assert report.counts.total() == 0


def test_document_without_text_between_separators_is_counted(tmp_path: Path, read) -> None:
    (tmp_path / "a.txt").write_text("a<<b")
    assert read(tmp_path / "a.txt", separator="<")[1].counts == {"empty": 1}
