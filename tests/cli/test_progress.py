"""Progress is plain lines where there is no terminal, and never many of them."""

from __future__ import annotations

import io
import sys

import pytest

from hotloop.cli import progress as drawing
from hotloop.cli.progress import plain_lines, progress_bar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(drawing.time, "monotonic", lambda: now[0])
    return now


def test_new_work_and_its_end_are_said_at_once_and_the_rest_every_quarter_minute(
    clock: list[float],
) -> None:
    lines: list[str] = []
    progress = plain_lines(lines.append)
    for step in range(101):
        progress("train", step, 100, f"loss {step}")
        clock[0] += 0.375  # exact in binary
    progress("train", 100, 100, "again")
    progress("evaluate", 1, None, "")
    assert lines == [
        "train   0 %  loss 0",
        "train  40 %  loss 40",
        "train  80 %  loss 80",
        "train 100 %  loss 100",
        "evaluate",
    ]


def test_without_a_terminal_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        progress("prepare", 1, 2, "a [b] c")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "prepare  50 %  a [b] c\n"


def test_on_a_terminal_a_bar_is_drawn_and_markup_in_notes_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar() as progress:
        progress("train", 1, 10, "[red]loss[/red] 3.1")
        progress("train", 10, 10, "[/nonsense]")
    drawn = terminal.getvalue()
    assert "train" in drawn
    assert "[/nonsense]" in drawn
    assert "100%" in drawn
