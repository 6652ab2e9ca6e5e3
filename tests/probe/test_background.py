"""Threads of the probe stand still around a fork, go on afterwards, and hold up nobody."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import hotloop
from hotloop.probe import background
from hotloop.probe.background import Background

SOURCE = str(Path(hotloop.__file__).parents[1])
FORKS = """
import os, sys, threading, time, warnings
sys.path.insert(0, sys.argv[1])
from hotloop.probe import background
from hotloop.probe.background import Background, pause_before_forks
assert "torch" not in sys.modules
warnings.simplefilter("error")
background.PATIENCE_S = background.GONE_S = 60.0  # it is in the middle of nothing, but a busy machine lets it wait
turns = []
work = Background("ours", lambda: turns.append(1) or 0.0005)
pause_before_forks(lambda: (work,))
work.start()
for _ in range(40):
    seen = len(turns)
    work.resume()
    while len(turns) == seen:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        os._exit(len(threading.enumerate()) - 1)
    assert os.waitpid(child, 0)[1] == 0
    assert work.is_paused
work.resume()
print(len(turns) > 40, len(threading.enumerate()))
"""


def interpreters() -> list[str]:
    """Those of this machine that warn: by name, and beside pyenv's."""
    found = {shutil.which(f"python3.{minor}") for minor in (12, 13)}
    found |= {str(path) for path in Path.home().glob(".pyenv/versions/3.1[23].*/bin/python3")}
    if sys.version_info >= (3, 12):
        found.add(sys.executable)
    return sorted(each for each in found if each is not None)


@pytest.mark.skipif(not interpreters(), reason="needs Python 3.12 or newer, which warns")
def test_fork_is_not_warned_of_and_the_work_goes_on() -> None:
    ran = 0
    for python in interpreters():
        done = subprocess.run(
            [python, "-c", textwrap.dedent(FORKS), SOURCE],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if "pyenv: " in done.stderr:  # a name without an interpreter behind it
            continue
        ran += 1
        assert done.returncode == 0, (python, done.stderr)
        assert done.stdout.split() == ["True", "2"], python
    assert ran


def test_paused_work_goes_on_where_it_was_and_a_stopped_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its turns are short: what may take longer is to have its turn on the CPU.
    monkeypatch.setattr(background, "PATIENCE_S", 60.0)
    turns: list[float] = []

    def turn() -> float:
        turns.append(time.monotonic())
        return 0.001

    work = Background("work", turn)
    work.start()
    _until(lambda: len(turns) > 2)
    work.pause()
    assert work.is_paused
    assert not _works("work")
    before, cpu_s = len(turns), work.cpu_s
    work.resume()
    _until(lambda: len(turns) > before)
    work.stop()
    _until(lambda: not _works("work"))
    after = len(turns)
    work.pause()
    work.resume()
    assert len(turns) == after
    assert work.cpu_s >= cpu_s > 0


def _works(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_work_that_takes_long_holds_up_no_fork() -> None:
    goes_on = threading.Event()
    began = threading.Event()

    def turn() -> float:
        began.set()
        goes_on.wait()
        return 0.001

    work = Background("slow", turn)
    work.start()
    began.wait()
    work.pause()  # returns, although the turn has not
    assert work.is_paused
    goes_on.set()
    began.clear()
    work.resume()
    assert began.wait(120)
    work.stop()


def test_work_may_fork_itself_and_a_child_has_none() -> None:
    codes: list[int] = []

    def turn() -> None:
        work.pause()  # as the hook would, on this very thread
        codes.append(1)

    work = Background("forks", turn)
    work.start()
    _until(lambda: bool(codes))
    work.forked()
    work.resume()
    assert not work.is_paused


def _until(is_so: object) -> None:
    end = time.monotonic() + 120
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)
