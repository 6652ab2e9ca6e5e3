"""Ends a trial's processes when hotloop itself was killed. Run as a script; standard library only.

A process group is not enough: launchers such as torchrun put their workers into sessions of their
own, and a parent-death signal reaches only direct children. Every process of a trial carries its
token in its environment instead, and on Linux all of them are found by it.

Reads lines from a pipe that only hotloop holds open: `group N` names the process group, `done` ends
the watch. The end of the pipe without `done` means that hotloop is gone.
"""

from __future__ import annotations

import os
import signal
import sys

VARIABLE = "HOTLOOP_TRIAL"
"""Holds the tokens of all trials around a process, outermost first, separated by `:`."""


def members(token: str) -> list[int]:
    """Ids of the living processes whose environment carries `token` (empty outside Linux)."""
    found: list[int] = []
    try:
        with os.scandir("/proc") as listing:
            entries = [entry.name for entry in listing]
    except OSError:
        return found
    for entry in entries:
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read()
        except OSError:  # another user's, or it has just ended
            continue
        for line in environment.split(b"\0"):
            name, _, value = line.partition(b"=")
            if name == VARIABLE.encode() and token.encode() in value.split(b":"):
                found.append(int(entry))
    return found


def send(signal_number: int, token: str, group: int | None) -> None:
    """Signal every process of a trial; those that have ended meanwhile are no error."""
    if group is not None and hasattr(os, "killpg"):
        try:
            os.killpg(group, signal_number)
        except (ProcessLookupError, PermissionError):
            pass
    for process in members(token):
        try:
            os.kill(process, signal_number)
        except (ProcessLookupError, PermissionError):
            pass


def main() -> None:
    token = sys.argv[1]
    group: int | None = None
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "done":
            return
        if word == "group":
            group = int(value)
    hard = getattr(signal, "SIGKILL", signal.SIGTERM)
    for _ in range(3):  # a process may have forked between the listing and the signal
        send(hard, token, group)


if __name__ == "__main__":
    main()
