"""A machine whose speed is known because it is made up: step times, losses and the clock come from `Machine`."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.core.census import Census
from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import ParityClass
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor import starting_point, trial_runner
from hotloop.doctor.fix_campaign import run_campaign
from hotloop.doctor.fixes import Fix
from hotloop.doctor.patch import write
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import Optimization
from hotloop.trial import session
from hotloop.trial.arm import Arm
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.sandbox.layered import Storage, storage_for
from hotloop.trial.toggling import ToggleSchedule

ENVIRONMENT = Environment(
    "cpu", 1, None, 2, 2.0, None, "Linux", None, "3.12.1", None, None, None, "0"
)
STEP_S, START_S = 0.1, 2.0
WRITTEN = "train.py"
"""What this file of an arm holds: the names of fixes that are edited into it."""


class Machine:
    """Deals processes: 0.1 s a step, 0.2 % of scatter between them, and what the fixes do."""

    def __init__(self, gain: Callable[[frozenset[str], str], float]) -> None:
        self.gain = gain
        """Of a set of fixes in the session of that name, a ratio."""
        self.other_losses: frozenset[str] = frozenset()
        self.other_once_written: frozenset[str] = frozenset()
        self.wrong_by, self.wrong_from = 1.5, 0
        self.gives_wrong: Callable[[str, str], bool] = lambda fix, place: False
        self.slow_after, self.slow_start_s = 10**6, 0.0
        self.baseline_fails_in = ""
        self.not_applied_in: dict[str, str] = {}
        """Session -> the fix that says nothing there."""
        self.torch: str | None = None
        """The version with which processes run from here on."""
        self.unseeded = False
        """Timed processes learn from other first weights each, as scripts that set no seed do."""
        self.scatter = 0.002
        self.toggleable: frozenset[str] = frozenset()
        """Fixes that say they can go on and off within a process, and do."""
        self.stuck_in = ""
        """The session in which they do not, though they said it."""
        self.threads: tuple[str, ...] = ()
        self.now = 0.0
        self.random = random.Random(1)
        self.places: list[str] = []
        self.finished: dict[Path, Measurement] = {}

    def monotonic(self) -> float:
        return self.now

    def __call__(self, arm: Arm, place: Path, *, plan: Plan, **rest: Any) -> Measurement:
        if place in self.finished:
            return self.finished[place]
        written = frozenset(arm.edited.get(WRITTEN, b"").decode().split())
        fixes = frozenset(arm.fixes) | written
        name = place.parent.name
        self.places.append(f"{name}/{place.name}")
        if not fixes and name == self.baseline_fails_in and place.name.startswith("pair-"):
            raise CommandFailed(
                f"pair 1: `{arm.name}` ended with exit code 1", returncode=1, arm=arm.name
            )
        if arm.fixes:
            (place / "run").mkdir(parents=True)
            silent = self.not_applied_in.get(name) if place.name.startswith("pair-") else None
            lines: list[dict[str, Any]] = [
                {"fix": fix, "applied": True, "what": "it"}
                for fix in frozenset(arm.fixes) - {silent}
            ]
            for fix in arm.fixes:
                if self.gives_wrong(fix, f"{name}/{place.name}"):
                    said = {"fix": fix, "applied": False, "what": "stale items", "wrong": True}
                    lines.append(said)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (place / "run" / "fixes.jsonl").write_text(text)
            turned = [] if name == self.stuck_in else sorted(arm.toggled)
            self._say_turns(place / "run" / "turns.json", fixes, turned)
        luck = self.random.gauss(1.0, self.scatter)
        seconds = STEP_S / self.gain(fixes, name) * luck
        is_wrong = fixes & self.other_losses or written & self.other_once_written
        wrong = self.wrong_by if is_wrong else 1.0
        if self.unseeded and not place.name.startswith("losses-"):
            wrong *= 1 + 0.01 * len(self.places)
        measured = process(seconds, plan, arm.name, wrong, self.wrong_from)
        measured = replace(measured, environment=replace(ENVIRONMENT, torch=self.torch))
        if arm.toggled and name != self.stuck_in:
            off = STEP_S / self.gain(fixes - set(arm.toggled), name) * luck
            measured = self._toggled(measured, rest["schedule"], off)
        if len(self.places) > self.slow_after:
            measured = replace(measured, process_s=(measured.process_s or 0.0) + self.slow_start_s)
        self.now += measured.process_s or 0.0
        self.finished[place] = measured
        place.mkdir(parents=True, exist_ok=True)
        (place / MEASUREMENT_FILE).write_text("{}")
        return measured

    def _say_turns(self, file: Path, fixes: frozenset[str], turned: list[str]) -> None:
        can = sorted(fixes & self.toggleable)
        said = {"can": can, "turned": turned, "children": 0, "threads": self.threads}
        file.write_text(json.dumps(said))

    def _toggled(
        self, measured: Measurement, schedule: ToggleSchedule, off_s: float
    ) -> Measurement:
        """With other times where it is off; steps of one process differ by 1 %."""
        records = [
            replace(each, wall_s=each.wall_s if schedule.is_on(each.step) else off_s)
            for each in measured.records
        ]
        noisy = [
            replace(each, wall_s=each.wall_s * self.random.gauss(1.0, 0.01)) for each in records
        ]
        return replace(measured, records=tuple(noisy))


def process(
    seconds: float, plan: Plan, arm: str, wrong: float = 1.0, wrong_from: int = 0
) -> Measurement:
    records = tuple(
        StepRecord(
            step,
            seconds,
            loss=(wrong if step >= wrong_from else 1.0) / (1 + step),
            tags=("warmup",) * (step < plan.warmup_steps),
        )
        for step in range(plan.warmup_steps + plan.steps)
    )
    census = Census(device="cpu", num_threads=1, start_s=START_S, seen=("loaders",))
    total = START_S + seconds * len(records)
    return Measurement(arm, ("python",), plan, ENVIRONMENT, records, census=census, process_s=total)


def patch_of(edits: Sequence[str], fixes: Sequence[TriedFix], **rest: Any) -> write.Patch:
    """Files in which those of `fixes` are written that have an edit, here `edits`."""
    # A patch is made of what live forms said, in the directory of their trials.
    said = {fix.name for fix in fixes if fix.directory == f"trials/{fix.name}"}
    written = sorted(said & set(edits))
    entries = [replace(fix, patch="edited" if fix.name in edits else "words") for fix in fixes]
    files = {WRITTEN: " ".join(written).encode()} if written else {}
    return write.Patch(files, b"", tuple(entries))


@cache
def storage_below(temporary: Path) -> Storage | None:
    """Asking the kernel takes processes; all runs of the tests lie below one directory."""
    return storage_for(temporary, temporary)


Trying = Callable[..., Ledger]


@pytest.fixture
def trying(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Trying:
    storage = storage_below(tmp_path_factory.getbasetemp())
    monkeypatch.setattr(starting_point, "storage_for", lambda *directories: storage)

    def run(
        machine: Machine, names: Sequence[str], classes: dict[str, ParityClass] | None = None,
        conflicts: dict[str, tuple[str, ...]] | None = None, late: dict[str, int] | None = None,
        seen_steps: int = 60, directory: str = "run",
        of_fixes: dict[str, Any] | None = None, edits: Sequence[str] = (),
        starts: dict[str, float] | None = None,
        returncode: int | None = None, matmul_dtypes: tuple[str, ...] = ("float32",),
        **options: Any,
    ) -> Ledger:  # fmt: skip
        monkeypatch.setattr(write, "patch_for", partial(patch_of, edits))
        monkeypatch.setattr(session, "trial", machine)
        monkeypatch.setattr(trial_runner, "trial", machine)
        monkeypatch.setattr(trial_runner, "time", SimpleNamespace(monotonic=machine.monotonic))
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        fixes = []
        for name in names:
            technique = Optimization(
                name=name,
                summary="",
                parity_class=(classes or {}).get(name, "bitwise"),
                observed=lambda census, value: None,
                settings=(True,),
                conflicts=(conflicts or {}).get(name, ()),
                start_s=(starts or {}).get(name, 0.0),
            )
            monkeypatch.setitem(CATALOGUE, name, technique)
            fixes.append(
                Fix(
                    *(technique, True, ("HL000",), 2.0),
                    warmup_steps=(late or {}).get(name, 0),
                    **(of_fixes or {}),
                )
            )
        seen = process(STEP_S, Plan(5, seen_steps - 5, 60.0), "script")
        assert seen.census is not None
        ledger = run_campaign(
            [sys.executable, "-c", ""],
            fixes,
            replace(
                seen,
                census=replace(seen.census, matmul_dtypes=matmul_dtypes),
                returncode=returncode,
            ),
            directory=tmp_path / directory,
            workdir=work,
            **options,
        )
        untimed = ("rejected", "not_applied", "failed", "not_tried")
        for entry in ledger.fixes:
            assert entry.status in untimed if entry.verdict is None else entry.status != "not_tried"
        return ledger

    return run


def product(**gains: float) -> Callable[[frozenset[str], str], float]:
    def gain(fixes: frozenset[str], session: str) -> float:
        total = 1.0
        for name in fixes:
            total *= gains[name]
        return total

    return gain
