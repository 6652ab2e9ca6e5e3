"""Somebody's own command, as the doctor ran it: `doctor.json`."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

COMMAND_RUN_SCHEMA = "hotloop.doctor/1"
COMMAND_RUN_FILE = "doctor.json"

TYPED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that are given with a command."""

Ended = Literal["by_itself", "failed", "enough_steps", "interrupted"]


Killed = Literal["yes", "probably", "no"]
"""Whether the kernel killed a process for its memory, as its counts say."""


@dataclass(frozen=True, slots=True)
class CommandRun:
    """Written when the command starts, and whole again when it has ended."""

    command: tuple[str, ...]
    workdir: str
    started_at: float
    """Seconds since the epoch."""
    hotloop: str
    steps: int | None = None
    """Counted steps after which it is ended, where that was asked for."""
    seconds: float | None = None
    """Seconds of counted steps after which it is ended; `None`: `steps` decides, or it runs to its own end."""
    ended: Ended | None = None
    """`None`: it still runs, or the doctor was ended before it."""
    returncode: int | None = None
    """Its own; negative is the signal that ended it. `None`: not known, or hotloop ended it."""
    wall_s: float | None = None
    """From its start to its end."""
    left_running: tuple[int, ...] = ()
    """Processes that it started and that went on after its end."""
    reads_input: bool = False
    """It was seen to read its standard input, a file or a pipe, which no trial has."""
    killed_for_memory: Killed | None = None
    """Where it failed: whether the kernel killed it, or a process that it started, for memory; `None`: not known."""
    variables: Mapping[str, str] | None = None
    """Environment variables that change speed, as hotloop was started with them; `None`: an older version did not store them."""
    runs_on: Mapping[str, str] | None = None
    """The program, Python, driver and GPUs when it was examined; `None`: an older version did not store them."""
    of_a_block: bool = False
    """It was looked at from inside, by `hotloop.watch`, whose block went on where enough was seen."""
    schema: str = COMMAND_RUN_SCHEMA

    @property
    def line(self) -> str:
        """The command as it is typed; of a notebook its name."""
        return self.command[0] if len(self.command) == 1 else shlex.join(self.command)

    def again(self, words: Sequence[str]) -> str:
        """These words of hotloop as a line for a shell, with the variables that this command was given."""
        variables = self.variables or {}
        given = (f"{name}={variables[name]}" for name in TYPED if name in variables)
        return shlex.join([*given, *words])


def describe_end(returncode: int, killed: Killed | None = None) -> str:
    """`ended with exit code 3` or `was killed by SIGKILL, ...`. killed: whether that was for memory."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    name = signal_name(returncode)
    return f"was killed by {name}{kill_hint(name, killed)}"


def kill_hint(name: str, killed: Killed | None) -> str:
    """What the name of a signal does not say."""
    return f"; {_KILL_HINTS[killed]}" if name == "SIGKILL" else ""


_KILL_HINTS: Mapping[Killed | None, str] = {
    "yes": "that was the kernel, for its memory",
    "probably": "that was probably the kernel, for its memory",
    "no": "that was not the kernel, for memory: its count of such kills did not grow",
    None: "the system does that when memory runs out",
}


def signal_name(returncode: int) -> str:
    """`SIGKILL` of -9."""
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
