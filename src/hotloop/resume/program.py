"""verify-resume = train without interruption -> train again with kills -> compare, bit by bit."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.file_locks import locked
from hotloop.core.files import write_atomically, write_json
from hotloop.core.progress import Progress, silent
from hotloop.core.settings import Settings, store_settings
from hotloop.core.step import steps_name
from hotloop.core.untrusted import object_lines
from hotloop.resume import compare
from hotloop.resume.compare import records_of, taken_by
from hotloop.resume.kills import Pace, Session
from hotloop.resume.result import Difference, OtherTopology, Resumed
from hotloop.resume.short_run import Aim, aims, shared_by, short_settings

CLOSE = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 2e-2, "fp16": 2e-2}
"""Difference of a weight, over the largest weight, that another order of sums may make in a short run."""

EARLIEST = Aim("step", step=0, latest_step=0, fraction=0.0)
"""In the first step."""


def verify_resume(
    source: Path,
    *,
    overrides: tuple[str, ...] = (),
    kills: int = 20,
    steps: int | None = None,
    seed: int = 0,
    ranks: int = 1,
    out: Path | None = None,
    keep: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Resumed:
    """Train the short run without and with kills, and compare; a rerun continues after an interruption.

    Raises `UsageError`, and `CommandFailed` where the training fails without any kill.
    """
    settings = short_settings(source, overrides, steps=steps)
    shared, config = shared_by(settings, ranks), settings.config
    asked = f"{config.digest()} {kills} {seed} {ranks}"
    name = f"verify-resume-{config.name}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
    directory = (out or Path("runs") / name).resolve()
    with locked(directory):
        _refuse_other(directory, asked)
        every = int(config.checkpoint.every_steps)
        warn(
            f"trains {config.train.steps} steps of its own in {directory}, with the schedule shortened to "
            f"them and checkpoints {every} apart"
        )
        trial = _Trial(directory, settings, progress, num_aims=kills)
        pace = trial.uninterrupted("reference")
        failure = trial.killed(aims(kills, steps=config.train.steps, every=every, seed=seed), pace)
        found = trial.compared(failure, run=str(source), seed=seed)
        if found.differences and failure is None:
            trial.uninterrupted("reference-again")
            found = replace(found, reproducible=not trial.differences("reference-again", ()))
        if ranks > 1:
            found = replace(found, other_topology=trial.continued_by(ranks, shared, pace))
        write_json(directory / "resumed.json", replace(found, kept=str(directory)))
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return replace(found, kept=str(directory) if keep else None)


def _refuse_other(directory: Path, asked: str) -> None:
    """Raises `UsageError` where the directory is of another verification, or of something else."""
    plan = directory / "verify.txt"
    there = plan.read_text("utf-8") if plan.is_file() else ""
    if there != asked and any(each.name != ".lock" for each in directory.iterdir()):
        what = "a verification with other settings" if there else "something else"
        raise UsageError(f"this directory holds {what}", where=str(directory), do="choose another")
    write_atomically(plan, asked.encode())


@dataclass
class _Trial:
    """The trainings of one verification, in directories of their own below one."""

    directory: Path
    settings: Settings
    progress: Progress
    num_aims: int
    _num_shown: int = field(default=0, init=False)

    def _begin(self, what: str) -> None:
        self.progress(what, self._num_shown, self.num_aims + 2, "")
        self._num_shown += 1

    def _session(self, name: str) -> Session:
        return Session(self.directory / name)

    def _command(self, name: str, settings: Settings | None = None, *launcher: str) -> list[str]:
        config, out = self.directory / f"{name}.yaml", self.directory / name
        store_settings(settings or self.settings, config)
        words = ["train", str(config), "--out", str(out), "--record-samples"]
        return [sys.executable, *launcher, "-m", "hotloop", *words]

    def _done(self, what: str) -> list[dict[str, Any]]:
        """What an interrupted verification has done."""
        path = self.directory / "done.jsonl"
        lines = [line for _, line in object_lines(path)] if path.exists() else []
        return [line[what] for line in lines if isinstance(line, dict) and what in line]

    def _add(self, **done: object) -> None:
        with (self.directory / "done.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(done) + "\n")

    def uninterrupted(self, name: str) -> Pace:
        """Train to the end in one go, unless that was done."""
        if not self._done(name):
            self._begin("training without interruption")
            shutil.rmtree(self.directory / name, ignore_errors=True)
            session = self._session(name)
            session.run(self._command(name))
            self._add(**{name: asdict(session.pace())})
        return Pace(**self._done(name)[0])

    def killed(self, aims: list[Aim], pace: Pace) -> Difference | None:
        """Train with these kills. Returns what kept it from being continued, if anything did."""
        command, records = self._command("killed"), self.directory / "killed" / steps_name(0)
        for number in range(len(self._done("kill")), len(aims) + 1):
            if self._done("end"):
                break
            aim = aims[number] if number < len(aims) else None
            self._begin("training to the end" if aim is None else f"until kill {number + 1}")
            session = self._session("killed")
            try:
                moment = session.run(command, aim, pace)
                if moment is None and number == 0 and aims:  # over before it was hit: once more
                    shutil.rmtree(session.directory)
                    session = self._session("killed")
                    moment = session.run(command, EARLIEST, pace)
            except CommandFailed as error:
                return Difference("continuing", None, f"after kill {number}: {error}")
            if session.start_s is not None:  # the reference may have prepared the text, too
                pace = replace(pace, start_s=min(pace.start_s, session.start_s))
            if records.exists():  # of steps that will be made again
                shutil.copyfile(records, self.directory / f"seen-{number}.jsonl")
            self._add(**({"kill": moment} if moment else {"end": True}))
        return None

    def differences(self, name: str, seen: tuple[Path, ...]) -> list[Difference]:
        """Between a training and the reference; seen: what was recorded before it ended."""
        reference, other = self.directory / "reference", self.directory / name
        taken = taken_by(reference)[0].samples
        records = [records_of(path) for path in (*seen, other / steps_name(0))]
        states = [compare.final_state(each, max(taken) + 1) for each in (reference, other)]
        found = compare.compare_samples(taken, taken_by(other))
        found += compare.compare_steps(records_of(reference / steps_name(0)), records)
        found.sort(key=lambda each: each.step or 0)  # stable: causes stay before what they cause
        return found + compare.compare_states(*states)

    def compared(self, failure: Difference | None, *, run: str, seed: int) -> Resumed:
        """The reference beside the training that was killed."""
        seen = tuple(self.directory.glob("seen-*.jsonl"))
        found = [failure] if failure is not None else self.differences("killed", seen)
        taken = taken_by(self.directory / "killed")
        lost = compare.steps_lost(taken)
        moments = Counter(map(str, self._done("kill")))
        config = self.settings.config
        return Resumed(
            run=run,
            bit_identical=not found,
            kills=moments.total(),
            kills_by_moment=dict(moments),
            steps=config.train.steps,
            every_steps=int(config.checkpoint.every_steps),
            steps_lost_max=max(lost, default=0),
            steps_lost_mean=sum(lost) / max(moments.total(), 1),
            seed=seed,
            compared={
                "steps": sum(len(each.samples) for each in taken),
                "samples": sum(len(s) for each in taken for s in each.samples.values()),
            },
            differences=tuple(found),
        )

    def continued_by(self, ranks: int, shared: Settings, pace: Pace) -> OtherTopology:
        """Killed in the middle, and continued by several processes."""
        name, steps = f"ranks-{ranks}", self.settings.config.train.steps
        reference, directory = self.directory / "reference", self.directory / name
        self._begin(f"{ranks} processes")
        shutil.rmtree(directory, ignore_errors=True)
        middle = Aim("step", steps // 2, steps, 0.5)
        if self._session(name).run(self._command(name), middle, pace) is None:
            what = "a run of one process came to its end before it could be killed"
            raise CommandFailed(what, do="give more --steps", returncode=0)
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        self._session(name).run(self._command(name, shared, *launcher))
        parts = [taken_by(directory, rank)[-1] for rank in range(ranks)]
        first = parts[0].first_step
        together = {s: [x for part in parts for x in part.samples[s]] for s in range(first, steps)}
        expected = taken_by(reference)[0].samples
        one, two = (compare.final_state(each, steps) for each in (reference, directory))
        assert one is not None and two is not None, "both came to their end"  # noqa: PT018
        apart = compare.weights_apart(one, two)
        config = self.settings.config
        limit = CLOSE.get(config.train.precision, CLOSE["bf16"])
        return OtherTopology(
            ranks=ranks,
            from_step=first,
            samples_identical=all(expected[step] == both for step, both in together.items()),
            weight_difference=apart,
            close=None if config.model.dropout else apart <= limit,
        )
