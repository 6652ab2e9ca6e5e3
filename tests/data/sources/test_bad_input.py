"""Bad input: one clear error, or left out and counted; never a silently smaller corpus."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions, Report
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import read_unit


def lines(path: Path, *records: str) -> Path:
    path.write_text("\n".join(records) + "\n")
    return path


def test_line_number_is_counted_from_the_files_start_in_a_later_unit(
    tmp_path: Path, read_cut
) -> None:
    good = json.dumps({"text": "fine"})
    path = lines(tmp_path / "a.jsonl", *[good] * 50, "{broken", good)
    with pytest.raises(UsageError, match="malformed line") as caught:
        read_cut(path, [100, 300, 500, 700])
    assert caught.value.where == f"{path}:51"


def test_missing_field_shows_the_fields_there_are(tmp_path: Path, read) -> None:
    path = lines(tmp_path / "a.jsonl", '{"body": "x", "url": "y"}')
    with pytest.raises(UsageError, match="no field 'text'") as caught:
        read(path)
    assert "body, url" in str(caught.value.do)


def test_field_within_a_field(tmp_path: Path, read) -> None:
    path = lines(
        tmp_path / "a.jsonl", '{"doc": {"text": "one"}}', '{"doc.text": "two", "doc": {"text": 3}}'
    )
    assert [d.text for d in read(path, text_field="doc.text")[0]] == ["one", "two"]


def test_null_is_counted(tmp_path: Path, read) -> None:
    found, report = read(lines(tmp_path / "a.jsonl", '{"text": null}', '{"text": "x"}'))
    assert len(found) == 1
    assert report.counts == {"null instead of text": 1}


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "tree/a.txt"])
def test_bytes_that_are_not_utf8(tmp_path: Path, read, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    bad, good = b"caf\xe9", b"plain"
    if name.endswith("jsonl"):
        path.write_bytes(b'{"text": "%s"}\n{"text": "%s"}\n' % (bad, good))
    elif name.endswith("csv"):
        path.write_bytes(b"id,text\n1,%s\n2,%s\n" % (bad, good))
    else:
        path.write_bytes(bad + b"--" + good)
    source = path.parent if "/" in name else path
    separator = None if name.endswith(("csv", "jsonl")) else "--"
    with pytest.raises(UsageError, match="not UTF-8 text: byte 0xe9"):
        read(source, separator=separator)
    found, report = read(source, separator=separator, encoding_errors="replace")
    assert [document.text for document in found] == ["caf\ufffd", "plain"]
    assert sum(report.altered.values()) == 1
    found, report = read(source, separator=separator, encoding_errors="skip")
    assert [document.text for document in found] == ["plain"]
    assert report.counts == {"not UTF-8": 1}


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_long_document_that_is_not_utf8_is_left_out_whole(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("hotloop.data.sources.documents.PIECE_BYTES", 100)
    path = tmp_path / f"a.{kind}"
    body = b"word " * 100 + b"\xe9" + b" word" * 100
    path.write_bytes(b'{"text": "%s"}\n' % body if kind == "jsonl" else body)
    options = {"separator": None if kind == "jsonl" else "file"}
    with pytest.raises(UsageError, match="0xe9"):
        read(path, **options)
    found, report = read(path, encoding_errors="skip", **options)
    assert found == []
    assert report.counts == {"not UTF-8": 1}
    found, report = read(path, encoding_errors="replace", **options)
    assert "".join(d.text for d in found) == body.decode("utf-8", "replace")
    assert [d.part for d in found] == [True] * (len(found) - 1) + [False]
    assert report.altered == {"bytes that are not UTF-8 replaced by U+FFFD": 1}


def test_line_that_is_too_long_is_refused_with_its_length_or_counted(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.data.sources.records.MAX_LINE_BYTES", 2 << 20)
    long = json.dumps({"text": "x" * (3 << 20)})
    path = lines(tmp_path / "a.jsonl", '{"text": "one"}', long, '{"text": "two"}')
    with pytest.raises(UsageError, match=f"line of {len(long):,} bytes, more than 2 MiB") as error:
        read(path)
    assert error.value.where == f"{path}:2"
    found, report = read(path, skip_bad=True)
    assert [document.text for document in found] == ["one", "two"]
    assert report.counts == {"malformed record": 1}


def test_filters_by_length_count_what_they_leave_out(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["é", "four", "", "x" * 500, "y" * 501]
    path = lines(tmp_path / "a.jsonl", *[json.dumps({"text": t}) for t in texts])
    counts = {"shorter than 2 characters": 1, "longer than 500 characters": 1, "empty": 1}
    found, report = read(path, min_chars=2, max_chars=500)
    assert [d.text for d in found] == ["four", "x" * 500]
    assert report.counts == counts
    # The same where documents come in parts.
    monkeypatch.setattr("hotloop.data.sources.documents.PIECE_BYTES", 60)
    monkeypatch.setattr("hotloop.data.sources.records.BLOCK_BYTES", 30)
    found, report = read(path, min_chars=2, max_chars=500)
    assert "".join(d.text for d in found) == "four" + "x" * 500
    assert [d.part for d in found].count(False) == 2
    assert report.counts == counts


@pytest.mark.parametrize("change", ["append", "replace", "truncate"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_source_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, change: str, kind: str
) -> None:
    path = lines(tmp_path / f"a.{kind}", *[json.dumps({"text": "line " * 2000})] * 300)
    options = ReadOptions()
    units = plan([str(path)], options).units
    documents = read_unit(units[0], options, Report())
    next(documents)
    if change == "append":
        with path.open("a") as file:
            file.write("more\n")
    elif change == "replace":
        (tmp_path / "new").write_text("other")
        (tmp_path / "new").replace(path)
    else:
        os.truncate(path, 1_500_000)
    with pytest.raises(UsageError, match="changed while it was read"):
        list(documents)


def test_source_that_changed_after_the_plan_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.txt", "hello")
    unit = plan([str(path)]).units[0]
    path.write_text("hello world")
    with pytest.raises(UsageError, match="changed while it was read"):
        list(read_unit(unit, ReadOptions(), Report()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_refused_or_counted(tmp_path: Path, read) -> None:
    lines(tmp_path / "a.txt", "fine")
    lines(tmp_path / "b.txt", "secret").chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        read(tmp_path)
    found, report = read(tmp_path, skip_bad=True)
    assert len(found) == 1
    assert report.counts == {"cannot be opened": 1}


def test_directory_that_cannot_be_listed_is_refused_or_counted(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines(tmp_path / "a.txt", "fine")
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def scandir(path: str) -> Any:  # root may read everything, so the kernel does not refuse
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UsageError, match="Permission denied"):
        read(tmp_path)
    found, report = read(tmp_path, skip_bad=True)
    assert len(found) == 1
    assert report.counts == {"cannot be opened": 1}


def test_file_that_vanished_after_the_plan_is_counted_with_skip_bad(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.txt", "hello")
    unit = plan([str(path)]).units[0]
    path.unlink()
    with pytest.raises(UsageError, match="cannot read: No such file"):
        list(read_unit(unit, ReadOptions(), Report()))
    report = Report()
    assert list(read_unit(unit, ReadOptions(skip_bad=True), report)) == []
    assert report.counts == {"cannot be opened": 1}


def test_source_that_vanishes_while_it_is_read_has_changed(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", *[json.dumps({"text": "fine"})] * 9)
    unit = plan([str(path)]).units[0]
    for options in (ReadOptions(), ReadOptions(skip_bad=True)):
        documents = read_unit(unit, options, Report())
        next(documents)
        path.rename(tmp_path / "gone")
        with pytest.raises(UsageError, match="changed while it was read"):
            list(documents)
        (tmp_path / "gone").rename(path)


@pytest.mark.parametrize(
    "content", ['[\n {"text": "a"}\n]\n', '[{"text": "a"}]\n', '{\n "text": "a"\n}\n']
)
def test_json_that_is_no_lines_is_told_how_to_become_lines(
    tmp_path: Path, read, content: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="malformed line") as caught:
        read(path, format="jsonl")
    assert "jq -c" in str(caught.value.do)
    broken = lines(tmp_path / "a.jsonl", '{"text": 1')
    with pytest.raises(UsageError, match="malformed line") as caught:
        read(broken)
    assert "jq" not in str(caught.value.do)


def test_number_of_any_length_beside_the_text(tmp_path: Path, read) -> None:
    path = lines(tmp_path / "a.jsonl", f'{{"n": {"9" * 5000}, "text": "x"}}')
    assert [document.text for document in read(path)[0]] == ["x"]
    with pytest.raises(UsageError, match="is not a string"):
        read(lines(tmp_path / "b.jsonl", '{"text": 12}'))
    with pytest.raises(UsageError, match="is not a string"):
        read(lines(tmp_path / "c.jsonl", f'{{"text": {"9" * 5000}}}'))
