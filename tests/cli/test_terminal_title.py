"""Progress in the title of a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from hotloop.cli.progress import KEEP, RESTORE, title_progress

DRAWS = """
from hotloop.cli.progress import title_progress
with title_progress() as progress:
    progress("step 34", 34, None, "84 ms a step")
"""


def drawn(term: str) -> bytes:
    """What a terminal receives."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", DRAWS],
            stderr=theirs,
            check=True,
            timeout=240,
            env={**os.environ, "TERM": term},
        )
        os.write(theirs, b".")  # so that reading never waits
        return os.read(ours, 10_000).removesuffix(b".")
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_title_says_the_step_and_is_as_before_at_the_end() -> None:
    title = "\x1b]0;hotloop: step 34, 84 ms a step\x07"
    assert drawn("xterm-256color").decode() == KEEP + title + RESTORE


def test_a_terminal_without_a_title_gets_nothing() -> None:
    assert drawn("dumb") == b""


def test_no_terminal_gets_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with title_progress() as progress:
        progress("step 34", 34, None, "84 ms a step")
    assert capfd.readouterr() == ("", "")
