"""All that was kept, written into a copy of the user's source, against the unchanged command.

What is confirmed is what a patch then holds. A fix that is something else once it is written out leaves the
stack; one that has no edit stays a live form beside the edited files.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import CommandFailed, first_line
from hotloop.core.judgement import Status, Verdict
from hotloop.core.ledger import TriedFix
from hotloop.doctor.compared_arms import class_of, unfinished_runs
from hotloop.doctor.fix_status import longer, reason_without_effect, showed, status_of
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparison, LossComparisons
from hotloop.doctor.trial_reports import WritesOutside, why_wrong
from hotloop.doctor.trial_runner import BASELINE, OutOfBudget, TrialRunner
from hotloop.judge.looks import LARGE, LOOKS
from hotloop.trial.arm import Arm
from hotloop.trial.session import SessionResult

if TYPE_CHECKING:
    from hotloop.doctor.patch.write import Patch

LONGEST_NAME = 64
CHECKING_PAIRS = 2
"""Pairs of edited files whose live forms were proven within processes."""
NOT_PAID = "not paid"
"""Instead of what the patched script does: the budget did not do for a run of it."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What fresh pairs say of all that was kept."""

    fixes: tuple[Fix, ...] = ()
    """Those that the candidate has."""
    status: Status = "kept"
    """`kept`: it is confirmed, where any fix is left. `stopped`: the budget did not do for the runs that confirm."""
    why: str = ""
    patched: str | None = None
    """Digest of the candidate's edited files; `None`: it has none."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Fix -> what the patched script does that the live form did not."""
    result: SessionResult | None = None
    """Fresh pairs."""
    failed: CommandFailed | WritesOutside | None = None

    @property
    def verdict(self) -> Verdict | None:
        return None if self.result is None else self.result.verdict

    @property
    def may_show(self) -> bool:
        """Its pairs differ by more than the gain, and nothing else speaks against it: more of them may tell."""
        return self.status == "undecided" and not (self.verdict and self.verdict.doubts)


class _NotConfirmed(Exception):
    """Why the pairs need not be made."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    arm: Arm
    fixes: Sequence[Fix]
    patch: Patch

    @property
    def written(self) -> list[Fix]:
        """Those that its files are edited for."""
        return [fix for fix in self.fixes if fix.name not in self.arm.fixes]


def confirmed(
    runner: TrialRunner,
    comparisons: LossComparisons,
    stacked: Sequence[Fix],
    tried: Mapping[str, TriedFix],
    **how: Any,
) -> Confirmed:
    """The stack, without what cannot be written out as it was verified, on pairs of their own.

    how: `alpha` and `pairs_now` of `TrialRunner.compare`.
    """
    fixes, dropped = list(stacked), dict[str, str]()
    while fixes:
        candidate = _candidate(runner, "together", fixes, tried)
        try:
            comparison = _compare_losses(runner, comparisons, candidate)
            if isinstance(comparison, LossComparison):
                result = _timed(runner, comparisons, candidate, comparison, **how)
                return replace(result, fixes=tuple(fixes), dropped=dropped)
        except _NotConfirmed as error:
            return Confirmed(tuple(fixes), "rejected", str(error), dropped=dropped)
        except OutOfBudget:
            return Confirmed(tuple(fixes), "stopped", dropped=dropped)
        except (CommandFailed, WritesOutside) as error:
            why = f"the runs failed: {first_line(error)}"
            return Confirmed(tuple(fixes), "rejected", why, dropped=dropped, failed=error)
        if comparison == NOT_PAID:
            return Confirmed(tuple(fixes), "stopped", dropped=dropped)
        dropped |= _at_fault(runner, comparisons, candidate, comparison, tried)
        fixes = [fix for fix in fixes if fix.name not in dropped]
    return Confirmed(dropped=dropped)


def _candidate(
    runner: TrialRunner, kind: str, fixes: Sequence[Fix], tried: Mapping[str, TriedFix]
) -> _Candidate:
    """The command with `fixes` in its source as far as they can be written there, and live else."""
    from hotloop.doctor.patch.write import NOT_RUN, patch_for  # loads libcst

    workdir = runner.baseline.workdir
    assert workdir is not None
    patch = patch_for(
        [tried[fix.name] for fix in fixes],
        workdir=workdir,
        started_at=runner.examined_at,
        census=runner.census,
        directory=runner.directory,
        why_not=NOT_RUN if runner.plan.in_place else None,
    )
    words = {fix.name for fix in patch.fixes if fix.patch != "edited"}
    # A call that continues may have kept others than the call before it.
    name = short_name(f"{kind}-" + "+".join(fix.name for fix in fixes))
    live = [fix for fix in fixes if fix.name in words]
    return _Candidate(runner.with_fixes(name, live, edited=patch.files), fixes, patch)


def _compare_losses(
    runner: TrialRunner, comparisons: LossComparisons, candidate: _Candidate
) -> LossComparison | str:
    """What the candidate learns, or what the patched script does that it should not.

    Raises `_NotConfirmed`, `CommandFailed` and `WritesOutside` of live forms and of the unchanged command.
    """
    arm, fixes = candidate.arm, candidate.fixes
    if not arm.edited:
        comparison = comparisons.of(arm.name, fixes)
        if comparison.not_applied is not None:
            raise _NotConfirmed(f"not applied: {comparison.not_applied}")
        return comparison
    losses = unfinished_runs(runner, arm, fixes)
    if not runner.pays_for(runner.needed_s(1, losses=losses, reserved=False, place=arm.name)):
        return NOT_PAID
    try:
        comparison = comparisons.of_arm(arm, fixes)
    except WritesOutside as error:
        return f"writes outside of its directory: {error.path}"
    except CommandFailed as error:
        if error.arm == BASELINE or isinstance(error, OutOfBudget):
            raise
        last = (error.do or error.what).strip().splitlines()[-1]
        return f"fails: {last.strip()}"
    if comparison.not_applied is not None:
        return f"is without it: {comparison.not_applied}"
    if comparison.parity.result == "different":
        return f"does not train as before: {comparison.parity.reason}"
    if comparison.parity.result == "not_checked":
        return f"is not known to learn the same: {comparison.parity.reason}"
    return comparison


def _at_fault(
    runner: TrialRunner,
    comparisons: LossComparisons,
    candidate: _Candidate,
    why: str,
    tried: Mapping[str, TriedFix],
) -> dict[str, str]:
    """Those of the edits that are wrong by themselves; all of them where none is."""
    if len(candidate.written) == 1:
        return {candidate.written[0].name: why}
    found = {}
    for fix in candidate.written:
        alone = _compare_losses(runner, comparisons, _candidate(runner, "patched", [fix], tried))
        if isinstance(alone, str) and alone != NOT_PAID:
            found[fix.name] = alone
    return found or {fix.name: why for fix in candidate.written}


def _timed(
    runner: TrialRunner,
    comparisons: LossComparisons,
    candidate: _Candidate,
    comparison: LossComparison,
    **how: Any,
) -> Confirmed:
    """Within processes in which all of it is toggled, where it can be; else on fresh pairs.

    Edited files cannot be toggled: then their live forms are, and a few pairs of the files must agree.
    Raises `CommandFailed` and `WritesOutside`.
    """
    arm, fixes = candidate.arm, candidate.fixes
    if not arm.edited:  # what cannot be toggled would be on in both halves
        toggled = comparison.toggleable.issuperset(fix.name for fix in fixes)
        return _compared(runner, arm, fixes, comparison, toggled=toggled, **how)
    live = _live_form(runner, comparisons, candidate)
    if live is None:
        found = _compared(runner, arm, fixes, comparison, toggled=False, **how)
    else:
        found = _compared(
            runner,
            live[0],
            fixes,
            replace(live[1], parity=comparison.parity),
            toggled=True,
            place=place_within(arm.name),
            follows_s=checking_s(runner, fixes, arm.name),
            **how,
        )
        if found.status == "kept":
            found = _checked(runner, candidate, comparison, found)
    return replace(found, patched=candidate.patch.digest)


def _live_form(
    runner: TrialRunner, comparisons: LossComparisons, candidate: _Candidate
) -> tuple[Arm, LossComparison] | None:
    """The candidate with live forms in place of its edits, and what that learns; `None` where it cannot be toggled."""
    fixes = candidate.fixes
    if runner.toggled_plan(fixes) is None:
        return None
    # A single fix was compared under its own name already.
    name = fixes[0].name if len(fixes) == 1 else place_within(candidate.arm.name)
    arm = runner.with_fixes(name, fixes)
    losses = unfinished_runs(runner, arm, fixes)
    if not runner.pays_for(runner.needed_s(0, losses=losses, reserved=False)):
        return None
    comparison = comparisons.of(name, fixes)
    toggleable = comparison.toggleable.issuperset(fix.name for fix in fixes)
    return (arm, comparison) if toggleable else None


def place_within(name: str) -> str:
    """The place of processes in which the live forms of edits are toggled; `name` is that of pairs of the edited files."""
    return short_name(f"{name}-live")


def checking_s(runner: TrialRunner, fixes: Sequence[Fix], name: str) -> float:
    """Seconds that the checking pairs in the place `name` still take."""
    plan = runner.plan_for(fixes)
    return runner.needed_s(CHECKING_PAIRS, reserved=False, plan=plan, place=name)


def _checked(
    runner: TrialRunner, candidate: _Candidate, comparison: LossComparison, found: Confirmed
) -> Confirmed:
    """`found`, where pairs of the edited files do not say otherwise: two that show a gain, of a large one half of it at
    least, or more that may hide it. Else what they say."""
    live = found.verdict.ratio if found.verdict is not None else None
    shows = math.sqrt(live) if live is not None and live >= LARGE else 1.0
    for num_pairs in (CHECKING_PAIRS, LOOKS[0]):
        pairs = _compared(
            runner, candidate.arm, candidate.fixes, comparison, toggled=False, pairs_now=num_pairs
        )
        verdict = pairs.verdict
        if pairs.status not in ("kept", "stopped") and not pairs.may_show:
            return pairs
        if verdict is None or verdict.num_pairs < num_pairs:
            return replace(found, status="stopped")
        if verdict.ratio is not None and verdict.ratio > shows:
            return found
        if num_pairs == LOOKS[0] and not _agree(found.verdict, verdict):
            if pairs.status == "kept":  # then theirs is the number: they are what is handed over
                return pairs
            why = f"pairs of the edited files do not agree: {showed(verdict)}"
            return replace(found, status="rejected", why=why)
    return found


def _agree(one: Verdict | None, other: Verdict | None) -> bool:
    """Whether both may be right."""
    if one is None or other is None or one.ratio_low is None or other.ratio_low is None:
        return True
    assert one.ratio_high is not None
    assert other.ratio_high is not None
    return one.ratio_low <= other.ratio_high and other.ratio_low <= one.ratio_high


def _compared(
    runner: TrialRunner,
    arm: Arm,
    fixes: Sequence[Fix],
    comparison: LossComparison,
    *,
    toggled: bool,
    place: str | None = None,
    **how: Any,
) -> Confirmed:
    place = place or arm.name
    plan = (runner.toggled_plan(fixes) if toggled else None) or runner.plan_for(fixes)
    assert plan is not None
    pair_s = min(runner.costs.pair_s(each) for each in (plan, runner.plan))
    if not runner.pays_for(min(runner.needed_s(1, reserved=False, plan=plan, place=place), pair_s)):
        return Confirmed(status="stopped")
    result = runner.compare(
        runner.baseline,
        arm,
        fixes=fixes,
        place=place,
        parity_class=class_of(runner, fixes),
        parity=comparison.parity,
        reserved=False,
        toggled=[fix.name for fix in fixes] if toggled else (),
        **how,
    )
    flaw = flaw_of(result, fixes, arm, comparison)
    if flaw is not None:
        return Confirmed(status="rejected", why=flaw, result=result)
    status, why = status_of(result.verdict)
    return Confirmed(status=status, why=why, result=result)


def flaw_of(
    result: SessionResult, fixes: Sequence[Fix], arm: Arm, comparison: LossComparison
) -> str | None:
    """What speaks against a candidate in its timed runs: a fix that was not applied, losses that part later."""
    found = sorted(result.directory.glob(f"pair-*-{arm.name}/run"))
    for fix in fixes:
        runs = found if fix.name in arm.fixes else []
        wrong = why_wrong(fix, runs)
        if wrong is not None:
            return wrong if len(fixes) == 1 else f"{fix.name}: {wrong}"
        why = reason_without_effect(fix, runs, result)
        if why is not None:
            return f"{fix.name} was not applied: {why}"
    parity = longer(comparison.parity, result)
    return f"it learns something else: {parity.reason}" if parity.result == "different" else None


def short_name(name: str) -> str:
    """Fit for an arm and a directory."""
    name = name.replace("+", "-")
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{digest}"
