"""All that was kept, written into a copy of the user's source, against the unchanged command.

What is confirmed is what a patch then holds. A fix that is something else once it is written out leaves the
stack; one that has no edit stays a live form beside the edited files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Verdict
from hotloop.core.ledger import TriedFix
from hotloop.doctor.compared_arms import class_of, unfinished_runs
from hotloop.doctor.fix_status import longer, not_faster
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparison, LossComparisons
from hotloop.doctor.trial_reports import (
    WritesOutside,
    reason_not_toggled,
    why_not_applied,
    why_wrong,
)
from hotloop.doctor.trial_runner import BASELINE, TrialRunner
from hotloop.judge.looks import LOOKS
from hotloop.trial.arm import Arm
from hotloop.trial.session import SessionResult

if TYPE_CHECKING:
    from hotloop.doctor.patch.write import Patch

LONGEST_NAME = 64
NOT_PAID = "not paid"
"""Instead of a reason: the budget did not do for the runs that confirm."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What fresh pairs say of all that was kept."""

    fixes: tuple[Fix, ...] = ()
    """Those that the candidate has."""
    why_not: str | None = None
    """`None`: it is confirmed, where any fix is left."""
    undecided: bool = False
    """Nothing speaks against it but that too few pairs were made, or that they differ by more than the gain."""
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
            return Confirmed(tuple(fixes), why_not=str(error), dropped=dropped)
        except (CommandFailed, WritesOutside) as error:
            why = f"the runs failed: {first_line(error)}"
            return Confirmed(tuple(fixes), why_not=why, dropped=dropped, failed=error)
        if comparison == NOT_PAID:
            return Confirmed(tuple(fixes), why_not=NOT_PAID, dropped=dropped)
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
        if error.arm == BASELINE:
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
    """On fresh pairs. Raises `CommandFailed` and `WritesOutside`."""
    names = [fix.name for fix in candidate.fixes]
    digest = candidate.patch.digest
    needed_s = runner.needed_s(1, reserved=False, place=candidate.arm.name)
    if runner.pays_for(min(needed_s, runner.costs.pair_s(runner.plan))):
        # What cannot be turned would be on in both halves.
        toggled = comparison.toggleable.issuperset(names) and not candidate.arm.edited
        found = _compared(
            runner, candidate.arm, candidate.fixes, comparison, toggled=toggled, **how
        )
    else:
        found = Confirmed(why_not=NOT_PAID, undecided=True)
    if candidate.arm.edited and found.undecided and not how.get("pairs_now"):
        found = _within_processes(runner, comparisons, candidate, comparison, found)
    return replace(found, patched=digest)


def _within_processes(
    runner: TrialRunner,
    comparisons: LossComparisons,
    candidate: _Candidate,
    comparison: LossComparison,
    found: Confirmed,
) -> Confirmed:
    """What the live forms show, on and off within processes that differ by more than the gain, or `found`.

    Only of a patched copy that learns the same, and whose own pairs do not say otherwise: edited files cannot be
    turned on and off.
    """
    fixes = candidate.fixes
    arm = runner.with_fixes(short_name(f"{candidate.arm.name}-live"), fixes)
    live = comparisons.of(arm.name, fixes)
    plan = runner.toggled_plan(fixes)
    if plan is None or not live.toggleable.issuperset(fix.name for fix in fixes):
        return found
    if runner.needed_s(1, reserved=False, place=arm.name, plan=plan) > runner.left_s:
        return found
    live = replace(live, parity=comparison.parity)
    within = _compared(runner, arm, fixes, live, toggled=True)
    return within if within.why_not is None and _agree(within.verdict, found.verdict) else found


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
    **how: Any,
) -> Confirmed:
    result = runner.compare(
        runner.baseline,
        arm,
        fixes=fixes,
        place=arm.name,
        parity_class=class_of(runner, fixes),
        parity=comparison.parity,
        reserved=False,
        toggled=[fix.name for fix in fixes] if toggled else (),
        **how,
    )
    verdict = result.verdict
    found = Confirmed(result=result)
    flaw = flaw_of(result, fixes, arm, comparison)
    if flaw is not None:
        return replace(found, why_not=flaw)
    if verdict.num_pairs < LOOKS[0] and verdict.outcome != "incomparable":
        return replace(found, why_not=NOT_PAID, undecided=not verdict.doubts)
    if verdict.outcome != "improved":
        why = not_faster(verdict)
        undecided = verdict.outcome == "inconclusive" and not verdict.doubts
        return replace(found, why_not=why, undecided=undecided)
    if verdict.parity.result not in ("same", "within_noise"):
        why = f"it is not known to learn the same: {verdict.parity.reason}"
        return replace(found, why_not=why)
    return found


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
        why = why_not_applied(fix, runs, [candidate for _, candidate in result.pairs])
        if why is None and fix.name in result.toggled:
            why = reason_not_toggled(fix.name, runs)
        if why is not None:
            return f"{fix.name} was not applied: {why}"
    parity = longer(comparison.parity, result)
    return f"it learns something else: {parity.reason}" if parity.result == "different" else None


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def short_name(name: str) -> str:
    """Fit for an arm and a directory."""
    name = name.replace("+", "-")
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{digest}"
