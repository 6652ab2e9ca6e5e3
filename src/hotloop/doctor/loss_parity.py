"""Compares what the command learns with a fix and without: runs of their own, in which random numbers repeat.

What the usual band rejects, and what moves the weights otherwise, is held against runs of the unchanged command whose
numbers are rounded otherwise (`judge.calibrated_parity`): made once for all fixes, and only where a fix needs them.
So are runs whose batches draw other random numbers, for a fix that has them drawn elsewhere (`judge.rng_parity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.files import read_json
from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.measurement import Measurement
from hotloop.core.parity_records import WeightUpdates, read_rng_log
from hotloop.doctor.compared_arms import (
    NOISE,
    NOISE_RUNS,
    class_of,
    compared_arms,
    draws_in_batches,
    draws_in_shapes,
    rounded_otherwise,
    rounds_products,
    same_rng_class_of,
    with_fixed_rng,
    with_other_rng,
)
from hotloop.doctor.fixes import Fix
from hotloop.doctor.starting_point import what_trials_lack
from hotloop.doctor.trial_costs import LOSS_RUNS
from hotloop.doctor.trial_reports import (
    WritesOutside,
    can_be_toggled,
    raise_outside,
    refused_outside,
    why_not_applied,
    why_wrong,
)
from hotloop.doctor.trial_runner import OutOfBudget, TrialRunner
from hotloop.judge.calibrated_parity import (
    ComparedRun,
    does_not_move,
    is_plain,
    judge_calibrated,
)
from hotloop.judge.compare import environment_clashes
from hotloop.judge.loss_curves import compare_levels, why_not_repeatable
from hotloop.judge.parity import judge_parity, not_checked
from hotloop.judge.rng_parity import (
    NOT_SEEN,
    OTHER_RNG_RUNS,
    RngRun,
    judge_other_rng,
    without_dropout_parity,
)
from hotloop.judge.worth import PAIRS
from hotloop.trial.arm import Arm

ROUNDING_KEYS = ("device", "cpu_model", "python", "torch", "cuda")
"""What losses are rounded by: runs that differ in one of these show nothing of a fix."""
Run = tuple[Measurement, Path]
"""With the directory where it lies."""


@dataclass(frozen=True, slots=True)
class LossComparison:
    """A run with fixes, compared with runs of the baseline."""

    parity: Parity
    not_applied: str | None = None
    """Why one of them was not seen to take effect."""
    wrong: str | None = None
    """What one of them gave the script that it does not give itself; `parity` is `different` then."""
    toggleable: frozenset[str] = frozenset()
    """Those that can go on and off within a process, where that says what they bring."""
    slower_start_s: float = 0.0
    """Seconds that the process took longer than one of the baseline: compiling, starting workers."""


class LossComparisons:
    """Losses of the unchanged command, and of runs with fixes against them."""

    def __init__(self, runner: TrialRunner, first_fixes: Sequence[Fix]) -> None:
        """Makes the baseline run that `first_fixes`, to be compared first, need.

        Raises `CommandFailed` where the command does not run in a trial, `UsageError` where it writes outside.
        """
        self._runner = runner
        self._noisy: dict[tuple[str, int, float, int], ComparedRun | str] = {}
        self._known: dict[frozenset[str], LossComparison] = {}
        self.not_comparable: str | None = None
        """Why its losses tell nothing; `None`: no reason is known yet."""
        as_it_is, _ = compared_arms(runner, runner.baseline, first_fixes)
        first, _ = self._run_baseline(as_it_is, runner.loss_steps_of(first_fixes))
        runner.correct_costs(first)
        self._say(why_not_repeatable(first.records, first.records))

    def of(self, name: str, fixes: Sequence[Fix]) -> LossComparison:
        """The parity of one run with these fixes. Raises `CommandFailed`, `OutOfBudget` among it, and `WritesOutside`."""
        names = frozenset(fix.name for fix in fixes)
        if names not in self._known:
            self._known[names] = self.of_arm(self._runner.with_fixes(name, fixes), fixes)
        return self._known[names]

    def of_arm(self, arm: Arm, fixes: Sequence[Fix]) -> LossComparison:
        """The parity of one run of `arm`, which has `fixes`: those not live in it are edited into its files."""
        runner = self._runner
        steps = runner.loss_steps_of(fixes)
        as_it_is, arm = compared_arms(runner, arm, fixes)
        first, _ = self._run_baseline(as_it_is, steps)
        measurement, place = self._run(arm, steps)
        parity_class = class_of(runner, fixes)
        for fix in fixes:
            wrong = why_wrong(fix, [place / "run"]) if fix.name in arm.fixes else None
            if wrong is not None:
                wrong = wrong if len(fixes) == 1 else f"{fix.name}: {wrong}"
                return LossComparison(Parity("different", parity_class, reason=wrong), wrong=wrong)
        for fix in fixes:
            runs = [place / "run"] if fix.name in arm.fixes else []
            why = why_not_applied(fix, runs, [measurement])
            if why is not None:
                return LossComparison(Parity("not_checked", None, reason=why), f"{fix.name}: {why}")
        if self.not_comparable is not None:
            parity = Parity("not_checked", parity_class, reason=self.not_comparable)
        elif draws_in_batches(runner, fixes):
            parity = self._other_rng_parity(as_it_is, arm, fixes, steps)
        else:
            parity = self._judged(as_it_is, arm, fixes, steps)
        if draws_in_shapes(fixes):
            parity = without_dropout_parity(parity)
        return LossComparison(
            _long_enough(parity, max(fix.warmup_steps for fix in fixes)),
            toggleable=can_be_toggled(place / "run", runner.most_children),
            slower_start_s=max((measurement.process_s or 0.0) - (first.process_s or 0.0), 0.0),
        )

    def _say(self, not_comparable: str | None) -> None:
        self.not_comparable = not_comparable
        if not_comparable is not None:
            self._runner.warn(f"its steps are not comparable from run to run: {not_comparable}")

    def _other_rng_parity(
        self, baseline: Arm, arm: Arm, fixes: Sequence[Fix], steps: int
    ) -> Parity:
        """Parity where batches draw other random numbers: with these held fixed, and among runs with others."""
        first, *others = (with_other_rng(baseline, n) for n in range(1, OTHER_RNG_RUNS + 1))
        held = with_fixed_rng(arm, 1)
        try:
            if not _rng_run(*self._run_baseline(first, steps)).rng.batches:
                return not_checked("other_draws", NOT_SEEN)
            parity = self._judged(first, held, fixes, steps)
        except OutOfBudget:
            raise
        except CommandFailed as error:
            why = f"it could not be run with the random numbers of its batches held fixed: {error.what}"
            return Parity("not_checked", "other_draws", reason=why)
        if self.not_comparable is not None:
            return replace(parity, parity_class="other_draws")
        if parity.result not in ("same", "within_noise"):
            why = f"with the random numbers of each batch held fixed too, {parity.reason}"
            return replace(parity, parity_class="other_draws", reason=why)
        runs = [_rng_run(*self._run_baseline(first, steps))]
        runs += [_rng_run(*self._run_baseline(each, steps)) for each in others]
        candidate = _compared(*self._run(arm, steps))
        return judge_other_rng(runs, candidate, _rng_run(*self._run(held, steps)), parity)

    def _judged(self, baseline: Arm, arm: Arm, fixes: Sequence[Fix], steps: int) -> Parity:
        """Parity of runs in which batches draw the same random numbers."""
        measurement, place = self._run(arm, steps)
        parity_class = same_rng_class_of(self._runner, fixes)
        # A call that goes on after torch was replaced finds losses of the old one.
        first, _ = self._run_baseline(baseline, steps)
        if clashes := environment_clashes([first, measurement], ROUNDING_KEYS):
            return not_checked(parity_class, clashes[0])
        runs = self._baseline_runs(baseline, steps, measurement, parity_class)
        if self.not_comparable is not None:
            return Parity("not_checked", parity_class, reason=self.not_comparable)
        plain = judge_parity([run.records for run, _ in runs], [measurement.records], parity_class)
        base = [_compared(run, at) for run, at in runs]
        if does_not_move(base):
            why = "its updates leave the weights as they are, so nothing shows what it learns"
            return Parity("not_checked", parity_class, num_steps=plain.num_steps, reason=why)
        candidate = _compared(measurement, place)
        if rounds_products(fixes):
            # Products in fewer digits move weights a little otherwise at every step: noise at the start does not.
            base = [ComparedRun(run.records) for run in base]
        parity = plain
        if not is_plain(plain, base, candidate):
            parity = self._calibrated(baseline, base, candidate, plain, parity_class)
        if parity.result == "within_noise" and rounds_products(fixes):
            parity = self._learnt(parity, baseline, arm, steps)
        return parity

    def _calibrated(
        self,
        baseline: Arm,
        base: Sequence[ComparedRun],
        candidate: ComparedRun,
        plain: Parity,
        parity_class: ParityClass,
    ) -> Parity:
        """By what rounding makes of this script."""
        parity, noisy = plain, list[ComparedRun]()
        for number in range(1, NOISE_RUNS + 1):
            steps = len(candidate.records)
            run = self._rounded_otherwise(baseline, steps, NOISE[parity_class], number)
            if isinstance(run, str):
                return replace(plain, reason=f"{plain.reason}; {run}")
            noisy.append(run)
            parity = judge_calibrated(base, candidate, noisy, parity_class)
            if parity.result != "different":
                break
        return parity

    def _learnt(self, parity: Parity, baseline: Arm, arm: Arm, steps: int) -> Parity:
        """`parity`, unless the loss ends higher in a run that is long enough to have learnt something."""
        runner, longer = self._runner, self._runner.learnt_steps
        if longer is None or longer <= steps:
            return parity
        if runner.left_s < 2 * runner.costs.process_s(longer) + runner.needed_s(PAIRS):
            return replace(
                parity, reason=f"{parity.reason}; no budget was left to compare {longer} steps"
            )
        before, _ = self._run_baseline(baseline, longer)
        candidate, _ = self._run(arm, longer)
        passed, went = compare_levels(before.records, candidate.records)
        if passed:
            return replace(parity, reason=f"{parity.reason}; {went}")
        return Parity("different", parity.parity_class, num_steps=longer, reason=went)

    def _rounded_otherwise(
        self, baseline: Arm, steps: int, size: float, number: int
    ) -> ComparedRun | str:
        """A run of the unchanged command with such noise, or why there is none."""
        key = (baseline.name, steps, size, number)
        if key not in self._noisy:
            arm = rounded_otherwise(baseline, size, number)
            try:
                self._noisy[key] = _compared(*self._runner.losses_of(arm, steps, number))
            except OutOfBudget:
                raise
            except CommandFailed as error:
                self._noisy[key] = f"how it amplifies rounding is not known: {error.what}"
        return self._noisy[key]

    def _baseline_runs(
        self, arm: Arm, steps: int, candidate: Measurement, parity_class: ParityClass
    ) -> list[Run]:
        """Runs of a baseline: a second where it may tell something, such as why losses cannot be compared."""
        first = self._run_baseline(arm, steps)
        if _agree(first[0], candidate, parity_class):
            return [first]
        runs = [self._run_baseline(arm, steps, number) for number in range(1, LOSS_RUNS + 1)]
        one, other = (run.records for run, _ in runs)
        self._say(why_not_repeatable(one, other))
        return runs

    def _run(self, arm: Arm, steps: int, number: int = 1) -> Run:
        """Raises `CommandFailed`, and `WritesOutside` even where that is why it failed."""
        place = self._runner.losses_place(arm, steps, number)
        try:
            run = self._runner.losses_of(arm, steps, number)
        except CommandFailed:
            raise_outside(place)
            raise
        raise_outside(place)
        return run

    def _run_baseline(self, arm: Arm, steps: int, number: int = 1) -> Run:
        try:
            return self._run(arm, steps, number)
        except WritesOutside as error:
            raise refused_outside(error.path) from None
        except OutOfBudget:
            raise
        except CommandFailed as error:
            lacks = what_trials_lack(self._runner.listing)
            if "EOFError" in (error.do or ""):
                lacks = "it asks for input, which a trial has none of"
            raise CommandFailed(
                f"the command has run, but does not run in a trial: {error.what}",
                where=error.where,
                do=f"{lacks}. {error.do or ''}".rstrip(),
                returncode=error.returncode,
                arm=error.arm,
            ) from error


def _rng_run(measurement: Measurement, place: Path) -> RngRun:
    return RngRun(_compared(measurement, place), read_rng_log(place / "run"))


def _agree(baseline: Measurement, candidate: Measurement, parity_class: ParityClass) -> bool:
    """Whether the narrowest band holds both: a second run of the baseline could only widen it, and does repeat."""
    one, other = baseline.records, candidate.records
    if parity_class != "reduction_order":
        return [each.loss for each in one] == [each.loss for each in other]
    return judge_parity([one], [other], parity_class).result in ("same", "within_noise")


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
