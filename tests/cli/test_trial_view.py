"""What is shown while fixes are tried: a table on a terminal, which leaves no trace, and lines anywhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest
from rich.console import Console

from hotloop.cli import trial_view
from hotloop.cli.trial_view import table
from hotloop.core.judgement import Parity, Verdict
from hotloop.core.ledger import TriedFix
from hotloop.core.progress import PairProgress, TrialProgress

INTERIM = Verdict(
    *("inconclusive", 1.05, 0.99, 1.12, None, Parity("same", "bitwise"), "baseline", "tf32"),
    num_pairs=2,
)
NAMES = ("item_cache", "fused_optimizer", "tf32", "loader_workers")
TRIED = (
    TriedFix("item_cache", True, "kept", "faster", verdict=INTERIM),
    TriedFix("fused_optimizer", True, "rejected", "slower"),
)
NOW = TrialProgress(
    NAMES, TRIED, "tf32", pair=PairProgress(3, 10, INTERIM), process="pair 3 of up to 10: tf32"
)


def drawn(now: TrialProgress, *, width: int = 100, height: int = 30) -> list[str]:
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(table(now, "1:12 of 5:00, 3:48 left", width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_each_fix_has_its_state_and_the_one_that_runs_its_interim_interval() -> None:
    assert drawn(NOW) == [
        "fix 3 of 4, 1:12 of 5:00, 3:48 left",
        "  item_cache      kept 1.05x (0.99 to 1.12, 2 pairs)",
        "  fused_optimizer rejected: slower",
        "> tf32            pair 3 of up to 10",
        "  loader_workers  waiting",
        "interim: 1.05x (0.99 to 1.12, 2 pairs)",
        "next: loader_workers",
    ]


def test_pairs_that_tell_nothing_yet_are_no_number() -> None:
    wild = replace(INTERIM, ratio=2.0, ratio_low=1e-40, ratio_high=4e50)
    assert drawn(replace(NOW, pair=PairProgress(3, 10, wild)))[-2] == (
        "interim: the 2 pairs so far are too far apart to tell anything"
    )


def test_before_the_first_fix_and_after_the_last_one() -> None:
    first = TrialProgress(NAMES[:2], process="the losses of `baseline`", note="17 s")
    assert drawn(first)[1:] == [
        "  item_cache      waiting",
        "  fused_optimizer waiting",
        "the losses of `baseline`, 17 s",
        "next: item_cache and 1 more",
    ]
    last = TrialProgress(NAMES[:2], TRIED, together=True, process="the losses")
    assert drawn(last)[3:] == ["> together        comparing losses", "the losses", "next: the answer"]  # fmt: skip
    alone = TrialProgress(NAMES[:1], current=NAMES[0], pair=PairProgress(1, 10))
    assert drawn(alone)[2:] == ["no pair is measured yet", "next: the answer"]


@pytest.mark.parametrize(("width", "height"), [(40, 24), (40, 9), (100, 30), (20, 10), (40, 5)])
@pytest.mark.parametrize("position", [0, 9, 19])
def test_many_fixes_fit_into_a_small_terminal_the_current_one_among_them(
    width: int, height: int, position: int
) -> None:
    names = tuple(f"fix_{number}" for number in range(20))
    why = "out of budget:\n12 s of 60 s used; it needs about 40 s more, " * 3
    tried = tuple(TriedFix(name, True, "not_tried", why) for name in names[:position])
    pair = PairProgress(3, 10, INTERIM)
    lines = drawn(
        TrialProgress(names, tried, names[position], pair=pair), width=width, height=height
    )
    assert max(map(len, lines)) <= width - 3
    assert len(lines) == min(11, height - 1)
    assert any(line.startswith(f"> fix_{position}") for line in lines)


SHOWS = f"""
import sys, time
from dataclasses import replace
from hotloop.cli import trial_view
from hotloop.core.judgement import *
from hotloop.core.ledger import TriedFix
from hotloop.core.progress import *
trial_view.DRAW_EVERY_S = trial_view.LINE_EVERY_S = 0.0
INTERIM = {INTERIM!r}
NOW = {NOW!r}
print("before", file=sys.stderr)
try:
    with trial_view.trial_view(300.0) as view:
        view.show(replace(NOW, tried=NOW.tried[:1], current="fused_optimizer"))
        view.say("hotloop: a note \\x1b[31m")
        view.show(NOW)
        view.show(replace(NOW, pair=PairProgress(4, 10, INTERIM)))
        if "--wait" in sys.argv:
            time.sleep(60)
    print("the answer", file=sys.stderr)
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
"""


class Screen:
    """What a terminal shows of what it gets, and showed each time that a line was begun anew."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0
        self.cursor_is_hidden = False
        self.frames: list[str] = []

    def take(self, text: str) -> None:
        for code in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", text, re.DOTALL):
            if code == "\r":
                self.frames.append("\n".join(self.lines))
                self.column = 0
            elif code == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif code == "\x1b[1A":
                self.row -= 1
            elif code == "\x1b[2K":
                self.lines[self.row] = ""
            elif code in ("\x1b[?25l", "\x1b[?25h"):
                self.cursor_is_hidden = code[-1] == "l"
            elif code.startswith("\x1b"):
                assert code.endswith("m"), f"not known: {code!r}"
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + code + line[self.column + 1 :]
                self.column += 1


def on_terminal(
    *arguments: str, columns: int = 80, press: bytes = b"", **variables: str
) -> tuple[str, Screen]:
    """What a process of `SHOWS` wrote to a terminal of its own, and the screen then.

    press: is typed once a fourth pair is shown.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", SHOWS, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env | {"TERM": "xterm-256color"} | variables,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    got = b""
    try:
        while part := _read(ours):
            got += part
            if press and b"pair 4 of" in got and got.endswith(b"loader_workers"):
                os.write(ours, press)
                press = b""
        assert child.wait(timeout=240) == 0
    finally:
        child.kill()
        os.close(ours)
    text = got.decode()
    screen = Screen()
    screen.take(text)
    return text, screen


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("columns", [80, 40])
def test_a_table_on_a_terminal_changes_and_is_gone_before_the_answer(columns: int) -> None:
    text, screen = on_terminal(columns=columns)
    for shown in (
        "> fused_optimizer pair 3 of",
        "> tf32            pair 3 of",
        "> tf32            pair 4 of",
    ):
        assert any(shown in frame for frame in screen.frames), shown
    assert any("next: loader_workers" in frame for frame in screen.frames)
    assert "\x1b[32m" in text  # what was kept is green
    assert max(len(line) for frame in screen.frames for line in frame.splitlines()) <= columns - 3
    assert [line for line in screen.lines if line] == ["before", "hotloop: a note ?[31m", "the answer"]  # fmt: skip
    assert not screen.cursor_is_hidden


def test_ctrl_c_leaves_the_terminal_as_it_was() -> None:
    text, screen = on_terminal("--wait", press=b"\x03")
    assert "^C" in text
    assert [line for line in screen.lines if line] == ["before", "hotloop: a note ?[31m", "interrupted"]  # fmt: skip
    assert not screen.cursor_is_hidden


def test_the_cursor_is_not_hidden_while_the_table_is_drawn() -> None:
    """A process that is killed cannot show it again."""
    text, _ = on_terminal()
    hidden = [part.partition("\x1b[?25h")[0] for part in text.split("\x1b[?25l")[1:]]
    assert hidden == [""] * len(hidden)


def test_no_color_is_respected() -> None:
    text, _ = on_terminal(NO_COLOR="1")
    styles = set(re.findall(r"\x1b\[([0-9;]*)m", text))
    assert styles <= {"0", "1", "2"}, "bold and dim are no colours"
    assert "pair 4 of" in text


LINES = re.compile(
    r"before\n0:\d\d of 5:00  item_cache: kept 1.05x \(0.99 to 1.12, 2 pairs\)\n"
    r"0:\d\d of 5:00  fused_optimizer \(2 of 4\): pair 3 of up to 10: tf32\n"
    r"hotloop: a note \?\[31m\n"
    r"0:\d\d of 5:00  fused_optimizer: rejected: slower\n"
    r"(0:\d\d of 5:00  tf32 \(3 of 4\): pair 3 of up to 10: tf32\n){2}"
    r"the answer\n"
)


def test_a_dumb_terminal_and_a_pipe_get_lines_without_control_characters() -> None:
    text, _ = on_terminal(TERM="dumb")
    assert LINES.fullmatch(text.replace("\r\n", "\n")), text
    done = subprocess.run(
        [sys.executable, "-c", SHOWS], capture_output=True, text=True, check=True, timeout=240
    )
    assert LINES.fullmatch(done.stderr), done.stderr
    assert done.stdout == ""


def test_without_a_terminal_there_is_a_line_for_each_fix_and_one_each_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(trial_view.time, "monotonic", lambda: clock[0])
    with trial_view.trial_view() as view:
        for second in range(61):
            tried = TRIED[:1] if second > 12 else ()
            view.show(replace(NOW, tried=tried, note=f"{second} s"))
            clock[0] += 1.0
    assert capsys.readouterr().err == (
        "0:13  item_cache: kept 1.05x (0.99 to 1.12, 2 pairs)\n"
        "0:30  tf32 (3 of 4): pair 3 of up to 10: tf32, 30 s\n"
        "1:00  tf32 (3 of 4): pair 3 of up to 10: tf32, 60 s\n"
    )
