from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from hotloop.cli.colour import NARROW, wrap
from hotloop.cli.output import show

SAID = """run

The training waits for data 85 % of the time (HL106, io.py:6).

findings
  HL106  Making a batch waits for disk or network  at io.py:6 (at most 6.79x)
         fixed by `loader_workers`

With loader_workers: 7.15 to 11.46x (4 pairs), improved, on fresh pairs.

  kept         loader_workers  faster, and learns the same, 7.15 to 11.46x (4 pairs), pays from the first step on
  undecided    threads         its pairs differ too much to show a gain below 20 %
  go on with: hotloop doctor --out run --budget 12m -- python io.py --a-long-option=1 --and-another=2
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What a terminal of 80 columns is sent."""
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")

    def send() -> str:
        with contextlib.redirect_stdout(Terminal()) as terminal:
            show(SAID)
        return terminal.getvalue()

    return send


def test_a_terminal_shows_the_answer_in_colours_and_every_word_of_it(
    shown: Callable[[], str],
) -> None:
    seen = Text.from_ansi(shown())
    assert seen.plain.split() == SAID.split()
    styles = {seen.plain[span.start : span.end]: str(span.style) for span in seen.spans}
    assert styles["findings"] == "bold"
    assert "color(2)" in styles["  kept"]
    assert "color(3)" in styles["undecided"]
    assert "color(6)" in styles["`loader_workers`"]


def test_a_command_to_be_copied_is_one_line(shown: Callable[[], str]) -> None:
    lines = Text.from_ansi(shown()).plain.splitlines()
    assert SAID.splitlines()[-1] in lines
    assert all(len(line) <= 80 for line in lines if "go on with" not in line)


def test_without_colours_there_are_none(
    shown: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.findall("\x1b\\[(?!0?m|1m|2m)", shown()) == []


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(SAID)
    assert capsys.readouterr().out == SAID + "\n"


@given(st.text("ab  :(", max_size=300), st.integers(20, 200))
def test_wrapping_loses_no_word(line: str, width: int) -> None:
    wrapped = wrap(line, width)
    assert wrapped.split() == line.split()
    if width < NARROW:
        assert wrapped == line
