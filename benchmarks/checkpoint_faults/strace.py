"""The system calls of one thread, as strace sees them, and what it does to one of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "open,openat,creat,write,pwrite64,writev,pwritev,ftruncate,truncate,fallocate,fsync,fdatasync,sync_file_range,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,chmod,fchmod,fchmodat,"
    "copy_file_range,sendfile,flock"
)
"""What a thread asks of the disk; reads change nothing."""


@dataclass(frozen=True)
class Call:
    """A system call of the traced thread."""

    name: str
    number: int
    """Among those of its name, from 1."""
    text: str
    result: str

    @property
    def place(self) -> str:
        """The call and its file, whatever the random part of its name."""
        paths = re.findall(r'"([^"]*)"|<([^>]*)>', self.text)
        named = [one or two for one, two in paths if (one or two).startswith("/")]
        short = Path(named[-1]) if named else Path("-")
        tail = f"{short.parent.name}/{short.name}"
        tail = re.sub(r"(step-\d{8})-[0-9a-f]{8}", r"\1", tail)
        tail = re.sub(r"(\.[a-z.]+\.)[a-z0-9_]{8}$", r"\1*", tail)
        return f"{self.name} {tail}"


_LINE = re.compile(r"^(\w+)\((.*)\)\s+= (.+)$")


def read_calls(log: Path) -> list[Call]:
    calls, seen = [], dict[str, int]()
    for line in log.read_text(errors="replace").splitlines():
        found = _LINE.match(line) or re.match(r"^(\w+)\((.*?)\)?\s+(= \?|<unfinished).*$", line)
        if found is None or found[1] not in CALLS.split(","):
            continue
        seen[found[1]] = seen.get(found[1], 0) + 1
        calls.append(Call(found[1], seen[found[1]], found[2], found[3]))
    return calls


class Strace:
    """Traces one thread, and does to its calls what `inject` says."""

    def __init__(
        self, thread: int, log: Path, *, inject: str | None = None, strings: int = 0
    ) -> None:
        """strings: bytes of what is written that the log shows."""
        more = ["-e", f"inject={inject}"] if inject else []
        self._process = subprocess.Popen(
            ["strace", "-y", "-s", str(strings or 300), "-o", str(log), "-e", f"trace={CALLS}"]  # noqa: RUF005
            + ["-e", "signal=none", *more, "-p", str(thread)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if "attached" not in line:
            raise SystemExit(f"strace cannot attach to a process here: {line.strip()}")

    def end(self) -> None:
        """Detach, or see that its process has ended."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()


def strace_works() -> str | None:
    """Why it does not, or `None`."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(
        ["strace", "-o", os.devnull, "-e", "inject=getppid:retval=7", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"
