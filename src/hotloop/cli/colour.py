"""An answer as a person on a terminal sees it: coloured, and long lines wrapped below their own column."""

from __future__ import annotations

import re
import textwrap
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.theme import Theme

COPIED = re.compile(r"\b(go on with|apply it here|undo it|command): |https?://")
"""Lines to be copied as a whole."""
COLUMN = re.compile(r"^ *(?:\S+(?: \S+)?  +)*")
"""Everything before the last column of a table's row."""
NARROW = 60


class Answer(RegexHighlighter):
    """What a reader looks for first: the answer, headings, findings, bars, what became of each fix."""

    base_style = "answer."
    highlights = [  # noqa: RUF012  # as rich has it
        r"\A\n*(?:\S+\n\n)?(?P<heading>(?:[A-Z].*(?:\n|$))(?:\S.*(?:\n|$))*)",
        r"(?m)^(?P<heading>[a-z][\w' ]+\??)$",
        r"(?P<finding>\bHL\d{3}\b)",
        r"(?P<bar>█+)",
        r"(?m)^(?P<proven>With .* improved,.*|  kept\b)",
        r"(?m)^  (?P<open>undecided|stopped|does not pay)\b",
        r"(?m)^  (?P<no>rejected|what if|not tried|not applied|failed)\b",
        r"(?P<command>`[^`\n]+`)",
        r"(?m)^ +(?:go on with|apply it here|undo it): (?P<command>.*)$",
        r"(?m)^(?P<added>\+.*)$",
        r"(?m)^(?P<removed>-.*)$",
    ]


THEME = Theme(
    {
        "answer.heading": "bold",
        "answer.finding": "cyan",
        "answer.bar": "blue",
        "answer.proven": "bold green",
        "answer.open": "yellow",
        "answer.no": "dim",
        "answer.command": "cyan",
        "answer.added": "green",
        "answer.removed": "red",
    }
)


def print_answer(text: str, terminal: TextIO) -> None:
    """`NO_COLOR` and terminals without colours are respected."""
    console = Console(file=terminal, theme=THEME, highlighter=Answer(), markup=False, emoji=False)
    wrapped = "\n".join(wrap(line, console.width) for line in text.split("\n"))
    console.print(wrapped, soft_wrap=True)


def wrap(line: str, width: int) -> str:
    """The line in pieces of at most `width` columns, the later ones indented to its last column."""
    if len(line) <= width or width < NARROW or COPIED.search(line):
        return line
    found = COLUMN.match(line)
    indent = found.end() if found is not None else 0
    if indent > width // 2:
        indent = len(line) - len(line.lstrip())
    first, rest = line[:indent], line[indent:]
    pieces = textwrap.wrap(rest, width - indent, break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join([first + pieces[0], *pieces[1:]])
