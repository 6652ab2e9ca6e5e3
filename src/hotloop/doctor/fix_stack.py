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
from types import MappingProxyType

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Verdict
from hotloop.core.ledger import Status, TriedFix
from hotloop.doctor.compared_arms import unfinished_runs
from hotloop.doctor.confirmation import (
    NOT_PAID,
    Confirmed,
    confirmed,
    first_line,
    flaw_of,
    short_name,
)
from hotloop.doctor.fix_costs import with_costs
from hotloop.doctor.fix_status import not_faster, showed
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparisons
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.doctor.writes import WritesOutside
from hotloop.judge.looks import LOOKS, divided_levels
from hotloop.optimizations.catalogue import parity_of_live

Tried = dict[str, TriedFix]
ERROR_ON_TOP = 0.04
"""Two-sided, over all that is tried on top in one run: half of it is gains."""


def stack(
    runner: TrialRunner,
    comparisons: LossComparisons,
    kept: Sequence[Fix],
    tried: Tried,
    undecided: Sequence[Fix] = (),
    proven: Mapping[str, Confirmed] = MappingProxyType({}),
) -> Confirmed:
    """The fixes that stay, and what they bring together on fresh pairs.

    undecided: alone the noise hid what they do (`fix_status.may_yet`). On top of what is kept they get another
    chance: what made the pairs differ may be gone. proven: by name, what stays where those on top of it are not
    confirmed. Entries of `tried` whose fix does not stay are replaced, with the reason.
    """
    stacked: list[Fix] = []
    order = order_of(kept, undecided, tried)
    levels = divided_levels(LOOKS, len(order) - 1, ERROR_ON_TOP)
    for fix in order:
        if not stacked:
            stacked.append(fix)
            continue
        entry, stays = _added(runner, comparisons, stacked, fix, tried[fix.name], levels)
        tried[fix.name] = entry
        runner.report(tried=tuple(tried.values()))
        if stays:
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
    if found.why_not is None and first_name not in found.dropped:
        return found
    status: Status = "rejected"
    why = f"fresh pairs do not confirm it: {found.why_not}"
    if found.why_not == NOT_PAID:
        status, why = "not_tried", _left_of_budget(found.verdict)
        found = replace(found, verdict=None)
    for fix in found.fixes:
        entry = tried[fix.name]
        if fix.name != first_name:
            tried[fix.name] = replace(entry, status=status, why=f"{entry.why}, but {why}")
    return found if first is None else first


def _left_of_budget(together: Verdict | None) -> str:
    pairs = "" if together is None else f" ({showed(together)})"
    return f"not confirmed: out of budget{pairs}"


def order_of(kept: Sequence[Fix], undecided: Sequence[Fix], tried: Tried) -> list[Fix]:
    """In which they are put together: nothing where nothing is kept."""
    return [*_in_order(kept, tried), *_in_order(undecided, tried)] if kept else []


def _in_order(kept: Sequence[Fix], tried: Tried) -> list[Fix]:
    """The fastest first; what rounds products comes last, so that the others are held to the narrow band."""

    def key(fix: Fix) -> tuple[bool, float]:
        verdict = tried[fix.name].verdict
        ratio = verdict.ratio if verdict is not None and verdict.ratio is not None else 1.0
        return parity_of_live([fix.name]) == "reduced_precision", -ratio

    return sorted(kept, key=key)


def _added(
    runner: TrialRunner,
    comparisons: LossComparisons,
    stacked: Sequence[Fix],
    fix: Fix,
    entry: TriedFix,
    levels: Sequence[float],
) -> tuple[TriedFix, bool]:
    """Whether it is faster with it than without, both on top of what is kept already."""
    onto = " and ".join(each.name for each in stacked)

    alone = "faster alone" if entry.status == "kept" else f"{entry.why} alone"

    def rejected(why: str, verdict: Verdict | None = None) -> tuple[TriedFix, bool]:
        why = f"{alone}, but {why}" if entry.status == "kept" else f"{alone}; {why}"
        return replace(entry, status="rejected", why=why, added=verdict), False

    clash = conflict(stacked, fix)
    if clash is not None:
        return rejected(f"it cannot be together with {clash}")
    names = [each.name for each in (*stacked, fix)]
    arm_name = short_name("with-" + "+".join(names))
    arm = runner.with_fixes(arm_name, (*stacked, fix))
    losses = unfinished_runs(runner, arm, (*stacked, fix))
    if not runner.pays_for(runner.needed_s(LOOKS[0], losses=losses, place=arm_name)):
        why = f"{alone}; out of budget before it was tried on top of {onto}"
        return replace(entry, status="not_tried", why=why), False
    try:
        comparison = comparisons.of(arm_name, (*stacked, fix))
        if comparison.not_applied is not None:
            return rejected(f"on top of {onto} it was not applied: {comparison.not_applied}")
        if comparison.parity.result == "different":
            return rejected(f"with {onto} it learns something else: {comparison.parity.reason}")
        if comparison.parity.result == "not_checked":
            return rejected(
                f"with {onto} it is not known to learn the same: {comparison.parity.reason}"
            )
        result = runner.compare(
            runner.with_fixes("without", stacked),
            arm,
            fixes=(*stacked, fix),
            place=arm_name,
            parity_class=comparisons.class_of((*stacked, fix)),
            parity=comparison.parity,
            toggled=comparison.toggleable & {fix.name},
            alpha=levels,
        )
    except (CommandFailed, WritesOutside) as error:
        return rejected(f"together with {onto} it failed: {first_line(error)}")
    verdict = result.verdict
    flaw = flaw_of(result, (*stacked, fix), arm, comparison)
    if flaw is not None:
        return rejected(f"on top of {onto} {flaw}", verdict)
    if verdict.num_pairs < LOOKS[0] and verdict.outcome != "incomparable":
        why = f"{alone}; out of budget while it was tried on top of {onto} ({showed(verdict)})"
        return replace(entry, status="not_tried", why=why), False
    if verdict.outcome != "improved":
        return rejected(f"not on top of {onto}: {not_faster(verdict)}", verdict)
    why = (
        f"{entry.why}; faster on top of {onto} too"
        if entry.status == "kept"
        else f"{alone}, but faster on top of {onto}, and learns the same"
    )
    entry = replace(entry, status="kept", why=why, added=verdict)
    entry = with_costs(runner, fix, entry, result)
    return entry, entry.status == "kept"


def conflict(stacked: Sequence[Fix], fix: Fix) -> str | None:
    """The name of one in the stack that it cannot be together with."""
    for each in stacked:
        if each.name in fix.technique.conflicts or fix.name in each.technique.conflicts:
            return each.name
    return None
