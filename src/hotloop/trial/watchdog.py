"""Ends a trial's processes when hotloop itself was killed. Run as a script; standard library only.

A process group is not enough: launchers such as torchrun put their workers into sessions of their
own, and a parent-death signal reaches only direct children. Every process of a trial carries its
token in its environment instead, and on Linux all of them are found by it.

Reads lines from a pipe that only hotloop holds open: `group N` names the process group, `tree N` a
process that shares hotloop's own group, `done` ends the watch. The end of the pipe without `done`
means that hotloop is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TOKEN_BYTES = 8
TRIAL = "HOTLOOP_TRIAL"
"""Holds the tokens of all trials around a process, outermost first, separated by `:`."""


def members(token: str, *, variable: str = TRIAL) -> list[int]:
    """Ids of the living processes whose environment carries `token` (empty outside Linux)."""
    found: list[int] = []
    for process in _processes():
        for line in _environment(process).split(b"\0"):
            name, _, value = line.partition(b"=")
            if name == variable.encode() and token.encode() in value.split(b":"):
                found.append(process)
    return found


def _environment(process: int) -> bytes:
    """What it was begun with; where it is just beginning its program, that comes a moment later."""
    try:
        for _ in range(500):
            with open(f"/proc/{process}/environ", "rb") as file:
                environment = file.read()
            if environment or not _is_beginning(process):
                return environment
            time.sleep(0.001)
    except OSError:  # another user's, one of the kernel's, or it has just ended
        pass
    return b""


def _is_beginning(process: int) -> bool:
    """Both ends of the environment are the same while the kernel writes it, and the code's come after. Raises `OSError` for one that has no program."""
    os.readlink(f"/proc/{process}/exe")  # noqa: PTH115 - it is up sooner without pathlib
    with open(f"/proc/{process}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    end_of_code, env_start, env_end = words[24], *words[47:49]  # of proc(5)
    return words[0] != b"Z" and (b"0" in (end_of_code, env_start) or env_start != env_end)


def descendants(process: int) -> list[int]:
    """What `process` started, and what that started: for what cleans its environment (Linux)."""
    children: dict[int, list[int]] = {}
    for each in _processes():
        try:
            with open(f"/proc/{each}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if words[0] != b"Z":
            children.setdefault(int(words[1]), []).append(each)
    found: list[int] = []
    waiting = [process]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def _processes() -> list[int]:
    try:
        with os.scandir("/proc") as listing:
            names = [entry.name for entry in listing]
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def has_ended(process: int) -> bool:
    """Whether or not somebody has asked for its exit code."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def send(signal_number: int, token: str, group: int | None) -> None:
    """Signal every process of a trial; those that have ended meanwhile are no error."""
    if group is not None:
        try:
            os.killpg(group, signal_number)
        except (ProcessLookupError, PermissionError):
            pass
    send_each(signal_number, members(token))


def send_each(signal_number: int, processes: list[int]) -> None:
    """Signal these; those that have ended meanwhile are no error."""
    for process in processes:
        try:
            os.kill(process, signal_number)
        except (ProcessLookupError, PermissionError):
            pass


def main() -> None:
    token = sys.argv[1]
    variable = sys.argv[2] if len(sys.argv) > 2 else TRIAL
    group: int | None = None
    tree: int | None = None
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "done":
            return
        if word == "group":
            group = int(value)
        if word == "tree":
            tree = int(value)
    for _ in range(3):  # a process may have forked between the listing and the signal
        if tree is None:
            send(signal.SIGKILL, token, group)
        else:
            found = members(token, variable=variable)
            # Its number may be another's by now; what carries the token is certainly ours.
            below = descendants(tree) if tree in found else []
            send_each(signal.SIGKILL, [*found, *below])


if __name__ == "__main__":
    main()
