"""Whether the command learns the same with a fix: runs of their own, in which random numbers repeat.

What the usual band rejects, and what moves the weights otherwise, is held against runs of the command as it is whose
numbers are rounded otherwise (`judge.calibrated_parity`): made once for all fixes, and only where a fix needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.files import read_json
from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.measurement import Measurement
from hotloop.core.weights import WeightUpdates
from hotloop.doctor.applied import why_not_applied, why_wrong
from hotloop.doctor.fixes import Fix
from hotloop.doctor.starting_point import what_trials_lack
from hotloop.doctor.switched import can_be_switched
from hotloop.doctor.trial_costs import LOSS_RUNS, USUAL_PAIRS
from hotloop.doctor.workbench import Workbench
from hotloop.doctor.writes import WritesOutside, outside_path, refused_outside
from hotloop.judge.calibrated_parity import (
    ComparedRun,
    does_not_move,
    is_plain,
    judge_calibrated,
)
from hotloop.judge.levels import compare_levels
from hotloop.judge.parity import judge_parity
from hotloop.judge.repeatable import why_not_repeatable
from hotloop.optimizations.catalogue import parity_of_live
from hotloop.optimizations.seeding import NOISE_VARIABLE
from hotloop.trial.arm import Arm

NOISE: dict[ParityClass, float] = {
    "bitwise": 1e-6,
    "reduction_order": 1e-6,
    "reduced_precision": 2.0**-9,
}
"""Relative size of the noise: a convolution in another memory format rounds as much, products in bf16 do."""
NOISE_RUNS = 2
"""At most: the second is made where the first does not explain what is seen."""
ROUNDED_OTHERWISE = "rounded-otherwise"


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
        self._noisy: dict[tuple[int, float, int], ComparedRun | str] = {}
        self._known: dict[frozenset[str], Learned] = {}
        self._baselines: dict[int, list[tuple[Measurement, Path]]] = {}
        first = self._baseline(bench.loss_steps)
        bench.correct_costs(first[-1][0])
        self.not_comparable = why_not_repeatable(*(run.records for run, _ in first))

    def class_of(self, fixes: Sequence[Fix]) -> ParityClass:
        """The most that these may change in what this command learns."""
        return class_of(self._bench, fixes)

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
        parity_class = self.class_of(fixes)
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
        parity = self._judged(baseline, measurement, place, fixes)
        if parity.result == "within_noise" and rounds_products(fixes):
            parity = self._learnt(parity, arm, steps)
        return Learned(
            _long_enough(parity, max(fix.warmup_steps for fix in fixes)),
            switchable=can_be_switched(place / "run", bench.most_children),
            slower_start_s=max(_seconds(measurement) - _seconds(baseline[-1][0]), 0.0),
        )

    def _judged(
        self,
        baseline: Sequence[tuple[Measurement, Path]],
        measurement: Measurement,
        place: Path,
        fixes: Sequence[Fix],
    ) -> Parity:
        parity_class = self.class_of(fixes)
        if self.not_comparable is not None:
            return Parity("not_checked", parity_class, reason=self.not_comparable)
        plain = judge_parity(
            [run.records for run, _ in baseline], [measurement.records], parity_class
        )
        base = [_compared(run, at) for run, at in baseline]
        if does_not_move(base):
            why = "its updates leave the weights as they are, so nothing shows what it learns"
            return Parity("not_checked", parity_class, num_steps=plain.num_steps, reason=why)
        candidate = _compared(measurement, place)
        if rounds_products(fixes):
            # Products in fewer digits move weights a little otherwise at every step: noise at the start does not.
            base = [ComparedRun(run.records) for run in base]
        if is_plain(plain, base, candidate):
            return plain
        noisy: list[ComparedRun] = []
        for number in range(1, NOISE_RUNS + 1):
            run = self._rounded_otherwise(len(measurement.records), NOISE[parity_class], number)
            if isinstance(run, str):
                return replace(plain, reason=f"{plain.reason}; {run}")
            noisy.append(run)
            parity = judge_calibrated(base, candidate, noisy, parity_class)
            if parity.result != "different":
                break
        return parity

    def _learnt(self, parity: Parity, arm: Arm, steps: int) -> Parity:
        """`parity`, unless the loss ends higher in a run that is long enough to have learnt something."""
        bench, longer = self._bench, self._bench.learnt_steps
        if longer is None or longer <= steps:
            return parity
        if bench.left_s < 2 * bench.costs.process_s(longer) + bench.needed_s(USUAL_PAIRS):
            return replace(
                parity, reason=f"{parity.reason}; no budget was left to compare {longer} steps"
            )
        baseline, _ = self._run_as_it_is(longer, 1)
        candidate, place = bench.losses_of(arm, longer)
        if (path := outside_path(place)) is not None:
            raise WritesOutside(path)
        passed, went = compare_levels(baseline.records, candidate.records)
        if passed:
            return replace(parity, reason=f"{parity.reason}; {went}")
        return Parity("different", parity.parity_class, num_steps=longer, reason=went)

    def _rounded_otherwise(self, steps: int, size: float, number: int) -> ComparedRun | str:
        """A run of the command as it is with such noise, or why there is none."""
        key = (steps, size, number)
        if key not in self._noisy:
            arm = rounded_otherwise(self._bench.baseline, size, number)
            try:
                self._noisy[key] = _compared(*self._bench.losses_of(arm, steps, number))
            except CommandFailed as error:
                self._noisy[key] = f"how it amplifies rounding is not known: {error.what}"
        return self._noisy[key]

    def _baseline(self, steps: int) -> list[tuple[Measurement, Path]]:
        if steps not in self._baselines:
            numbers = range(1, LOSS_RUNS + 1)
            self._baselines[steps] = [self._run_as_it_is(steps, number) for number in numbers]
        return self._baselines[steps]

    def _run_as_it_is(self, steps: int, number: int) -> tuple[Measurement, Path]:
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
        return measurement, place


def class_of(bench: Workbench, fixes: Sequence[Fix]) -> ParityClass:
    """The most that these may change in what this command learns."""
    dtypes = bench.census.matmul_dtypes if bench.census is not None else ()
    return parity_of_live([fix.name for fix in fixes], dtypes)


def rounded_otherwise(baseline: Arm, size: float, number: int) -> Arm:
    """The command as it is, with noise of this relative size in its numbers."""
    env = {**baseline.env, NOISE_VARIABLE: f"{size:g}:{number}"}
    return replace(baseline, name=ROUNDED_OTHERWISE, env=env)


def _compared(measurement: Measurement, place: Path) -> ComparedRun:
    """With what its weights did, where that was seen."""
    try:
        weights = read_json(place / "run" / "weights-0.json", WeightUpdates, finite=False)
    except UsageError:
        weights = None
    return ComparedRun(measurement.records, weights)


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


def rounds_products(fixes: Sequence[Fix]) -> bool:
    """Whether one of them makes products of fewer digits, whatever the script had."""
    return parity_of_live([fix.name for fix in fixes]) == "reduced_precision"


def _seconds(measurement: Measurement) -> float:
    return measurement.process_s or 0.0
