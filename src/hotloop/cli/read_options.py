"""The options of `hotloop prepare` that say what is read out of the sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from hotloop.core.data_config import delimiter_of, unescape
from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--text-field",
        default="text",
        show_default=True,
        metavar="NAME",
        help="Field or column that holds the text; a.b for a field within a field.",
    ),
    click.option(
        "--format",
        type=click.Choice(["text", "jsonl", "csv", "tsv", "parquet", "arrow"]),
        help="Read every file as this; else its suffix says what it is, and standard input is text.",
    ),
    click.option(
        "--separator",
        metavar="STRING",
        help="What stands between two documents of plain text (\\n, \\t and \\x1e are understood; overlapping "
        "ones, as ---- for ---, are one), blank-line, or file: each file is one document. [default: files of a directory are "
        "documents, a file given by itself is cut into pieces]",
    ),
    click.option(
        "--delimiter",
        metavar="CHARACTER",
        help="What stands between the columns of csv and tsv, as ; or \\t. [default: a comma, a tab]",
    ),
    click.option(
        "--min-chars",
        type=click.IntRange(min=0),
        default=0,
        help="Leave out documents with fewer characters.",
    ),
    click.option(
        "--max-chars", type=click.IntRange(min=1), help="Leave out documents with more characters."
    ),
    click.option(
        "--skip-bad",
        is_flag=True,
        help="Leave out malformed records, the rest of damaged compressed files and tables, and damaged "
        "Arrow and parquet files, counted and listed, instead of ending with an error.",
    ),
    click.option(
        "--encoding-errors",
        type=click.Choice(["error", "replace", "skip"]),
        default="error",
        show_default=True,
        help="For bytes that are not UTF-8: end with an error, put U+FFFD, or leave the document out.",
    ),
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="Read only such files of a directory: *.py, or docs/**/*.md. Can be repeated.",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Do not read such files of a directory; a name such as vendor leaves out what is below.",
    ),
)


def read_options(command: F) -> F:
    """Add the options; the command passes them on to `options_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def options_of(values: dict[str, Any]) -> ReadOptions:
    """`ReadOptions` from the keywords that a decorated command gets. Raises `UsageError`."""
    chosen = dict(values)
    if chosen["separator"] is not None:
        chosen["separator"] = unescape(chosen["separator"])
    if chosen["delimiter"] is not None:
        chosen["delimiter"] = delimiter_of(chosen["delimiter"])
    if chosen["max_chars"] is not None and chosen["max_chars"] < chosen["min_chars"]:
        raise UsageError(
            f"--max-chars {chosen['max_chars']} is less than --min-chars {chosen['min_chars']}",
            do="every document would be left out",
        )
    return ReadOptions(**chosen)
