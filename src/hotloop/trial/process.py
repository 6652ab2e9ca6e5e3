"""One fresh process with all it starts: run, time, and end it whole."""

from __future__ import annotations

import os
import re
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.files import storing
from hotloop.hardware.telemetry import OtherPrograms
from hotloop.trial import watchdog
from hotloop.trial.forking import Forked
from hotloop.trial.guard import Guard
from hotloop.trial.memory_group import MemoryGroup

GRACE_S = 5.0
"""Seconds between asking a process to end and ending it."""
TIMED_OUT = 124
"""Return code reported for a command that ran past its time, as timeout(1) does."""
TAIL_LINES = 12
_LAUNCHER = re.compile(r"torch[./]distributed[./]elastic.*(Sending process|failed \(exitcode)")
"""Begins what torchrun prints once a rank has failed."""
_RAISED = re.compile(r"(\[rank\d+\]: )Traceback")
_KILLED = re.compile(r"\brank +: (\d+) (?:.*\n){3} *traceback : (Signal (?!15 )\d+ \(\w+\))")

Process = subprocess.Popen[bytes] | Forked
Tick = Callable[[float], None]
"""Called about once a second with the seconds since the process started."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended."""

    returncode: int
    """Negative: the signal that ended it."""
    wall_s: float
    """From just before it was started until it was seen to have ended."""
    started_at: float
    """Seconds since the epoch."""
    other_programs: float | None = None
    """As in `Measurement`."""


def run_process(
    command: Sequence[str],
    *,
    workdir: Path,
    env: Mapping[str, str],
    log: Path,
    timeout_s: float,
    name: str,
    tick: Tick | None = None,
    begin: Callable[..., Process] | None = None,
    group: MemoryGroup | None = None,
) -> Finished:
    """Run `command` to its end, stdout and stderr into `log`. begin: `start`, or one that forks it. group: holds it.

    However this returns or raises, no process of the command is left. Raises `CommandFailed` after
    `timeout_s`, `UsageError` when the command cannot be started, `EnvironmentFailed` when the log
    cannot be written. `KeyboardInterrupt` passes through once everything has ended. A return code
    other than 0 is not an error here.
    """
    token = secrets.token_hex(watchdog.TOKEN_BYTES)
    outer = env.get(watchdog.TRIAL)
    child_env = {**env, watchdog.TRIAL: f"{outer}:{token}" if outer else token}
    with storing(log, "write the log"):
        output = log.open("wb")
    process: Process | None = None
    polite = True
    with output:
        guard = Guard(token)
        try:
            started_at, began = time.time(), time.perf_counter()
            process = (begin or start)(
                command,
                cwd=workdir,
                env=child_env,
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C reaches hotloop alone, which decides
            )
            guard.tell(f"group {process.pid}")
            if group is not None:
                group.take(process.pid)
            others = OtherPrograms(process.pid)
            if not _wait(process, began, timeout_s, tick, others):
                raise CommandFailed(
                    f"`{name}` was ended: it had not finished after {timeout_s:g} s",
                    where=str(log),
                    do=f"see whether it hangs; else have it make fewer steps. {tail(log)}",
                    returncode=TIMED_OUT,
                )
            wall_s = time.perf_counter() - began
            polite = False  # what is left now has outlived its main process
            return Finished(process.wait(), wall_s, started_at, others.share)
        finally:
            _end_all(process, token, GRACE_S if polite else 1.0)
            guard.release()


def tail(log: Path, num_lines: int = TAIL_LINES) -> str:
    """The last lines of a log as part of an error text."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65_536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "Its log could not be read."
    # A progress bar rewrites its line; only what it showed last is of use.
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
    lines = _of_first_failure([line[:300] for line in lines if line.strip()])[-num_lines:]
    if not lines:
        return "It printed nothing."
    return "Its last lines:\n" + "\n".join(f"    {line}" for line in lines)


def _of_first_failure(lines: list[str]) -> list[str]:
    """What the rank printed that failed first, without a launcher's report; all lines where nothing tells which."""
    report = next((n for n, line in enumerate(lines) if _LAUNCHER.search(line)), len(lines))
    if killed := _KILLED.search("\n".join(lines[report:])):
        return [*lines[:report], f"rank {killed[1]} was ended by {killed[2]}"]
    # The others fail after it: it has printed why before it ends.
    first = next(filter(None, map(_RAISED.match, lines[:report])), None)
    return [line for line in lines[:report] if first is None or line.startswith(first[1])] or lines


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """`Popen` with these options. Raises `UsageError` when it cannot be started."""
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        raise UsageError(
            f"cannot run `{command[0]}`: {error.strerror}",
            where=str(error.filename or options.get("cwd", command[0])),
            do="check the command, and that its program may be executed",
        ) from error


def ended_within(process: Process, seconds: float) -> bool:
    """Wait for its end. Where the kernel can tell, without the naps of Popen.wait: up to 50 ms, in the sample."""
    if process.poll() is not None:
        return True
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        handle = None
    if handle is None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
    try:
        ended = bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
    if ended:
        process.wait()
    return ended


def _wait(
    process: Process, began: float, timeout_s: float, tick: Tick | None, others: OtherPrograms
) -> bool:
    """Wait for the end; `False` when `timeout_s` passed first."""
    while (left_s := timeout_s - (time.perf_counter() - began)) > 0:
        others.look()
        if ended_within(process, min(1.0, left_s)):
            return True
        if tick is not None:
            tick(time.perf_counter() - began)
    return False


def _end_all(process: Process | None, token: str, grace_s: float) -> None:
    """End every process of the trial: asked first, then made to. A second Ctrl-C skips the asking."""
    group = process.pid if process else None
    if not _alive(process, token):
        return
    try:
        if process is None or process.poll() is None:
            watchdog.send(signal.SIGTERM, token, group)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if not _alive(process, token):
                return
            time.sleep(0.05)
    finally:
        for _ in range(3):  # a process may have forked between the listing and the signal
            if _alive(process, token):
                watchdog.send(signal.SIGKILL, token, group)
        if process is not None:
            process.kill()
            process.wait()


def _alive(process: Process | None, token: str) -> bool:
    if process is not None and process.poll() is None:
        return True
    if watchdog.members(token):
        return True
    # Where there is no /proc to search. With one, a zombie that nobody reaps would look alive here.
    if process is None or Path("/proc/self").is_dir():
        return False
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
