"""verify-resume of somebody's command = run it -> kill it in copies of its directory, continue -> compare each step."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import hotloop
from hotloop.core.child import RESUME_TRACE
from hotloop.core.errors import CommandFailed, HotloopError, UsageError
from hotloop.core.file_locks import locked
from hotloop.core.measurement import Plan
from hotloop.core.progress import Progress, silent
from hotloop.doctor.command import refuse_unexaminable, script_name
from hotloop.doctor.starting_point import start_of, weak_isolation
from hotloop.report.numbers import listed
from hotloop.resume.causes import COMPARED, causes, difference, unlike
from hotloop.resume.result import Difference, Resumed
from hotloop.resume.trace import Steps, Trace, read_trace, saved, saved_otherwise
from hotloop.trial.arm import Arm
from hotloop.trial.measure import Workdir, trial
from hotloop.trial.process import tail
from hotloop.trial.sandbox.layered import remove_tree

SAVES = 3  # the uninterrupted run ends two steps after so many
SECONDS = (
    240.0  # of steps, after which one save is enough; without any it goes on for as long again
)
TIMEOUT_S = 7200.0
START = "import sys; sys.path.append({!r}); from hotloop.resume.kill_and_resume import main; main()"

Aim = dict[str, Any]  # where to kill: after a `step`, or in a `call` of a save, the `group`th


def verify_command(
    command: Sequence[str],
    resume: str | None = None,
    *,
    kills: int = 3,
    steps: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    keep: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Resumed:
    """Run, kill, continue, compare; a rerun goes on after an interruption.

    Raises `UsageError` for what cannot be verified, `CommandFailed` where the command, or what continues it, fails.
    """
    try:
        commands = tuple(command), tuple(shlex.split(resume) if resume is not None else command)
    except ValueError as error:
        raise UsageError(f"--resume-cmd cannot be split: {error}", where=resume) from error
    for each in commands:
        refuse_unexaminable(each, os.environ)
    asked = sha256(json.dumps([commands, steps, kills, seed]).encode()).hexdigest()[:8]
    directory = (out or Path("runs") / f"verify-resume-{script_name(command)}-{asked}").resolve()
    with locked(directory):
        mark = directory / f"asked-{asked}"
        if not mark.exists() and any(each.name != ".lock" for each in directory.iterdir()):
            raise UsageError("this directory holds something else", where=str(directory))
        if mark.exists() and mark.read_text():  # the script may be another by now
            for name in ("before", "uninterrupted", *(f"kill-{n}" for n in range(kills + 1))):
                remove_tree(directory / name)
        mark.write_text("")
        workdir = start_of(directory, Path.cwd())
        if (weak := weak_isolation(workdir)) is not None:
            warn(weak.partition(";")[0])
        try:
            found = _Verification(directory, workdir, commands, progress).verify(kills, steps, seed)
        except HotloopError:
            mark.write_text("failed, and only the logs were kept")
            raise
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if out is None:
        with contextlib.suppress(OSError):  # other runs are there
            directory.parent.rmdir()
    return replace(found, kept=str(directory) if keep else None)


@dataclass
class _Verification:
    directory: Path
    workdir: Workdir
    commands: tuple[tuple[str, ...], tuple[str, ...]]  # that begins, and that continues
    progress: Progress

    def verify(self, kills: int, steps: int | None, seed: int) -> Resumed:
        plan = {"saves": sys.maxsize if steps else SAVES, "seconds": SECONDS}
        plan["stop"] = steps or sys.maxsize
        (reference,) = self._run("uninterrupted", [plan])
        self._check(reference)
        # Where it ended by itself, what continues it should end there, too.
        stop = reference.made + (not reference.end)
        plan = {"saves": sys.maxsize, "seconds": TIMEOUT_S, "stop": stop}
        found: list[Difference] = []
        notes, moments, lost = list[str | None](), Counter[str](), list[int]()
        unsure, compared = set[str](), 0
        for number, aims in enumerate(_arms(reference, kills, seed), 1):
            if found and "step" in aims[0]:
                continue  # another kill like the one before
            traces = self._run(f"kill-{number}", [*({**plan, "kill": aim} for aim in aims), plan])
            expected = {**reference.steps}
            unsure |= {e for e in COMPARED if unlike(expected, traces[0].steps, e) is not None}
            unsure |= {"moments of steps and saves"} if traces[0].end != "killed" else set()
            for place, (before, trace) in enumerate(pairwise(traces)):
                moments[before.moment] += 1
                expected |= before.steps
                whole = saved(traces[: place + 1], aims[place].get("group"))
                differences, note = self._judged(trace, expected, before, whole, unsure)
                if not differences and not unsure:
                    differences, other = _saved(trace, traces[0], reference)
                    notes.append(other)
                known = {each.what for each in found}
                found += [each for each in differences if each.what not in known]
                notes.append(note)
                lost += [before.made - trace.first] if trace.first is not None else []
                compared += len(trace.steps)
                if differences:
                    break
        if unsure:
            notes.append(f"not compared, differs without any kill, too: {listed(sorted(unsure))}")
        if not any("samples" in update for step in reference.steps.values() for update in step):
            notes.append("what it trains on was not seen: no module with weights was called")
        if reference.end == "stopped":
            notes.append(
                f"its end was not looked at: it was stopped after step {reference.made}, so a resume that makes more or fewer steps in all is not noticed"
            )
        first, second, *_ = [*saved([reference]), 0]
        return Resumed(
            run=" ".join(self.commands[0]),
            bit_identical=not found and not unsure,
            kills=moments.total(),
            kills_by_moment=dict(moments),
            steps=reference.made,
            every_steps=abs(second - first),
            steps_lost_max=max(lost, default=0),
            steps_lost_mean=sum(lost) / max(len(lost), 1),
            seed=seed,
            compared={"steps": compared},
            differences=tuple(sorted(found, key=lambda each: (each.do is None, each.step is None))),
            reproducible=None if found else not unsure,
            notes=tuple(dict.fromkeys(filter(None, notes))),
        )

    def _run(self, name: str, plans: list[dict[str, Any]]) -> list[Trace]:
        """The command, and what continues it, in one sandbox; what an earlier call has done stays."""
        commands = [self.commands[0], *self.commands[1:] * (len(plans) - 1)]
        start = START.format(str(Path(hotloop.__file__).resolve().parent.parent))
        spec = json.dumps([*zip(commands, plans, strict=True)])
        words = (sys.executable, "-I", "-S", "-c", start, spec)
        place, run = self.directory / name, self.directory / name / "run"
        env = {RESUME_TRACE: str(run)}
        trial(
            Arm(name, words, "none", env=env, workdir=Path.cwd(), sandboxed=True),
            place,
            plan=Plan(0, 1, TIMEOUT_S),
            seed="",
            cache=self.directory / "cache",
            workdir=self.workdir,
            what=name,
            tick=lambda seconds: self.progress(name.replace("-", " "), 0, None, f"{seconds:.0f} s"),
        )
        ran = (run / str(number) for number in range(len(plans)))
        return [read_trace(each) for each in ran if each.exists()]

    def _check(self, trace: Trace) -> None:
        """Raises where nothing can be continued."""
        if trace.failed:
            what, log = "the command failed, without any kill", str(trace.log)
            raise CommandFailed(what, where=log, do=tail(trace.log), returncode=trace.code)
        do = "give it options with which it saves more often, or let it make more with --steps N"
        if trace.first is None:
            notes = trace.log.with_name("notes.txt")
            what = "no step was seen: nothing updated weights, or what it continues here was done already"
            do = notes.read_text("utf-8") if notes.exists() else tail(trace.log)
        elif not trace.saves:
            what = f"it saved nothing in {trace.made} steps (by torch.save, safetensors or hotloop.checkpoint)"
        elif saved([trace])[0] >= trace.made:
            what = f"it saves at its end alone, after step {trace.made}: nothing is left to train from there"
        else:
            return
        raise UsageError(what, where=" ".join(self.commands[0]), do=do)

    def _judged(
        self, trace: Trace, expected: Steps, before: Trace, whole: list[int], unsure: set[str]
    ) -> tuple[list[Difference], str | None]:
        """What is wrong with a process that continues; whole: the saves that it could continue from."""
        at = "in the middle of a save" if before.moment == "save" else f"after step {before.made}"
        what, log = f"killed {at}, it cannot be continued", str(trace.log)
        if trace.failed and (before.moment != "save" or trace.steps):
            raise CommandFailed(what, where=log, do=tail(trace.log), returncode=trace.code)
        if trace.failed:
            last_line = tail(trace.log).splitlines()[-1].strip()[:120]
            return [difference("continuing", None, f"{what}: {last_line}")], None
        if not trace.steps:
            detail = f"{what}: it ends without a step, as if nothing were left to train"
            return [difference("steps", None, detail)], tail(trace.log)
        found, note = causes(trace, expected, newest=max(whole, default=0), unsure=unsure)
        last = max(expected) + 1
        if trace.made != last and trace.end != "killed":
            ends = f"ends after step {trace.made}" if trace.made < last else "goes on"
            detail = f"it {ends}, and the uninterrupted run ends after step {last}"
            found.append(difference("steps", trace.made, detail))
        if len(whole) > 1 and 0 < (trace.first or 0) <= whole[-2]:
            note = f"killed {at}, it continued from step {trace.first}, although step {whole[-1]} was saved"
        return found, note


def _saved(trace: Trace, killed: Trace, reference: Trace) -> tuple[list[Difference], str | None]:
    """What no step shows and later saves hold: an average of the weights is a difference, a number may be a time, and is a note."""
    varies = {name for _, name, _ in saved_otherwise(killed, reference)}
    found = [each for each in saved_otherwise(trace, reference) if each[1] not in varies]
    found.sort(key=lambda each: not each[2])
    for step, name, in_tensors in found[:1]:
        detail = f"{name} is not what the uninterrupted run saves then"
        if in_tensors:
            return [difference("saved", step, detail)], None
        return [], f"after step {step}, {detail}: restore it, too, unless it is a time or a path"
    return [], None


def _arms(reference: Trace, kills: int, seed: int) -> list[list[Aim]]:
    """When to kill in each training, and again in what continues it.

    Kills in a step come just before the next save: all steps since the one before are made twice, and compared.
    """
    saves = [steps for steps in reference.saves.values() if steps[0] < reference.made]
    ends = [*(steps[0] for steps in saves[1:]), reference.made]
    generator = random.Random(seed)
    arms: list[list[Aim]] = []
    while (left := kills - sum(map(len, arms))) > 0:
        if len(arms) % 2 and len(saves) > 1:
            group = generator.randrange(1, len(saves)) if len(arms) > 1 else 1
            call, fraction = generator.randint(1, len(saves[group])), generator.uniform(0.1, 0.9)
            arms.append([{"group": group, "call": call, "fraction": fraction}])
        else:
            place = generator.randrange(len(saves)) if arms else 0
            num = 2 if left > 2 else 1  # one more in what continues
            arms.append([{"step": step} for step in ends[place : place + num]])
    return arms
