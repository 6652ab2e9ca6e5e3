"""A script that ran with live forms as the doctor's trials run it, and the patch that follows."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import warm_python
from hotloop.core.census import Census
from hotloop.core.child import APPLIED_FILE
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun
from hotloop.core.files import write_json
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Measurement, Plan
from hotloop.doctor.patch.write import Patch, patch_for, write_patch
from hotloop.hardware.environment import read_host
from hotloop.trial.isolation import copy_workdir, list_workdir
from hotloop.trial.measure import MEASUREMENT_FILE, store_measurement
from script_runs import variables


@dataclass
class Tried:
    """A working directory in which fixes were tried."""

    workdir: Path
    directory: Path
    printed: Any
    """What the script printed last with the fixes, as JSON."""
    ledger: Ledger
    target: Path
    census: Census | None = None
    started_at: float = 0.0
    confirmed: str | None = None
    """Digest of the files that confirming processes ran, empty for none; `None`: those that would be written."""

    def write(self) -> Ledger:
        return self.patch()[0]

    def patch(self) -> tuple[Ledger, Patch]:
        """With the patch written, as the doctor does it."""
        self.directory.mkdir(exist_ok=True)
        run = CommandRun(
            command=self.ledger.command,
            workdir=str(self.workdir),
            started_at=self.started_at,
            hotloop="0",
            ended="by_itself",
        )
        tried = patch_for(
            self.ledger.fixes,
            workdir=self.workdir,
            started_at=self.started_at,
            census=self.census,
            directory=self.directory,
        )
        digest = tried.digest if self.confirmed is None else self.confirmed
        ledger = replace(self.ledger, together_patched=digest or None)
        write_json(self.directory / COMMAND_RUN_FILE, run)
        measured = Measurement("script", run.command, Plan(0, 0, 0.0), read_host(), census=self.census)  # fmt: skip
        store_measurement(self.directory / MEASUREMENT_FILE, measured)
        os.utime(self.directory / MEASUREMENT_FILE, (0, 0))  # the examination is over for long
        return write_patch(ledger, self.directory, target=self.target)

    def diff(self) -> str:
        """With the patch written; its text."""
        self.write()
        return self.target.read_text()

    def apply(self, program: Sequence[str] = ("git", "apply")) -> None:
        """In the working directory, as its owner would."""
        with self.target.open("rb") as file:
            done = subprocess.run(
                [*program], cwd=self.workdir, stdin=file, capture_output=True, text=True
            )
        assert done.returncode == 0, done.stdout + done.stderr


def run_once(
    workdir: Path, *arguments: str, fixes: dict[str, Any] | None = None, into: Path | None = None
) -> Any:
    """What it prints last, as JSON."""
    environment = (variables(fixes, into=into) if fixes else dict(os.environ)) | {
        "OMP_NUM_THREADS": "1"
    }
    if not fixes:
        environment.pop("PYTHONPATH", None)
    done = warm_python.run(arguments, env=environment, cwd=workdir)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def kept(name: str, value: Any) -> TriedFix:
    return TriedFix(name, value, "kept", "faster, and learns the same", directory=f"trials/{name}")


@pytest.fixture
def run_script() -> Callable[..., Any]:
    """`run_script(directory, "train.py")`: what it prints last, as JSON."""
    return run_once


@pytest.fixture
def tried(tmp_path: Path) -> Callable[..., Tried]:
    """`tried({"train.py": source}, fixes)`: run in a copy, with all of the fixes, as in a trial."""

    def make(files: dict[str, str | bytes], fixes: dict[str, Any], *arguments: str) -> Tried:
        workdir, directory = tmp_path / "their project", tmp_path / "doctor"
        for name, content in files.items():
            path = workdir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        printed = None
        for name in fixes:
            trial = directory / "trials" / name / f"pair-01-a-{name}"
            (trial / "run").mkdir(parents=True)
            copy_workdir(list_workdir(workdir, without=directory), trial / "work")
            printed = run_once(
                trial / "work", *(arguments or ("train.py",)), fixes=fixes, into=trial / "run"
            )
            assert (trial / "run" / APPLIED_FILE).exists()
        ledger = Ledger(
            command=("python", "train.py"),
            fixes=tuple(kept(name, value) for name, value in fixes.items()),
            kept=tuple(fixes),
            together=None,
            warmup_steps=3,
            steps=10,
            wall_s=1.0,
            budget_s=None,
        )
        target = tmp_path / "fixes.diff"
        return Tried(workdir, directory, printed, ledger, target, started_at=time.time() + 1)

    return make
