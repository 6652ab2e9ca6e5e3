"""Trials of a command with other values of its options, where the doctor's are of fixes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hotloop.core.census import Census
from hotloop.core.child import STEP_CLOCK_SAMPLES
from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Diagnosis, Parity
from hotloop.core.step import read_steps
from hotloop.doctor.batch_memory import batch_memory
from hotloop.doctor.confirmation import short_name
from hotloop.doctor.fixes import Fix, most_ratio_of
from hotloop.doctor.training_loader import queue_of
from hotloop.doctor.trial_costs import LEAST_STEPS
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import USUAL_PREFETCH, BatchesAhead, Optimization
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import Beside, SessionResult
from hotloop.tune.options import WORKERS, Option

WITHOUT = "without"
"""The arm of what is kept so far."""
PATIENCE_S, TIMES_EXPECTED = 20.0, 6
"""A trial may take so long, and so many times what is expected of it: a value may hang it."""
LOADER_WORKERS = r"((train|data|(data-?)?loader)-)*((num-?)?n?workers|j)"
"""Options for the workers of the loader that trains, not of an evaluation or of what prepares the data."""


def value_of(option: Option, text: str, diagnosis: Diagnosis, census: Census | None) -> Fix:
    """A value, as the doctor's machinery takes what is tried: `Fix.value` is the option and the text."""
    workers = CATALOGUE[WORKERS[0]] if option.known.techniques == WORKERS else None
    # Workers draw the random numbers of augmentations otherwise; who told the class knows.
    draws = workers.other_draws_in if workers is not None and not option.is_told else None
    parity_class = option.parity_class or "changes_training"
    technique = Optimization(
        *(option.label(text), "", parity_class, ()),
        other_draws_in=draws,
        reshapes=option.reshapes,
        over=option.over,
    )
    fix = Fix(technique, (option, text), tuple(option.asked_by(diagnosis)), None)
    if workers is None or workers.batches_ahead is None or census is None or not text.isdigit():
        return fix
    # Steps that are fed by what workers had ready are faster than any that follow.
    ahead = workers.batches_ahead(census, text)
    if ahead is None:
        return fix
    return replace(fix, queue=queue_of(ahead, census), most_ratio=most_ratio_of(ahead, diagnosis))


def arm_name(name: str) -> str:
    """Fit for an arm and its directory."""
    return short_name(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-."))


@dataclass
class OptionRunner(TrialRunner):
    """Puts values into the command where the doctor puts fixes into the process."""

    options: Sequence[Option] = ()
    with_work: Callable[[Arm], Arm] | None = None
    """Says what a step of an arm's command is; `None`: as `options` say."""
    most_steps: dict[str, int] = field(default_factory=dict)
    """By label: steps that the command makes with a value, where these are fewer."""

    def with_fixes(
        self, name: str, fixes: Sequence[Fix], *, edited: Mapping[str, bytes] = MappingProxyType({})
    ) -> Arm:
        """The command with these values."""
        command, env = self.baseline.command, dict(self.baseline.env)
        for option, text in (fix.value for fix in fixes):
            command, env = option.applied(command, env, text)
        arm = replace(self.baseline, name=arm_name(name), command=command, env=env)
        if self.census is not None and self.census.device == "cpu":  # a GPU refuses by itself
            now = self.baseline.command
            larger = any(option.enlarges(text, now) for option, text in (f.value for f in fixes))
            arm = replace(arm, bounded=larger)
        return (self.with_work or partial(with_work, options=self.options))(arm)

    def reason_too_large(self, fixes: Sequence[Fix]) -> str | None:
        """Why the batches that loader workers have ready with these values do not fit into memory, as far as that is known.

        An option counts where the command's value of it is what the loader that trains was seen to have.
        """
        memory = batch_memory(self.census, self.directory)
        if memory is None:
            return None
        loader, larger = memory.loader, 1.0
        workers, factor = loader.num_workers, loader.prefetch_factor or USUAL_PREFETCH
        for option, text in (fix.value for fix in fixes):
            given = option.given(self.baseline.command)
            if not given or not text.isdigit():
                continue
            number = int(text)
            of_loader = re.fullmatch(LOADER_WORKERS, option.key.rpartition(".")[2])
            if of_loader and given == str(loader.num_workers):
                workers = number
            elif number and "prefetch" in option.key and given == str(loader.prefetch_factor):
                factor = number
            elif number and option.is_batch_size and given == str(loader.batch_size):
                larger = number / int(given)
        return memory.reason_too_large(BatchesAhead(workers, workers * factor), larger)

    def plan_for(self, fixes: Sequence[Fix], *, times: int = 1) -> TrialPlan:
        """With as many steps as the command makes with these values, and the patience that their work needs."""
        plan = super().plan_for(fixes, times=times)
        assert plan is not None  # values need no warm-up of their own
        made = min(self.most_steps.get(fix.name, plan.num_steps) for fix in fixes)
        warmup = plan.warmup_steps if made == plan.num_steps else min(plan.warmup_steps, made // 3)
        works = [work_of(self.with_fixes("values", fixes)), work_of(self.baseline)]
        larger = max(works[0] / works[1], 1.0) if all(works) else 1.0
        timeout_s = PATIENCE_S + TIMES_EXPECTED * larger * self.costs.process_s(made)
        return replace(plan, warmup_steps=warmup, steps=made - warmup, timeout_s=timeout_s)

    def timed(
        self,
        stacked: Sequence[Fix],
        fixes: Sequence[Fix],
        parity: Parity,
        of: str = "",
        others: Sequence[Fix] = (),
        group: Sequence[Fix] = (),
        **how: Any,
    ) -> SessionResult:
        """Pairs of the command with `fixes` against that with `stacked`, over fewer steps where it makes fewer.

        of: begins the name of their place. others: values of the `group` that get pairs in the same rounds. how: of
        `compare`, which says what is raised.
        """
        baseline = self.with_fixes(WITHOUT, stacked) if stacked else self.baseline
        arm = self.with_fixes(of + "-".join(fix.name for fix in fixes), fixes)
        how = {"reserved": self.must_confirm, "parity": parity, **how}
        while True:
            names = tuple(arm_name(each.name) for each in group)
            rounds = Beside(names, tuple(self._planned(baseline, [each]) for each in others))
            directory, _, _ = self._planned(baseline, fixes, arm)
            how |= {"place": directory.name, "parity_class": parity.parity_class}
            try:
                return self.compare(
                    baseline, arm, fixes=fixes, beside=rounds if group else None, **how
                )
            except CommandFailed as error:
                made = _steps_made(error)
                plan = self.plan_for(fixes)
                if error.arm != arm.name or not LEAST_STEPS <= made < plan.num_steps:
                    raise
                self.most_steps |= {fix.name: made for fix in fixes if fix not in stacked}
                others = group = ()  # which make more steps

    def _planned(
        self, baseline: Arm, fixes: Sequence[Fix], arm: Arm | None = None
    ) -> tuple[Path, Arm, TrialPlan]:
        """Where the pairs of an arm lie, it, and their plan."""
        arm, plan = arm or self.with_fixes(fixes[0].name, fixes), self.plan_for(fixes)
        digests = self._digest(baseline, plan.warmup_steps), self._digest(arm, plan.steps)
        place = f"{arm.name}-{''.join(digests)}"
        return self.place_of(place), arm, self.planned_at(place, plan)


def with_work(arm: Arm, options: Sequence[Option]) -> Arm:
    """With the work of a step: samples are counted where DataLoaders give them, whatever the options are called; else, and
    tokens, it is the product of what the command says, where an option changes that."""
    arm = replace(arm, env={**arm.env, STEP_CLOCK_SAMPLES: "1"})
    scaling = [each for each in options if each.known.scales]
    if not scaling:
        return arm
    values = [
        str(each.samples)
        if each.accumulation
        else arm.env.get(each.name) or each.given(arm.command) or ""
        for each in scaling
    ]
    known = all(re.fullmatch(r"[1-9]\d{0,8}", each) for each in values)
    work = math.prod(map(int, values)) if known else None
    if any(each.known.scales == "tokens" for each in scaling):
        return replace(arm, tokens_per_step=work)
    return replace(arm, samples_per_step=work)


def work_of(arm: Arm) -> int:
    """Tokens or samples of its steps; 0 where its command does not say."""
    return arm.tokens_per_step or arm.samples_per_step or 0


def _steps_made(error: CommandFailed) -> int:
    """Of a process that ended well before it had made as many as were asked for; 0 of any other."""
    path = Path(error.where or "").parent / "run" / "steps-0.jsonl"
    return 0 if error.returncode or not path.exists() else sum(1 for _ in read_steps(path))
