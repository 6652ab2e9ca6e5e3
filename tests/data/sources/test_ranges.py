"""Documents do not depend on how a file is cut into units."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.data import sources
from hotloop.data.sources import read, records
from hotloop.data.sources.documents import cut_parts

# One file of its own for every example; nothing of an earlier one matters.
each = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
cuts = st.lists(st.integers(0, 10_000), max_size=6)
prose = st.lists(
    st.sampled_from(["word ", "line\n", "\n", "\n\n", "世界", "é", "🎉", "x" * 30, "\r\n", "."]),
    max_size=120,
).map("".join)

long_texts = st.builds(
    lambda text, times: text * times,
    st.text(st.sampled_from('a"\\\n\u00e9世🎉 '), max_size=12),
    st.integers(1, 30),
)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some hundred bytes cross every bound."""
    monkeypatch.setattr(read, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(read, "FILE_PIECE_BYTES", (20, 40))
    for module in (records, read):
        monkeypatch.setattr(module, "BLOCK_BYTES", 17)
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 90)


def write(directory: Path, name: str, content: str) -> Path:
    path = directory / name
    path.write_bytes(content.encode())
    return path


@each
@given(content=prose, cuts=cuts)
def test_pieces_of_text(tmp_path: Path, read, read_cut, content: str, cuts: list[int]) -> None:
    path = write(tmp_path, "a.txt", content)
    found, _ = read_cut(path, cuts)
    assert found == read(path)[0]
    assert "".join(document.text for document in found) == content
    assert all(len(document.text.encode()) <= 40 for document in found)


@each
@given(
    content=st.lists(
        st.sampled_from(["--", "-", "aba", "a", "b ", "\n", "\n\n", "\r\n", "<"]), max_size=60
    ).map("".join),
    separator=st.sampled_from(["--", "---", "\n--\n", "aba", "<", "blank-line"]),
    cuts=cuts,
)
def test_documents_between_separators(
    tmp_path: Path, read, read_cut, content: str, separator: str, cuts: list[int]
) -> None:
    path = write(tmp_path, "a.txt", content)
    found, report = read_cut(path, cuts, separator=separator)
    whole, whole_report = read(path, separator=separator)
    assert found == whole
    assert report.counts == whole_report.counts or not content
    assert [document.text for document in found] == separated(content, separator)


def separated(content: str, separator: str) -> list[str]:
    """What no occurrence covers, by looking at every place."""
    given = ["\n\n", "\n\r\n", "\r\n\n", "\r\n\r\n"] if separator == "blank-line" else [separator]
    covered = [False] * len(content)
    for one in given:
        for at in range(len(content)):
            if content.startswith(one, at):
                covered[at : at + len(one)] = [True] * len(one)
    documents, at = [], 0
    while at < len(content):
        stop = at
        while stop < len(content) and not covered[stop]:
            stop += 1
        if stop > at:
            documents.append(content[at:stop])
        at = stop + 1
    return [d for d in documents if d]


@each
@given(
    texts=st.lists(long_texts, max_size=5),
    ascii_only=st.booleans(),
    blank=st.booleans(),
    end=st.booleans(),
    cuts=cuts,
)
def test_lines_of_any_length(
    tmp_path: Path,
    read,
    read_cut,
    texts: list[str],
    ascii_only: bool,
    blank: bool,
    end: bool,
    cuts: list[int],
) -> None:
    records = [json.dumps({"n": 1, "text": t}, ensure_ascii=ascii_only) for t in texts]
    content = ("\n\n" if blank else "\n").join(records) + ("\n" if end else "")
    path = write(tmp_path, "a.jsonl", content)
    held = [text for text, record in zip(texts, records) if len(record.encode()) <= 90]
    found, report = read_cut(path, cuts, skip_bad=True)
    assert [document.text for document in found] == [t for t in held if t]
    assert found == read(path, skip_bad=True)[0]
    left_out = {"empty": held.count(""), "malformed record": len(texts) - len(held)}
    assert report.counts == {reason: count for reason, count in left_out.items() if count}


@given(content=prose, bound=st.integers(5, 60), step=st.integers(1, 50))
def test_parts_depend_on_the_bytes_alone(content: str, bound: int, step: int) -> None:
    encoded = content.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotloop.data.sources.documents.PIECE_BYTES", bound)
        parts = list(cut_parts(encoded[at : at + step] for at in range(0, len(encoded), step)))
        assert parts == list(cut_parts([encoded]))
    assert b"".join(parts) == encoded
    assert all(len(part) <= bound for part in parts)
    for part in parts:
        part.decode()


def test_planned_units_of_a_large_file_are_bounded_and_cover_it(tmp_path: Path) -> None:
    from hotloop.data.sources.plan import plan

    for name in ("a.txt", "a.jsonl"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(3 * sources.UNIT_BYTES + 5)
        units = plan([str(path)]).units
        assert [(u.begin, u.end) for u in units][-1] == (
            3 * sources.UNIT_BYTES,
            3 * sources.UNIT_BYTES + 5,
        )
        assert sum(u.num_bytes for u in units) == 3 * sources.UNIT_BYTES + 5
        assert all(a.end == b.begin for a, b in pairwise(units))
