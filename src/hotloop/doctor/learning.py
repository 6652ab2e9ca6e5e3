"""Whether the command learns the same with a fix: runs of their own, in which random numbers repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.measurement import Measurement
from hotloop.doctor.applied import why_not_applied, why_wrong
from hotloop.doctor.fixes import Fix
from hotloop.doctor.starting_point import what_trials_lack
from hotloop.doctor.switched import can_be_switched
from hotloop.doctor.trial_costs import LOSS_RUNS
from hotloop.doctor.workbench import Workbench
from hotloop.doctor.writes import WritesOutside, outside_path, refused_outside
from hotloop.judge.parity import judge_parity
from hotloop.judge.repeatable import why_not_repeatable
from hotloop.optimizations.catalogue import parity_of_live
from hotloop.trial.arm import Arm


@dataclass(frozen=True, slots=True)
class Learned:
    """What a run with fixes showed."""

    parity: Parity
    not_applied: str | None = None
    """Why one of them was not seen to take effect."""
    wrong: str | None = None
    """What one of them gave the script that it does not give itself; `parity` is `different` then."""
    switchable: frozenset[str] = frozenset()
    """Those that can go on and off within a process, where that says what they bring."""
    slower_start_s: float = 0.0
    """Seconds that the process took longer than one as it is: compiling, starting workers."""


class Learning:
    """Losses of the command as it is, and of runs with fixes against them."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._known: dict[frozenset[str], Learned] = {}
        self._baselines: dict[int, list[Measurement]] = {}
        first = self._baseline(bench.loss_steps)
        bench.correct_costs(first[-1])
        self.not_comparable = why_not_repeatable(*(run.records for run in first))

    def of(self, name: str, fixes: Sequence[Fix]) -> Learned:
        """Of one run with these fixes, whatever it is called. Raises `CommandFailed`, `WritesOutside`."""
        names = frozenset(fix.name for fix in fixes)
        if names not in self._known:
            self._known[names] = self.of_arm(self._bench.with_fixes(name, fixes), fixes)
        return self._known[names]

    def of_arm(self, arm: Arm, fixes: Sequence[Fix]) -> Learned:
        """Of one run of `arm`, which has `fixes`: those that are not live in it are edited into its files."""
        bench = self._bench
        steps = bench.loss_steps_of(fixes)
        baseline = self._baseline(steps)
        try:
            measurement, place = bench.losses_of(arm, steps)
        except CommandFailed:
            if (path := outside_path(bench.losses_place(arm, steps))) is not None:
                raise WritesOutside(path) from None
            raise
        if (path := outside_path(place)) is not None:
            raise WritesOutside(path)
        parity_class = parity_of_live([fix.name for fix in fixes])
        for fix in fixes:
            wrong = why_wrong(fix, [place / "run"]) if fix.name in arm.fixes else None
            if wrong is not None:
                wrong = wrong if len(fixes) == 1 else f"{fix.name}: {wrong}"
                return Learned(Parity("different", parity_class, reason=wrong), wrong=wrong)
        for fix in fixes:
            runs = [place / "run"] if fix.name in arm.fixes else []
            why = why_not_applied(fix, runs, [measurement])
            if why is not None:
                return Learned(Parity("not_checked", None, reason=why), f"{fix.name}: {why}")
        parity = self._judged(baseline, measurement, parity_class)
        return Learned(
            _long_enough(parity, max(fix.warmup_steps for fix in fixes)),
            switchable=can_be_switched(place / "run", bench.most_children),
            slower_start_s=max(_seconds(measurement) - _seconds(baseline[-1]), 0.0),
        )

    def _judged(
        self, baseline: Sequence[Measurement], measurement: Measurement, parity_class: ParityClass
    ) -> Parity:
        if self.not_comparable is not None:
            return Parity("not_checked", parity_class, reason=self.not_comparable)
        return judge_parity([run.records for run in baseline], [measurement.records], parity_class)

    def _baseline(self, steps: int) -> list[Measurement]:
        if steps not in self._baselines:
            numbers = range(1, LOSS_RUNS + 1)
            self._baselines[steps] = [self._run_as_it_is(steps, number) for number in numbers]
        return self._baselines[steps]

    def _run_as_it_is(self, steps: int, number: int) -> Measurement:
        bench = self._bench
        try:
            measurement, place = bench.losses_of(bench.baseline, steps, number)
        except CommandFailed as error:
            if (
                path := outside_path(bench.losses_place(bench.baseline, steps, number))
            ) is not None:
                raise refused_outside(path) from None
            raise CommandFailed(
                f"the command has run, but does not run in a trial: {error.what}",
                where=error.where,
                do=f"{what_trials_lack(bench.listing)}. {error.do or ''}".rstrip(),
                returncode=error.returncode,
            ) from error
        if (path := outside_path(place)) is not None:
            raise refused_outside(path)
        return measurement


def _long_enough(parity: Parity, shows_after: int) -> Parity:
    """`parity`, unless the losses that could be compared end before the fix does anything."""
    if parity.result not in ("same", "within_noise") or parity.num_steps > shows_after:
        return parity
    return Parity(
        "not_checked",
        parity.parity_class,
        num_steps=parity.num_steps,
        reason=f"its effect begins after {shows_after} steps, and losses of two runs can be compared "
        f"over {parity.num_steps}",
    )


def _seconds(measurement: Measurement) -> float:
    return measurement.process_s or 0.0
