"""A process that runs already: which one trains, how it was started, and samples of its stacks by py-spy."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil

from hotloop.core.errors import EnvironmentFailed, UsageError, not_installed

PER_SECOND = 50
ATTACHING_S = 120.0
"""Beyond the seconds asked for: py-spy has to find its way in a large process."""
LIST_THEM = "`nvidia-smi` and `ps aux` list those that run"


@dataclass(frozen=True)
class LiveProcess:
    pid: int
    started_at: float
    """Seconds since the epoch."""
    directory: str
    """Its working directory."""
    command: str | None
    """`cd DIR && hotloop doctor -- COMMAND`; `None` where its command line does not say it."""
    uses_gpu: bool
    notes: tuple[str, ...]


class Frame(NamedTuple):
    function: str
    """With its class, where the examined Python is 3.11 or newer."""
    file: str
    line: int


Stack = tuple[Frame, ...]
"""The outermost frame first."""


def find_process(pid: int) -> LiveProcess:
    """The process to examine: `pid`, or the lowest rank that it started.

    Raises `UsageError` where there is none, `EnvironmentFailed` where it may not be read.
    """
    if pid == os.getpid():
        raise UsageError(f"PID {pid} is hotloop itself", do=LIST_THEM)
    try:
        named = psutil.Process(pid)
        # The right to sample a process is that to open its memory, of which nothing is read here.
        Path(f"/proc/{pid}/mem").open("rb").close()
        process, notes = _lowest_rank(named)
        return LiveProcess(
            pid=process.pid,
            started_at=process.create_time(),
            directory=process.cwd(),
            command=_command(process),
            uses_gpu=b"libcuda.so" in Path(f"/proc/{process.pid}/maps").read_bytes(),
            notes=notes,
        )
    except (psutil.AccessDenied, PermissionError) as error:
        raise EnvironmentFailed(
            f"not permitted to read the stacks of PID {pid}",
            do="run this as its user; where that is not enough, as root or after "
            "`sudo sysctl kernel.yama.ptrace_scope=0`; in a container: `docker run --cap-add=SYS_PTRACE`",
        ) from error
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError) as error:
        raise UsageError(f"no process {pid} is running", do=LIST_THEM) from error


def sample_stacks(pid: int, seconds: int) -> Mapping[tuple[int, str], tuple[Stack, ...]]:
    """Stacks by PID and thread, of the process and those below it, in the order in which they were taken.

    Ends when the process does. Raises `UsageError` without py-spy, for what is no Python and for what ends at
    once, `EnvironmentFailed` where py-spy fails.
    """
    beside = str(Path(sys.executable).parent)
    program = shutil.which("py-spy", path=beside) or shutil.which("py-spy")
    if program is None:
        raise not_installed("pid", "--pid needs py-spy")
    with TemporaryDirectory(prefix="hotloop-stacks-") as directory:
        file = Path(directory) / "stacks.json"
        words = [program, "record", "--pid", str(pid), "--duration", str(seconds)]
        words += ["--rate", str(PER_SECOND), "--format", "speedscope", "--output", str(file)]
        # It reads while the process runs, and leaves out stacks that changed meanwhile. What waits counts, too.
        words += ["--nonblocking", "--idle", "--threads", "--subprocesses", "--full-filenames"]
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=seconds + ATTACHING_S,
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFailed(f"py-spy did not come to an end with PID {pid}") from error
        if "No python processes found" in done.stderr:
            raise UsageError(f"PID {pid} is no Python process, and none below it is", do=LIST_THEM)
        if done.returncode:
            raise EnvironmentFailed(f"py-spy failed: {done.stderr.strip().partition(chr(10))[0]}")
        threads = stacks_of(json.loads(file.read_text(encoding="utf-8", errors="replace")))
    if not any(threads.values()):
        raise UsageError(f"PID {pid} ended before it was seen", do="examine one that runs longer")
    return threads


def stacks_of(stored: Mapping[str, Any]) -> dict[tuple[int, str], tuple[Stack, ...]]:
    """Stacks by PID and thread, of py-spy's speedscope JSON, without those that were read while they changed."""
    named = stored["shared"]["frames"]
    frames = [Frame(each["name"], each["file"] or "", each["line"] or 0) for each in named]
    # A name from memory that was in change holds zero bytes and the like.
    torn = {each for each in frames if not "".join(each[:2]).isprintable()}
    threads = {}
    for profile in stored["profiles"]:
        if of := re.match(r"Process (\d+).* Thread (\d+)", profile["name"]):
            taken = (
                tuple(frames[number] for number in sample if frames[number].file)
                for sample in profile["samples"]
            )
            threads[int(of[1]), of[2]] = tuple(each for each in taken if torn.isdisjoint(each))
    return threads


def _lowest_rank(named: psutil.Process) -> tuple[psutil.Process, tuple[str, ...]]:
    """The process with the lowest rank where `named` has none and started some; with a note that says so."""
    ranked: dict[int, int] = {}
    if _rank(named) is None:
        for each in named.children(recursive=True):  # parents before what they start
            if (rank := _rank(each)) is not None:
                ranked.setdefault(rank, each.pid)
    if not ranked:
        return named, ()
    chosen, *others = [ranked[rank] for rank in sorted(ranked)]
    note = f"PID {named.pid} starts those that train: examined is {chosen}, the lowest rank"
    also = f"; --pid takes the others, too: {', '.join(map(str, others))}" if others else ""
    return psutil.Process(chosen), (note + also,)


def _rank(process: psutil.Process) -> int | None:
    try:
        rank = process.environ().get("RANK", "")
    except psutil.Error:
        return None
    return int(rank) if rank.isdecimal() else None


def _command(process: psutil.Process) -> str | None:
    """Of a rank that of the Python that started it."""
    if _rank(process) is not None:
        above = next((each for each in process.parents() if _rank(each) is None), process)
        process = above if "python" in "".join(above.cmdline()[:1]) else process
    words = process.cmdline()
    if len(words) < 2:  # a Python that reads its standard input, or that has renamed itself
        return None
    return f"cd {shlex.quote(process.cwd())} && hotloop doctor -- {shlex.join(words)}"
