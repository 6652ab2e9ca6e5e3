"""Somebody's command in their own terminal: signals, endings, what is left of it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.trial import attached
from hotloop.trial.attached import Attached, Heard, run_attached
from processes import alive, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")

# hotloop, as a process that has a terminal and can be interrupted or killed.
HOTLOOP = """
import json, os, sys
from pathlib import Path
from hotloop.trial import attached
here = Path(sys.argv[1])
attached.INTERRUPT_GRACE_S, attached.GRACE_S = map(float, sys.argv[3:])
attached.FORWARD_AFTER_S = 0.5
env = {**os.environ, "TEST_TOKEN": str(here)}
with attached.listening() as heard:
    end = attached.run_attached(
        [sys.executable, "-S", "-c", sys.argv[2], str(here)], env=env, token=("TEST_TOKEN", str(here)),
        heard=heard, has_enough=lambda: False, started=lambda pid: (here / "pid").write_text(str(pid)),
        tick=lambda seconds: heard.signals and (here / "heard").touch(),
        say=lambda text: print(text, file=sys.stderr, flush=True))
(here / "end").write_text(json.dumps([end.returncode, end.was_ended, list(heard.signals)]))
"""
IN_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Becomes a command in the foreground of the terminal that is its stdin."""

READY = "import sys, time, signal, os; from pathlib import Path; here = Path(sys.argv[1])\n"
COUNTS_INTERRUPTS = (
    READY
    + """
count = 0
def one_more(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, one_more)
(here / "ready").touch()
while not count:
    time.sleep(0.02)
time.sleep(1.5)  # as long as saving takes: thrice as long as it waits to pass a signal on
(here / "count").write_text(str(count))
"""
)
DEAF = (
    READY
    + """
import subprocess
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                         start_new_session=True, env={"CLEAN": "1"})
signal.signal(signal.SIGTERM, lambda *_: (here / "asked").touch())
(here / "child").write_text(str(child.pid))
(here / "ready").touch()
time.sleep(600)
"""
)


def is_attended(directory: Path) -> bool:
    """Whether the command has begun, and hotloop, which may come later, would tell who was sent a signal."""
    return (directory / "ready").exists() and (directory / "pid").exists()


def start(
    directory: Path, source: str, *, grace_s: float = 600.0, asked_s: float = 600.0
) -> subprocess.Popen[bytes]:
    """`grace_s` after an interruption it is asked to end, and `asked_s` after that made to."""
    started = subprocess.Popen(
        [sys.executable, "-c", HOTLOOP, str(directory), source, str(grace_s), str(asked_s)],
        start_new_session=True,
    )
    assert wait_for(lambda: is_attended(directory))
    return started


def in_terminal(directory: Path, source: str) -> tuple[subprocess.Popen[bytes], int]:
    """The same in the foreground of a new terminal; and the terminal's other end."""
    terminal, theirs = pty.openpty()
    hotloop = [sys.executable, "-c", HOTLOOP, str(directory), source, "600", "600"]
    started = subprocess.Popen(
        [sys.executable, "-S", "-c", IN_TERMINAL, *hotloop],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    assert wait_for(lambda: is_attended(directory))
    return started, terminal


def attach(
    source: str,
    directory: Path,
    *,
    program: str = sys.executable,
    enough: Callable[[], bool] = lambda: False,
) -> Attached:
    return run_attached(
        [program, "-S", "-c", source, str(directory)],
        env={**os.environ, "TEST_TOKEN": str(directory)},
        token=("TEST_TOKEN", str(directory)),
        heard=Heard(),
        has_enough=enough,
        started=lambda process: None,
        tick=lambda seconds: None,
        say=lambda text: None,
    )


def test_its_exit_code_is_its_own(tmp_path: Path) -> None:
    end = attach("raise SystemExit(7)", tmp_path)
    assert (end.returncode, end.was_ended, end.left_running) == (7, False, ())


def test_it_has_the_process_group_that_it_would_have(tmp_path: Path) -> None:
    attach(READY + "(here / 'group').write_text(str(os.getpgrp()))", tmp_path)
    assert (tmp_path / "group").read_text() == str(os.getpgrp())


def test_a_program_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-program"):
        attach("", tmp_path, program="no-such-program")


@pytest.mark.parametrize("how", ["ctrl-c", "signal to hotloop alone"])
def test_an_interruption_in_a_terminal_reaches_it_once_and_it_has_time_to_save(
    tmp_path: Path, how: str
) -> None:
    started, terminal = in_terminal(tmp_path, COUNTS_INTERRUPTS)
    try:
        if how == "ctrl-c":
            os.write(terminal, b"\x03")
        else:
            started.send_signal(signal.SIGINT)
        assert started.wait(120) == 0
        assert (tmp_path / "count").read_text() == "1"
        assert (tmp_path / "end").read_text() == "[0, false, [2]]"
    finally:
        started.kill()
        started.wait()
        os.close(terminal)


def test_a_signal_to_hotloop_alone_is_passed_on(tmp_path: Path) -> None:
    started = start(tmp_path, COUNTS_INTERRUPTS)
    started.send_signal(signal.SIGINT)
    assert started.wait(120) == 0
    assert (tmp_path / "count").read_text() == "1"


def test_a_signal_to_the_whole_group_reaches_it_once(tmp_path: Path) -> None:
    """As of Jupyter, without a terminal."""
    started = start(tmp_path, COUNTS_INTERRUPTS)
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(120) == 0
    assert (tmp_path / "count").read_text() == "1"


def test_what_ignores_signals_is_ended_with_what_it_started(tmp_path: Path) -> None:
    started = start(tmp_path, DEAF, grace_s=0.7, asked_s=0.7)
    started.send_signal(signal.SIGINT)
    assert started.wait(120) == 0
    assert (tmp_path / "end").read_text() == "[-9, true, [2]]"
    assert not alive(int((tmp_path / "pid").read_text()))
    # Killed, but nobody waits for it: it ends when it is its turn.
    assert wait_for(lambda: not alive(int((tmp_path / "child").read_text())))


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    started = start(tmp_path, DEAF)
    started.send_signal(signal.SIGINT)
    assert wait_for((tmp_path / "heard").exists)  # two that come at once would be one
    started.send_signal(signal.SIGINT)
    assert wait_for((tmp_path / "asked").exists)
    started.send_signal(signal.SIGINT)  # and the third skips asking politely
    assert started.wait(120) == 0
    assert wait_for(lambda: not alive(int((tmp_path / "child").read_text())))


def test_kill_9_of_hotloop_leaves_nothing_behind(tmp_path: Path) -> None:
    started = start(tmp_path, DEAF)
    started.kill()
    started.wait()
    assert wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))
    assert wait_for(lambda: not alive(int((tmp_path / "child").read_text())))


LEAVES_A_CHILD = READY + (
    "import subprocess\n"
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True)\n"
    "(here / 'child').write_text(str(child.pid))"
)


def test_what_outlives_a_command_that_ended_is_left_running_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "LINGER_S", 0.3)
    end = attach(LEAVES_A_CHILD, tmp_path)
    child = int((tmp_path / "child").read_text())
    try:
        assert end.left_running == (child,)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_after_enough_steps_nothing_is_left(tmp_path: Path) -> None:
    end = attach(LEAVES_A_CHILD, tmp_path, enough=lambda: True)
    assert end.left_running == ()
    assert wait_for(lambda: not alive(int((tmp_path / "child").read_text())))


def test_what_cannot_be_attended_any_more_is_ended(tmp_path: Path) -> None:
    def enough() -> bool:
        if (tmp_path / "child").exists():
            raise FileNotFoundError("the directory has gone")
        return False

    source = (
        f"{READY}(here / 'pid').write_text(str(os.getpid()))\n{LEAVES_A_CHILD}\ntime.sleep(600)"
    )
    with pytest.raises(FileNotFoundError, match="the directory has gone"):
        attach(source, tmp_path, enough=enough)
    left = [int((tmp_path / name).read_text()) for name in ("pid", "child")]
    try:
        assert wait_for(lambda: not any(map(alive, left)), limit_s=20)
    finally:
        for each in filter(alive, left):
            os.kill(each, signal.SIGKILL)
