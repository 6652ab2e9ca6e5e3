"""Fixes that help, put together: gains do not add, and may undo each other, so each step is measured.

Fresh pairs of the whole compare everything that stays with the unchanged command: a true gain would carry whatever lies
on top of it. So all that is tried on top shares one error: in 2 of 100 runs at most a fix that does nothing is called
faster there, however many are tried. Pairs of the final stack with and without each fix, the other way, take 12 % more
processes where two fixes are true (this way takes none), and of small true gains on a busy machine they keep 16 where
this keeps 46, and an error of its own for each fix 64. `benchmarks/stacked_nulls.py` counts; on machines that alternate
between two speeds 1 run in 100 keeps such a fix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from hotloop.core.errors import CommandFailed, first_line
from hotloop.core.judgement import Status, Verdict
from hotloop.core.ledger import TriedFix
from hotloop.doctor.compared_arms import class_of, rounds_products, unfinished_runs
from hotloop.doctor.confirmation import Confirmed, confirmed, flaw_of, short_name
from hotloop.doctor.fix_costs import with_costs
from hotloop.doctor.fix_status import may_decide, showed, status_of, with_doubts
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparisons
from hotloop.doctor.trial_reports import WritesOutside
from hotloop.doctor.trial_runner import OutOfBudget, TrialRunner
from hotloop.judge.looks import LOOKS, divided_levels

Tried = dict[str, TriedFix]
ERROR_ON_TOP = 0.04
"""Two-sided, over all that is tried on top in one run: half of it is gains."""
LEARNS = {"different": "learns something else", "not_checked": "is not known to learn the same"}
"""Results of comparing losses with which nothing is kept."""


def order_of(kept: Sequence[Fix], undecided: Sequence[Fix], tried: Tried) -> list[Fix]:
    """In which they are put together, the fastest first; nothing where nothing is kept.

    What rounds products comes last, so that the others are held to the narrow band. undecided: alone the noise hid
    what they do (`fix_status.may_yet`). On top of what is kept they get another chance: what made the pairs differ may
    be gone.
    """

    def key(fix: Fix) -> tuple[bool, float]:
        verdict = tried[fix.name].verdict
        ratio = verdict.ratio if verdict is not None and verdict.ratio is not None else 1.0
        return rounds_products([fix]), -ratio

    return [*sorted(kept, key=key), *sorted(undecided, key=key)] if kept else []


def stack(
    runner: TrialRunner,
    comparisons: LossComparisons,
    order: Sequence[Fix],
    tried: Tried,
    proven: Mapping[str, Confirmed],
) -> Confirmed:
    """The fixes that stay, and what they bring together on fresh pairs.

    proven: by name, what stays where those on top of it are not confirmed. Entries of `tried` whose fix does not stay
    are replaced, with the reason.
    """
    stacked = list(order[:1])
    levels = divided_levels(LOOKS, len(order) - 1, ERROR_ON_TOP)
    for fix in order[1:]:
        tried[fix.name] = _added(runner, comparisons, stacked, fix, tried[fix.name], levels)
        runner.report(tried=tuple(tried.values()))
        if tried[fix.name].status == "kept":
            stacked.append(fix)
    first = proven.get(stacked[0].name) if stacked else None
    if first is not None and len(stacked) == 1:
        return first
    found = confirmed(runner, comparisons, stacked, tried)
    first_name = stacked[0].name if first is not None else ""
    for name, why in found.dropped.items():
        if name != first_name:
            why = f"{tried[name].why}, but the patched script {why}"
            tried[name] = replace(tried[name], status="rejected", why=why)
    if found.status == "kept":
        if first_name not in found.dropped:
            return found
        why = f"with {first_name} the patched script {found.dropped[first_name]}"
        found = replace(found, status="rejected", why=why)
    why = f"fresh pairs do not confirm it: {found.why}"
    if found.status == "stopped" or (found.status == "undecided" and may_decide(found.verdict)):
        pairs = "" if found.verdict is None else f" ({showed(found.verdict)})"
        why = f"not confirmed yet: out of budget{pairs}"
        result = found.result if found.status == "undecided" else None
        found = replace(found, status="stopped", result=result)
    for fix in found.fixes:
        entry = tried[fix.name]
        if fix.name != first_name:
            tried[fix.name] = replace(entry, status=found.status, why=f"{entry.why}, but {why}")
    return found if first is None else first


def _added(
    runner: TrialRunner,
    comparisons: LossComparisons,
    stacked: Sequence[Fix],
    fix: Fix,
    entry: TriedFix,
    levels: Sequence[float],
) -> TriedFix:
    """Its entry: kept where it is faster with it than without, both on top of what is kept already."""
    together = (*stacked, fix)
    onto = " and ".join(each.name for each in stacked)
    is_kept = entry.status == "kept"
    alone = "faster alone" if is_kept else f"{entry.why} alone"

    def left_out(status: Status, why: str, verdict: Verdict | None = None) -> TriedFix:
        why = f"{alone}, but {why}" if is_kept else f"{alone}; {why}"
        return replace(entry, status=status, why=why, added=verdict)

    rejected = partial(left_out, "rejected")
    for each in stacked:
        if each.name in fix.technique.conflicts or fix.name in each.technique.conflicts:
            status: Status = "rejected" if is_kept else entry.status
            return left_out(status, f"it cannot be together with {each.name}")
    arm_name = short_name("with-" + "+".join(each.name for each in together))
    arm = runner.with_fixes(arm_name, together)
    losses = unfinished_runs(runner, arm, together)
    if not runner.pays_for(runner.needed_s(LOOKS[0], losses=losses, place=arm_name)):
        why = f"{alone}; out of budget before it was tried on top of {onto}"
        return replace(entry, status="stopped", why=why)
    try:
        comparison = comparisons.of(arm_name, together)
        if comparison.not_applied is not None:
            return rejected(f"on top of {onto} it was not applied: {comparison.not_applied}")
        learns = LEARNS.get(comparison.parity.result)
        if learns is not None:
            return rejected(f"with {onto} it {learns}: {comparison.parity.reason}")
        result = runner.compare(
            runner.with_fixes("without", stacked),
            arm,
            fixes=together,
            place=arm_name,
            parity_class=class_of(runner, together),
            parity=comparison.parity,
            toggled=comparison.toggleable & {fix.name},
            alpha=levels,
        )
    except OutOfBudget:
        return replace(entry, status="stopped", why=f"{alone}; out of budget on top of {onto}")
    except (CommandFailed, WritesOutside) as error:
        return rejected(f"together with {onto} it failed: {first_line(error)}")
    result = with_doubts(result, [fix])  # what it can bring by itself at most holds here, too
    verdict = result.verdict
    flaw = flaw_of(result, together, arm, comparison)
    if flaw is not None:
        return rejected(f"on top of {onto} {flaw}", verdict)
    status, why = status_of(verdict)
    if status == "stopped":
        why = f"{alone}; out of budget while it was tried on top of {onto} ({why})"
        return replace(entry, status=status, why=why)
    if status != "kept":
        return left_out(status, f"not on top of {onto}: {why}", verdict)
    why = (
        f"{entry.why}; faster on top of {onto} too"
        if is_kept
        else f"{alone}, but faster on top of {onto}, and learns the same"
    )
    return with_costs(runner, fix, replace(entry, status="kept", why=why, added=verdict), result)
