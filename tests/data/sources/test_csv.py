"""Rows of tables: quoting, line ends within fields, and rows that do not fit."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions, records

fields = st.text(st.sampled_from('ab",\t\n\r é世'), max_size=30)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(fields, max_size=10), tabs=st.booleans())
def test_what_was_written_is_read(tmp_path: Path, read, texts: list[str], tabs: bool) -> None:
    path = tmp_path / ("a.tsv" if tabs else "a.csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if tabs else ",")
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))
    found, report = read(path)
    assert [d.text for d in found] == [text for text in texts if text]
    assert report.counts.total() == texts.count("")


def test_origin_is_the_line_where_the_row_begins(tmp_path: Path, read) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\ufefftext\n"one\ntwo"\nthree\n', encoding="utf-8")
    assert [d.origin for d in read(path)[0]] == [f"{path}:2", f"{path}:4"]


def test_missing_column_shows_the_columns(tmp_path: Path, read) -> None:
    (tmp_path / "a.csv").write_text("id,body\n1,x\n")
    with pytest.raises(UsageError, match="no column 'text'") as caught:
        read(tmp_path / "a.csv")
    assert "body, id" in str(caught.value.do)
    assert [d.text for d in read(tmp_path / "a.csv", text_field="body")[0]] == ["x"]


@pytest.mark.parametrize(
    ("row", "message"),
    [("2", "1 fields instead of 2"), ("2,b,c", "3 fields instead of 2"), ('2,"b"c', "expected")],
)
def test_malformed_row(tmp_path: Path, read, row: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,text\n1,a\n{row}\n3,c\n")
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert caught.value.where == f"{path}:3"
    found, report = read(path, skip_bad=True)
    assert [d.text for d in found] == ["a", "c"]
    assert report.counts == {"malformed record": 1}


def test_quote_that_is_never_closed_is_noticed(tmp_path: Path, read) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,a\n2,"b\n3,c\n')
    with pytest.raises(
        UsageError, match="a quote that is never closed: the last 2 lines"
    ) as caught:
        read(path)
    assert caught.value.where == f"{path}:3"
    found, report = read(path, skip_bad=True)
    assert [d.text for d in found] == ["a"]
    assert report.counts == {records.REST: 1}
    assert "the last 2 lines" in report.examples[records.REST][0]


def test_column_that_is_named_twice_is_refused(tmp_path: Path, read) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,text\na,b\n")
    with pytest.raises(UsageError, match="names `text` 2 times"):
        read(path)


@pytest.mark.parametrize("content", ['"{}"', '"{}\n{}"', "{}"])
def test_endless_field_ends_the_table_counted(
    tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(records, "MAX_FIELD_CHARS", 200_000)
    before = csv.field_size_limit(200_000)
    path = tmp_path / "a.csv"
    path.write_text("text\nfine\n" + content.format("x" * 190_000, "y" * 190_000) * 2 + "\nlost\n")
    try:
        with pytest.raises(UsageError, match="longer than"):
            read(path)
        found, report = read(path, skip_bad=True)
    finally:
        csv.field_size_limit(before)
    assert [d.text for d in found] == ["fine"]
    assert report.counts == {"rest of a table behind a row that cannot be read": 1}


def test_table_in_a_directory_is_text_unless_said(tmp_path: Path, read) -> None:
    (tmp_path / "a.csv").write_text("text\nx\n")
    assert [d.text for d in read(tmp_path)[0]] == ["text\nx\n"]
    assert [d.text for d in read(tmp_path, format="csv")[0]] == ["x"]


def test_delimiter(tmp_path: Path, read) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id;text\n1;a,b\n2;"c;d"\n')
    with pytest.raises(UsageError, match="no column 'text'") as caught:
        read(path)
    assert "--delimiter" in str(caught.value.do)
    assert [d.text for d in read(path, delimiter=";")[0]] == ["a,b", "c;d"]
    plain = tmp_path / "a.txt"
    plain.write_text("x")
    with pytest.raises(UsageError, match="a delimiter is for csv"):
        read(plain, delimiter=";")


def test_delimiter_is_part_of_the_key() -> None:
    assert ReadOptions(delimiter=";").key() != ReadOptions().key()
