"""One side of a comparison: a command, and how its steps are seen."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotloop.core.errors import UsageError

RUN_PLACEHOLDER = "{run}"
"""In an argument: replaced by the directory that the process may write its run into."""

Records = Literal["run", "step_clock", "none"]


@dataclass(frozen=True, slots=True)
class Arm:
    """A command to measure. `UsageError` for a name that cannot name a directory, or no command."""

    name: str
    """Letters, digits, `-`, `_` and `.`; names directories and appears in the verdict."""
    command: tuple[str, ...]
    """Program and arguments; `{run}` in an argument becomes a fresh, absolute directory."""
    records: Records
    """`run`: hotloop's own trainer, which writes `{run}/steps.jsonl` and `{run}/census.json` and
    stops by itself. `step_clock`: any Python command, clocked from inside and ended after the last
    counted step. `none`: any command; its wall seconds are the one sample."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables set on top of the session's environment; these win over the isolation's own."""
    workdir: Path | None = None
    """The directory that the command is meant to run in; `None` runs it in an empty directory."""
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    fixes: Mapping[str, Any] = field(default_factory=dict)
    """Techniques that are put into the running process, by name, with their values; needs a
    `step_clock`."""
    toggled: tuple[str, ...] = ()
    """Those of `fixes` that go on and off within the process (`trial.toggling`); `switched` in JSON."""
    comparable: bool = False
    """Seeded: for its losses, not for its speed. Needs a `step_clock`."""
    sandboxed: bool = False
    """Cannot write outside of the copy that it runs in; no effect where it runs in place. `fenced` in JSON."""
    inputs: tuple[Path, ...] = ()
    """Files that the command reads and that decide what it does: other contents make another arm."""
    bounded: bool = False
    """Ended where it takes more memory than is free as it begins, where a control group can be made. Makes no other arm."""
    edited: Mapping[str, bytes] = field(default_factory=dict)
    """Path relative to the working directory -> what that file holds in the trial. The file itself stays."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name):
            do = "use letters, digits, `-`, `_` and `.`, starting with a letter or digit"
            raise UsageError(f"an arm cannot be named {self.name!r}", do=do)
        if not self.command or not self.command[0]:
            raise UsageError(f"arm {self.name!r} has no command")
        if (self.fixes or self.comparable) and self.records != "step_clock":
            what = "has fixes" if self.fixes else "is to be comparable"
            raise UsageError(
                f"arm {self.name!r} {what} and is not a script that is clocked from inside"
            )
        if unknown := set(self.toggled) - set(self.fixes):
            raise UsageError(f"arm {self.name!r} has no {sorted(unknown)[0]!r} to switch")
        if self.edited and self.workdir is None:
            raise UsageError(f"arm {self.name!r} edits files and has no working directory")

    def to_mapping(self) -> dict[str, object]:
        """What makes two arms the same, ready for JSON."""
        return {
            "name": self.name,
            "command": list(self.command),
            "records": self.records,
            "env": dict(sorted(self.env.items())),
            "workdir": str(self.workdir.resolve()) if self.workdir else None,
            "tokens_per_step": self.tokens_per_step,
            "samples_per_step": self.samples_per_step,
            **({"fixes": dict(sorted(self.fixes.items()))} if self.fixes else {}),
            **({"switched": list(self.toggled)} if self.toggled else {}),
            **({"comparable": True} if self.comparable else {}),
            **({"fenced": True} if self.sandboxed else {}),
            "inputs": {str(path): _digest(path) for path in self.inputs},
            **({"edited": digest_of(self.edited)} if self.edited else {}),
        }


def digest_of(files: Mapping[str, bytes]) -> str:
    """SHA-256 of these names and contents."""
    each = [(name, hashlib.sha256(held).hexdigest()) for name, held in sorted(files.items())]
    return hashlib.sha256(json.dumps(each).encode()).hexdigest()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=str(path)) from error


def refuse_missing(arm: Arm) -> None:
    """Raises `UsageError` when the command's program or its working directory is not there."""
    if arm.workdir is not None and not arm.workdir.is_dir():
        raise UsageError("no such working directory", where=str(arm.workdir))
    program = arm.command[0]
    if os.sep in program:
        path = (arm.workdir or Path.cwd()) / program
        if arm.workdir is None and not Path(program).is_absolute():
            raise UsageError(
                f"`{program}` is relative, but arm {arm.name!r} has no working directory",
                do="give an absolute path, or the directory to run in",
            )
        found = path.is_file() and os.access(path, os.X_OK)
    else:
        found = shutil.which(program, path=arm.env.get("PATH", os.environ.get("PATH"))) is not None
    if not found:
        raise UsageError(
            f"cannot run `{program}`: no such program, or it may not be executed",
            where=" ".join(arm.command),
            do="check the spelling, or activate the environment that has it",
        )
