"""Progress is plain lines where there is no terminal, and never many of them."""

from __future__ import annotations

import io
import re
import sys

import pytest

from hotloop.cli import progress as drawing
from hotloop.cli.progress import progress_bar
from hotloop.core.progress import plain_lines


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_is_drawn_and_markup_in_notes_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


NOTE = "612/1000  5,290 tokens/s  loss 3.212  MFU 51 %  cpu 98 %  mem 1.0 GB"


@pytest.mark.parametrize(("columns", "lines"), [(80, 2), (140, 1)])
def test_a_long_note_is_never_cut_and_takes_a_line_of_its_own_where_it_must(
    monkeypatch: pytest.MonkeyPatch, columns: int, lines: int
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress_bar() as progress:
        progress("training", 612, 1000, NOTE)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    every = [line.strip() for line in plain.replace("\r", "\n").splitlines() if line.strip()]
    drawn = [line for line in every if " 0% " not in line]  # drawn once before anything is done
    assert any(line.endswith(NOTE) for line in drawn)
    assert any(line.startswith("training") and "61%" in line for line in drawn)
    assert len(set(drawn)) == lines
    assert all(len(line) <= columns for line in drawn)
