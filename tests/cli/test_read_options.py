"""The options that say what is read."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from hotloop.cli.prepare import options_of, read_options
from hotloop.core.data_config import ReadingConfig, unescape
from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions


def parsed(*arguments: str) -> ReadOptions:
    found: list[ReadOptions] = []

    @click.command()
    @read_options
    def command(**values: object) -> None:
        found.append(options_of(values))

    CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    return found[0]


def test_no_options_are_the_defaults() -> None:
    assert parsed() == ReadOptions()


def test_all_options() -> None:
    assert parsed(
        *("--text-field", "a.b", "--format", "jsonl", "--separator", r"\n--\n"),
        *("--min-chars", "3", "--max-chars", "9", "--skip-bad", "--encoding-errors", "skip"),
        *("--include", "*.py", "--include", "*.md", "--exclude", "vendor"),
    ) == ReadOptions(
        text_field="a.b",
        format="jsonl",
        separator="\n--\n",
        min_chars=3,
        max_chars=9,
        skip_bad=True,
        encoding_errors="skip",
        include=("*.py", "*.md"),
        exclude=("vendor",),
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"\n\n", "\n\n"),
        (r"a\\n", r"a\n"),
        (r"\t|\r", "\t|\r"),
        ("file", "file"),
        (r"\x1e\xe9\\x1e", "\x1e\u00e9\\x1e"),
    ],
)
def test_separator_as_typed(typed: str, meant: str) -> None:
    assert unescape(typed) == meant


@pytest.mark.parametrize("typed", ["", "\\", "\\x", "\\x1", "\\xzz", "\\q"])
def test_separator_that_cannot_be_read(typed: str) -> None:
    with pytest.raises(UsageError, match="separator"):
        unescape(typed)


def test_filters_that_leave_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="less than"):
        parsed("--min-chars", "5", "--max-chars", "4")


ALL = {
    "text_field": "-a.b",
    "format": "csv",
    "separator": "--\n\\",
    "delimiter": "\t",
    "min_chars": 3,
    "max_chars": 9,
    "skip_bad": True,
    "encoding_errors": "skip",
    "include": ["*.py", "--x"],
    "exclude": ["vendor"],
}
"""Something else than the default for everything."""
ALL_READ = ReadOptions(**{**ALL, "include": ("*.py", "--x"), "exclude": ("vendor",)})  # type: ignore[arg-type]


def test_settings_have_the_options_under_their_names_and_mean_the_same() -> None:
    names = [str(each.name) for each in click.command()(read_options(lambda: None)).params]
    assert list(ReadingConfig.model_fields) == names == list(ALL)
    assert ReadOptions.of(ReadingConfig()) == ReadOptions()
    typed = {**ALL, "separator": r"--\n\\", "delimiter": r"\t"}
    assert ReadOptions.of(ReadingConfig.model_validate(typed)) == ALL_READ
