from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotloop.core import untrusted
from hotloop.core.untrusted import (
    TORN,
    lines_from_end,
    object_lines,
    parse_json,
    parse_object,
    read_bytes,
)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 65 + b"]" * 65, "nested too deeply"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested too deeply"),
        (b"9" * 5000, "an integer of 5000 digits"),
        (b"-123456789012345678901", "an integer of 22 digits"),
        (b"NaN", "NaN is no number in JSON"),
        (b"-Infinity", "-Infinity is no number in JSON"),
        (b"1e999", "too large a number"),
        (b"\xff\xfe\x00", "utf-8"),
        (b"", "Expecting value"),
        (b"{", "Expecting"),
    ],
)
def test_json_that_would_break_later_is_one_value_error(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_json(content)


def test_json_as_hotloop_writes_it_is_read() -> None:
    assert parse_json(b'{"a": [1, -18446744073709551616, 0.5, null, "\\ud800"]}') == {
        "a": [1, -(2**64), 0.5, None, "\ud800"]
    }
    assert parse_json("[Infinity, 1e999]", finite=False) == [float("inf")] * 2


def test_object_is_wanted() -> None:
    with pytest.raises(ValueError, match="not an object"):
        parse_object(b"[1]")
    assert parse_object(b"{}") == {}


def test_only_a_regular_file_of_some_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", limit_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than"):
        read_bytes(tmp_path / "file", limit_bytes=4)


def test_lines_of_a_file_that_grows_meanwhile_end_with_the_one_that_was_torn(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b'{"a": 1}\n\n{"a": ')
    lines = object_lines(file)
    assert next(lines) == (1, {"a": 1})
    assert next(lines) == (3, TORN)
    with file.open("ab") as end:
        end.write(b'2}\n{"a": 3}\n')
    assert list(lines) == []
    assert list(object_lines(file))[1:] == [(3, {"a": 2}), (4, {"a": 3})]


def test_line_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"{}\n" + bytes(20) + b"\n{}")
    monkeypatch.setattr(untrusted, "MAX_BYTES", 10)
    monkeypatch.setattr(untrusted, "BLOCK_BYTES", 4)
    for lines in (object_lines(tmp_path / "file"), lines_from_end(tmp_path / "file")):
        next(lines)
        with pytest.raises(OSError, match="a line is larger"):
            next(lines)
