"""Trials of a command with other values of its options, in place of the doctor's fixes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hotloop.core.child import STEP_CLOCK_SAMPLES
from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Diagnosis, Parity, ParityClass
from hotloop.core.step import read_steps
from hotloop.doctor.confirmation import short_name
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import LEAST_STEPS
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import Optimization
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import SessionResult
from hotloop.tune.options import Option

PATIENCE_S, TIMES_EXPECTED = 20.0, 6
"""A trial may take so long, and so many times what is expected of it: a value may hang it."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an option: what stands for a fix's value."""

    option: Option
    text: str


def value_of(option: Option, text: str, diagnosis: Diagnosis) -> Fix:
    """A value, as the doctor's machinery takes what is tried."""
    techniques = () if option.known is None else option.known.techniques
    workers = CATALOGUE["loader_workers"] if "loader_workers" in techniques else None
    technique = Optimization(
        name=option.label(text),
        summary="",
        parity_class=option.parity_class or "changes_training",
        settings=(),
        # Workers draw the random numbers of augmentations otherwise; who told the class knows.
        other_draws_in=workers.other_draws_in if workers and not option.is_told else None,
    )
    codes = {code for name in techniques for code in CATALOGUE[name].answers}
    asking = tuple(each.code for each in diagnosis.findings if each.code in codes)
    gain = option.promise(diagnosis) if asking else None
    return Fix(technique, Value(option, text), asking, gain)


def arm_name(name: str) -> str:
    """Fit for an arm and its directory."""
    return short_name(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-."))


@dataclass
class OptionRunner(TrialRunner):
    """Puts values into the command where the doctor puts fixes into the process."""

    options: Sequence[Option] = ()
    most_steps: dict[str, int] = field(default_factory=dict)
    """By label: steps that the command makes with it, of those that make fewer."""

    def with_fixes(
        self,
        name: str,
        fixes: Sequence[Fix],
        *,
        edited: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Arm:
        """The command with these values; the work of its steps where an option changes that."""
        command, env = self.baseline.command, dict(self.baseline.env)
        for fix in fixes:
            command, env = fix.value.option.applied(command, env, fix.value.text)
        work = work_of(self.options, self.baseline.command, fixes)
        return replace(
            self.baseline,
            name=arm_name(name),
            command=command,
            env={**env, **work.env},
            **work.amounts,
        )

    def plan_for(self, fixes: Sequence[Fix], *, times: int = 1) -> TrialPlan | None:
        """With as many steps as the command makes with these values, and the patience that their work needs."""
        plan = super().plan_for(fixes, times=times)
        assert plan is not None  # values need no warm-up of their own
        made = min((self.most_steps.get(fix.name, plan.num_steps) for fix in fixes), default=0)
        if made < plan.num_steps:
            warmup = min(plan.warmup_steps, made // 3)
            plan = replace(plan, warmup_steps=warmup, steps=made - warmup)
        larger = math.prod(_times_larger(self, fix) for fix in fixes)
        expected_s = max(larger, 1.0) * self.costs.process_s(plan.num_steps)
        return replace(plan, timeout_s=PATIENCE_S + TIMES_EXPECTED * expected_s)

    def timed(
        self, stacked: Sequence[Fix], fixes: Sequence[Fix], place: str, parity: Parity, **how: Any
    ) -> SessionResult:
        """Pairs of the command with `fixes` against that with `stacked`, over fewer steps where it makes fewer.

        how: of `compare`. Raises `CommandFailed`.
        """
        baseline = self.with_fixes("without", stacked) if stacked else self.baseline
        arm = self.with_fixes(place, fixes)
        parity_class: ParityClass = parity.parity_class or "changes_training"
        while True:
            plan = self.plan_for(fixes)
            assert plan is not None
            at = f"{arm.name}-{self._digest(baseline, plan.warmup_steps)}{self._digest(arm, plan.steps)}"
            try:
                return self.compare(
                    baseline, arm, fixes=fixes, place=at, parity_class=parity_class, parity=parity, **how
                )  # fmt: skip
            except CommandFailed as error:
                made = _steps_made(error)
                if error.arm != arm.name or not LEAST_STEPS <= made < plan.num_steps:
                    raise
                self.most_steps |= {each.name: made for each in fixes if each not in stacked}


@dataclass(frozen=True, slots=True)
class Work:
    """What a step of an arm holds."""

    amounts: Mapping[str, Any]
    """Fields of `Arm`."""
    env: Mapping[str, str]


def work_of(options: Sequence[Option], command: Sequence[str], fixes: Sequence[Fix]) -> Work:
    """Samples are counted where DataLoaders give them; else, and of tokens, the product of the options' values."""
    scaling = [each for each in options if each.scales]
    if not scaling:
        return Work({}, {})
    chosen = {fix.value.option.key: fix.value.text for fix in fixes}
    values = [chosen.get(each.key) or each.given(command) or "" for each in scaling]
    counted = not any(each.scales == "tokens" for each in scaling)
    amount = "samples_per_step" if counted else "tokens_per_step"
    known = all(re.fullmatch(r"[1-9]\d{0,8}", each) for each in values)
    return Work(
        {amount: math.prod(map(int, values))} if known else {},
        {STEP_CLOCK_SAMPLES: "1"} if counted else {},
    )


def _times_larger(runner: OptionRunner, fix: Fix) -> float:
    option = fix.value.option
    values = (fix.value.text, option.given(runner.baseline.command) or "")
    if not option.scales or not all(re.fullmatch(r"[1-9]\d{0,8}", each) for each in values):
        return 1.0
    return int(values[0]) / int(values[1])


def _steps_made(error: CommandFailed) -> int:
    """Of a process that ended well before it had made as many as were asked for; 0 of any other."""
    path = Path(error.where or "").parent / "run" / "steps-0.jsonl"
    if error.returncode or not path.exists():
        return 0
    return sum(1 for _ in read_steps(path))
