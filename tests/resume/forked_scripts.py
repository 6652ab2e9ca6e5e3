"""Scripts forked from a process that holds torch, in place of fresh ones: a fork is killed like any process."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch._dynamo", "hotloop.probe.resume_trace"])


def run(command: list[str], env: dict[str, str], place: Path) -> int:
    """As `resume.kill_and_resume._run`."""
    process = _CONTEXT.Process(target=_become, args=(command[1:], env, str(place / "log.txt")))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _become(arguments: list[str], env: dict[str, str], log: str) -> None:
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.dup2(file, 1)
    os.dup2(file, 2)
    from hotloop.probe import resume_trace
    from hotloop.trial import seeding

    seeding.install_from_environment()
    resume_trace.install_from_environment()
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
