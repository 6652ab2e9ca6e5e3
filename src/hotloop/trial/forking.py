"""Processes of a command forked from one that has imported already, instead of fresh ones.

Imports are most of what a short trial takes: 8 of 12 s before the first step with transformers. Two pairs are forked
from each such process, so that what its forks share (where code lies, the seed of hashes) is drawn anew several times
before anything is decided.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.core.child import OF_A_TRIAL
from hotloop.core.errors import CommandFailed
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.trial import fork_server, watchdog
from hotloop.trial.arm import Arm
from hotloop.trial.guard import Guard

PAIRS_OF_A_SERVER = 2
READY_TIMEOUT_S = 120.0
"""For its imports, and for each fork: whatever a library does at one."""
NAP_S = 0.01
"""Between looks whether a fork has ended, where the kernel does not tell."""
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True)
class Imports:
    """What a command was seen to import from installed packages."""

    modules: Mapping[str, str]
    """Name -> file, in the order of their import."""
    variables: Mapping[str, str | None]
    """What the script sets, or takes away, before it imports torch."""

    @classmethod
    def read(cls, file: Path) -> Imports | None:
        """`None` where none were recorded, or the record does not tell all."""
        try:
            held = parse_object(read_bytes(file))
        except (OSError, ValueError):
            return None
        modules, variables = held.get("modules"), held.get("variables")
        if not isinstance(modules, dict) or not isinstance(variables, dict):
            return None
        return cls(modules, variables)


def may_fork(arms: Sequence[Arm]) -> bool:
    """Whether these are timed runs of one Python script, which differ in nothing that is read before it begins.

    Arguments are read by it: what it imports from installed packages sees those of the first.
    """
    arm = arms[0]
    program, *arguments = arm.command
    is_python = _PYTHON.fullmatch(Path(program).name) is not None
    is_script = bool(arguments) and (not arguments[0].startswith("-") or arguments[0] == "-m")
    is_script &= arguments[1:2] != ["torch.distributed.run"]  # it starts fresh ones
    is_timed = arm.records == "step_clock" and not any(each.comparable for each in arms)
    is_usual = sys.platform == "linux" and "PYTHONSAFEPATH" not in {**os.environ, **arm.env}
    is_one = all(_read_early(each) == _read_early(arm) for each in arms)
    return is_python and is_script and is_timed and is_usual and is_one


def _read_early(arm: Arm) -> object:
    env = {name: value for name, value in arm.env.items() if name not in OF_A_TRIAL}
    begins = arm.command[: 3 if "-m" in arm.command[1:2] else 2]
    return begins, arm.workdir, env


@dataclass(slots=True)
class ForkServers:
    """One after another, each for the processes of some pairs; none any more once one is refused, or `give_up` said so."""

    imports: Imports | None = None
    """`None`: nobody saw what the command imports, and there are none."""
    directory: Path = Path()
    """Where they keep what they need, while they run."""
    given_up: str | None = None
    """Why processes are fresh."""
    own_s: float = 0.0
    """What one takes to be ready, for each process that it serves."""
    num_served: int = 0
    """Pairs."""
    _current: ForkServer | None = None
    _pairs_left: int = 0

    def for_pair(
        self,
        arms: Sequence[Arm],
        environment: Callable[[Path], Mapping[str, str]],
        timeout_s: float = READY_TIMEOUT_S,
    ) -> ForkServer | None:
        """For the processes of a pair; `None` where they had better be fresh. environment, timeout_s: see `ready`."""
        if not self._pairs_left:
            self.close()
        server = self.ready(arms, environment, timeout_s)
        if server is not None:
            self._pairs_left -= 1
            self.num_served += 1
        return server

    def ready(
        self,
        arms: Sequence[Arm],
        environment: Callable[[Path], Mapping[str, str]],
        timeout_s: float = READY_TIMEOUT_S,
    ) -> ForkServer | None:
        """The one that is there, or a new one. environment: that of a process with such a directory. timeout_s: to be ready."""
        if self.imports is None or self.given_up is not None or not may_fork(arms):
            return None
        if self._current is None:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                place = Path(tempfile.mkdtemp(dir=self.directory))
                self._current = ForkServer.started(
                    *(arms[0], self.imports, environment(place), place, timeout_s)
                )
                self._pairs_left = PAIRS_OF_A_SERVER
                self.own_s = self._current.warm_up_s / (2 * PAIRS_OF_A_SERVER)
            except (OSError, NotReady) as why:
                self.give_up(str(why))
        return self._current

    def give_up(self, why: str) -> None:
        """Processes are fresh from here on."""
        self.given_up = why
        self.close()

    def close(self) -> None:
        """End the one that is there."""
        if self._current is not None:
            self._current.close()
            self._current = None
        if self.imports is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


NO_SERVERS = ForkServers()


class NotReady(Exception):
    """No process of a command can be forked, and why."""


@dataclass(slots=True)
class ForkServer:
    """A process that has imported what a command imports."""

    directory: Path
    warm_up_s: float
    """What each fork saves, about."""
    _process: subprocess.Popen[bytes]
    _socket: socket.socket
    _token: str
    _guard: Guard
    _answers: Any = field(init=False)

    def __post_init__(self) -> None:
        self._answers = self._socket.makefile("r", encoding="utf-8")

    @classmethod
    def started(
        cls,
        arm: Arm,
        imports: Imports,
        environment: Mapping[str, str],
        directory: Path,
        timeout_s: float = READY_TIMEOUT_S,
    ) -> ForkServer:
        """Raises `NotReady`, and `OSError` where it cannot be started."""
        outer = environment.get(watchdog.TRIAL)
        token = secrets.token_hex(watchdog.TOKEN_BYTES)  # each fork writes its own over it
        env = {**environment, watchdog.TRIAL: f"{outer}:{token}" if outer else token}
        for name, value in imports.variables.items():
            env.pop(name, None)
            env |= {} if value is None else {name: value}
        own, theirs = socket.socketpair()
        began = time.monotonic()
        preload = directory / "preload.json"
        preload.write_text(json.dumps(dict(imports.modules)), encoding="utf-8")
        program, *arguments = arm.command
        guard = Guard(token)
        try:
            with theirs, (directory / "log.txt").open("wb") as log:
                process = subprocess.Popen(
                    [program, fork_server.__file__, str(theirs.fileno()), str(preload), *arguments],
                    cwd=arm.workdir,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            own.close()
            guard.release()
            raise
        server = cls(directory, 0.0, process, own, token, guard)
        try:
            guard.tell(f"group {process.pid}")
            own.settimeout(max(timeout_s, 0.01))  # with 0 it would not wait at all
            said = server.answer()
            if not isinstance(said, dict) or "ready" not in said:
                is_told = isinstance(said, dict)
                raise NotReady(said["refused"] if is_told else "it ended at its imports")
        except BaseException as error:  # Ctrl-C, too
            server.close()
            if isinstance(error, OSError):
                raise NotReady(f"it was not ready after {timeout_s:g} s") from error
            raise
        server.warm_up_s = time.monotonic() - began
        return server

    def start(
        self,
        command: Sequence[str],
        *,
        sandbox: Path | None,
        env: Mapping[str, str],
        **options: Any,
    ) -> Forked:
        """As `process.start` with these options. Raises `CommandFailed` where this process does not fork."""
        asked = {
            "command": list(command[1:]),
            "sandbox": sandbox and str(sandbox),
            "env": dict(env),
            "cwd": str(options["cwd"]),
        }
        text = json.dumps(asked).encode() + b"\n"
        process: object = None
        try:
            with suppress(OSError):
                socket.send_fds(self._socket, [text[:1]], [options["stdout"], options["stdout"]])
                self._socket.sendall(text[1:])
                process = self.answer()
        finally:
            if not isinstance(process, int):  # a fork that it does not tell of goes with it
                self.close()
        if not isinstance(process, int):
            raise CommandFailed(
                "the process that trials are forked from does not answer",
                returncode=-signal.SIGKILL,
            )
        return Forked(process, self)

    def answer(self) -> Any:
        """What it says next; `None` where it has ended."""
        line = self._answers.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        """End it, with what its imports started, and forks that do not carry a token of their own yet."""
        self._answers.close()
        self._socket.close()
        # Once it was waited for, its number may be another's.
        group = self._process.pid if self._process.returncode is None else None
        for _ in range(3):  # a process may have forked between the listing and the signal
            watchdog.send(signal.SIGKILL, self._token, group)
        self._process.wait()
        self._guard.release()


@dataclass(slots=True)
class Forked:
    """A process that was forked, as `subprocess.Popen` has it."""

    pid: int
    _server: ForkServer
    returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            if not watchdog.has_ended(self.pid):
                return None
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; -9 where the server ended with it. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            # Reading the answer has a time-out of its own, after which nothing more can be read.
            while not watchdog.has_ended(self.pid):
                if time.monotonic() >= deadline:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
                time.sleep(NAP_S)
            try:
                code = self._server.answer()
            except (OSError, ValueError):  # it hangs, or was ended within its answer
                code = None
            self.returncode = code if isinstance(code, int) else -int(signal.SIGKILL)
        return self.returncode

    def kill(self) -> None:
        """End it, unless it has ended."""
        if self.returncode is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
