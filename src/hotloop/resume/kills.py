"""Runs a training to its end, or kills it with SIGKILL at the moment that was aimed at."""

from __future__ import annotations

import os
import secrets
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hotloop.core.errors import CommandFailed
from hotloop.core.step import samples_name, steps_name
from hotloop.core.untrusted import parse_object
from hotloop.probe.recorder import newest_steps
from hotloop.resume.short_run import Aim, Moment
from hotloop.trial import watchdog
from hotloop.trial.guard import Guard
from hotloop.trial.process import tail

LOOK_EVERY_S = 0.001


def launch(command: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, its output added to this file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """How long parts of a training take, for aiming: until the first step, a step, the longest save."""

    start_s: float
    step_s: float
    save_s: float


@dataclass
class Session:
    """One process of a training. What it does is seen in its samples.jsonl and its checkpoints."""

    directory: Path
    steps_begun: int = 0
    start_s: float | None = None
    _saving: dict[str, float] = field(default_factory=dict)
    _save_s: float = 0.0

    def run(
        self, command: Sequence[str], aim: Aim | None = None, pace: Pace | None = None
    ) -> Moment | None:
        """Returns when it was killed; `None` where it came to its end before. Raises `CommandFailed`."""
        log = self.directory.with_suffix(".log")
        token = secrets.token_hex(watchdog.TOKEN_BYTES)
        outer = os.environ.get(watchdog.TRIAL)
        env = {**os.environ, watchdog.TRIAL: f"{outer}:{token}" if outer else token}
        self._samples = self.directory / samples_name(0)
        self._offset = self._samples.stat().st_size if self._samples.exists() else 0
        self._left = self._uncommitted()
        guard = Guard(token)  # ends it where this process is gone
        process, due = None, None
        try:
            self._began_at = time.monotonic()
            process = launch(command, env, log)
            guard.tell(f"group {process.pid}")
            while (code := process.poll()) is None:
                self._look()
                if aim is not None and pace is not None and due is None:
                    due = self._due(aim, pace)
                if due is not None and time.monotonic() >= due:
                    break
                time.sleep(LOOK_EVERY_S if due is None else LOOK_EVERY_S / 10)
        finally:
            if process is not None:
                watchdog.send(signal.SIGKILL, token, process.pid)
                while watchdog.members(token):  # torchrun's processes have sessions of their own
                    watchdog.send(signal.SIGKILL, token, None)
                process.wait()
            guard.release()
        self._look()
        if code:
            what = f"the training ended with exit code {code}"
            raise CommandFailed(what, where=str(log), do=tail(log), returncode=code)
        if code is None:
            return "save" if self._saving else "start" if self.start_s is None else "step"
        return None

    def pace(self) -> Pace:
        """Once it has come to its end."""
        assert self.start_s is not None, "it ended well, so that it made steps"
        steps = newest_steps(self.directory / steps_name(0))
        # The median: the first step may compile for minutes, and a kill that waits as long comes too late.
        return Pace(self.start_s, statistics.median(each.wall_s for each in steps), self._save_s)

    def _due(self, aim: Aim, pace: Pace) -> float | None:
        """When to kill, once that is known."""
        if (
            aim.moment == "start"
        ):  # not the imports, which touch nothing: the last part of the start
            return self._began_at + pace.start_s * (0.7 + 0.4 * aim.fraction)
        if self.steps_begun <= aim.step:
            return None
        if aim.moment == "save" and self.steps_begun <= aim.latest_step:
            if not self._saving:
                return None
            return max(self._saving.values()) + aim.fraction * pace.save_s
        return time.monotonic() + aim.fraction * pace.step_s

    def _look(self) -> None:
        """See which step it is at, and what it saves."""
        now = time.monotonic()
        new = b""
        if self._samples.exists():
            with self._samples.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        for line in reversed(new.split(b"\n")):
            try:
                step = parse_object(line).get("step")
            except ValueError:  # empty, or still being written
                continue
            if isinstance(step, int):
                self.steps_begun = step + 1
                self.start_s = self.start_s or now - self._began_at
                self._offset += new.rfind(b"\n")
                break
        saving = self._uncommitted() - self._left
        for name in self._saving.keys() - saving:
            self._save_s = max(self._save_s, now - self._saving.pop(name))
        self._saving |= dict.fromkeys(saving - self._saving.keys(), now)

    def _uncommitted(self) -> set[str]:
        """Step directories without a manifest."""
        directories = (self.directory / "checkpoints").glob("step-*")
        return {each.name for each in directories if not (each / "manifest.json").exists()}
