"""Which files are read, in which order, and which sources are refused."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions
from hotloop.data.sources.files import spool_standard_input
from hotloop.data.sources.plan import plan
from hotloop.data.sources.tree import matches
from preparing import prepare


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("a.py", "b.md", "vendor/c.py", "src/d.py", "src/deep/e.py", "src/data.jsonl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('{"text": "line"}' if name.endswith("jsonl") else name)
    return root


def texts(read, *sources: object, **options: object) -> list[str]:
    return [document.text for document in read(*sources, **options)[0]]


def test_include_and_exclude_choose_files_and_count_the_others(tree: Path, read) -> None:
    found, report = read(tree, include=("*.py",), exclude=("vendor",))
    assert [document.text for document in found] == ["a.py", "src/d.py", "src/deep/e.py"]
    assert report.counts == {"not in --include": 2, "in --exclude": 1}
    assert report.examples["in --exclude"] == [str(tree / "vendor/c.py")]


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "src/deep/e.py", True),
        ("src/*.py", "src/d.py", True),
        ("src/*.py", "src/deep/e.py", False),
        ("src/**/*.py", "src/deep/e.py", True),
        ("src/**/*.py", "src/d.py", True),
        ("src/**", "src/deep/e.py", True),
        ("deep", "src/deep/e.py", True),
        ("dee", "src/deep/e.py", False),
        ("[ab].py", "b.py", True),
        ("[!ab].py", "b.py", False),
        ("a.py", "axpy", False),
        ("?.py", "src/d.py", True),
    ],
)
def test_pattern(pattern: str, path: str, fits: bool) -> None:
    assert matches(path, pattern) is fits


def test_choosing_files_without_a_directory_is_refused(tree: Path, read) -> None:
    with pytest.raises(UsageError, match="no source is one"):
        read(tree / "a.py", include=("*.py",))


def test_separator_without_text_is_refused(tree: Path, read) -> None:
    with pytest.raises(UsageError, match="no source is plain text"):
        read(tree / "src/data.jsonl", separator="file")


def test_glob_is_as_if_the_files_were_named(tree: Path, read) -> None:
    assert texts(read, tree / "*.*") == ["a.py", "b.md"]
    assert texts(read, tree / "**/*.py") == ["a.py", "src/d.py", "src/deep/e.py", "vendor/c.py"]
    with pytest.raises(UsageError, match="no file matches"):
        read(tree / "*.txt")


def test_name_with_magic_signs_that_exists_is_that_file(tmp_path: Path, read) -> None:
    (tmp_path / "a[1].txt").write_text("one")
    assert texts(read, tmp_path / "a[1].txt") == ["one"]


@pytest.mark.parametrize("second", ["a.py", ".", "link.py"])
def test_same_file_in_two_sources_is_refused(tree: Path, read, second: str) -> None:
    (tree.parent / "link.py").symlink_to(tree / "a.py")
    other = tree.parent / second if second == "link.py" else tree / second
    with pytest.raises(UsageError, match=r"twice|in two sources"):
        read(tree / "a.py", other)


def test_format_can_be_said(tmp_path: Path, read) -> None:
    (tmp_path / "records.txt").write_text('{"text": "one"}\n')
    assert texts(read, tmp_path / "records.txt", format="jsonl") == ["one"]
    (tmp_path / "records.jsonl").write_text("plain")
    assert texts(read, tmp_path / "records.jsonl", format="text") == ["plain"]


def test_archive_is_refused_alone_and_counted_in_a_tree(tree: Path, read) -> None:
    (tree / "old.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(UsageError, match="archives are not read"):
        read(tree / "old.tar.gz")
    assert read(tree)[1].counts == {"archives are not read": 1}


def test_links_to_directories_are_counted(tree: Path, read) -> None:
    (tree / "again").symlink_to(tree / "src")
    assert read(tree)[1].counts == {"link to a directory": 1}


@pytest.mark.parametrize(
    ("form", "content", "expected"),
    [(None, b"some text", ["some text"]), ("jsonl", b'{"text": "a"}\n{"text": "b"}', ["a", "b"])],
)
def test_standard_input(
    tmp_path: Path,
    read,
    monkeypatch: pytest.MonkeyPatch,
    form: str | None,
    content: bytes,
    expected: list[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    path = str(spool_standard_input(tmp_path))
    assert texts(read, "-", format=form, standard_input=path) == expected
    # The same text piped in again is the same source.
    first = plan(["-"], ReadOptions(standard_input=path)).units
    (tmp_path / "again").write_bytes(content)
    assert plan(["-"], ReadOptions(standard_input=str(tmp_path / "again"))).units == first
    assert "standard_input" not in ReadOptions(standard_input=path).key()


def test_compressed_standard_input(tmp_path: Path, read) -> None:
    import gzip

    (tmp_path / "in").write_bytes(gzip.compress(b"packed"))
    assert texts(read, "-", standard_input=str(tmp_path / "in")) == ["packed"]


def test_missing_directory_in_a_saved_data_set_of_splits(tmp_path: Path, read) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UsageError, match="splits train, test"):
        read(tmp_path)


def test_field_of_plain_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UsageError, match="no field 'body' in plain text") as caught:
        plan([str(tmp_path)], ReadOptions(text_field="body"))
    assert "--text-field" in str(caught.value)
    (tmp_path / "b.jsonl").write_text('{"body": "x"}\n')
    assert len(plan([str(tmp_path)], ReadOptions(text_field="body")).units) == 2


def test_what_was_prepared_in_a_source_is_no_text(tmp_path: Path, read) -> None:
    (tmp_path / "a.txt").write_text("text")
    prepare([str(tmp_path)], tmp_path / "out", tokenizer="bytes")
    found, report = read(tmp_path)
    assert [d.text for d in found] == ["text"]
    assert report.counts == {"prepared by hotloop": 1}


def links_in(directory: Path) -> Path:
    """A directory with links that lead back into it."""
    (directory / "sub").mkdir(parents=True)
    (directory / "a.txt").write_text("one")
    (directory / "sub/b.txt").write_text("two")
    (directory / "loop").symlink_to(directory)
    (directory / "sub/up").symlink_to(directory)
    return directory


@pytest.mark.parametrize("pattern", ["**/*.txt", "**", "**/[ab].txt", "*/../**/?.txt"])
def test_stars_follow_no_links_to_directories(tmp_path: Path, read, pattern: str) -> None:
    found, report = read(links_in(tmp_path / "l") / pattern)
    assert [document.text for document in found] == ["one", "two"]
    assert report.counts["link to a directory"] >= 2


def test_stars_below_several_roots(tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x/data/a/1.txt", "y/data/2.txt", "z/3.txt", "x/data/.hidden/4.txt", "5.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found, report = read(tmp_path / "*/data/**/*.txt")
    assert [document.text for document in found] == ["x/data/a/1.txt", "y/data/2.txt"]
    assert report.counts == {}
    monkeypatch.chdir(tmp_path)
    found, _ = read("**/*.txt")
    assert [document.origin for document in found] == [
        "5.txt", "x/data/a/1.txt", "y/data/2.txt", "z/3.txt"
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no file matches"):
        read("**/*.py")


@pytest.mark.parametrize("named", ["", "*", "**/*"])
def test_file_of_several_names_is_read_once_and_counted(tmp_path: Path, read, named: str) -> None:
    root = tmp_path / "many"
    root.mkdir()
    (root / "a.txt").write_text("text")
    (root / "b.txt").symlink_to(root / "a.txt")
    (root / "c.txt").hardlink_to(root / "a.txt")
    (root / "other.txt").write_text("text")
    found, report = read(root / named)
    assert [document.origin for document in found] == [
        str(root / "a.txt"),
        str(root / "other.txt"),
    ]
    assert report.counts == {"the same file again": 2}
    assert report.examples["the same file again"][0] == f"{root}/b.txt, also {root}/a.txt"


def test_tree_of_the_hub_is_read_by_the_names_that_say_the_format(tmp_path: Path, read) -> None:
    root = tmp_path / "hub"
    for name in ("blobs", "snapshots/r1", "snapshots/r2"):
        (root / name).mkdir(parents=True)
    (root / "blobs/3a5f").write_text('{"text": "one"}\n')
    for revision in ("r1", "r2"):
        (root / f"snapshots/{revision}/data.jsonl").symlink_to("../../blobs/3a5f")
    found, report = read(root)
    assert [document.text for document in found] == ["one"]
    assert report.counts == {"the same file again": 2}
