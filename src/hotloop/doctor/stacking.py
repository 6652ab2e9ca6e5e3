"""Fixes that help, put together: gains do not add, and may undo each other, so each step is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Verdict
from hotloop.core.ledger import Status, TriedFix
from hotloop.doctor.applied import why_not_applied, why_wrong
from hotloop.doctor.deciding import longer, not_faster, showed
from hotloop.doctor.fixes import Fix
from hotloop.doctor.learning import Learned, Learning
from hotloop.doctor.switched import why_not_switched
from hotloop.doctor.trial_costs import LOOKS
from hotloop.doctor.workbench import Workbench
from hotloop.doctor.writes import WritesOutside
from hotloop.optimizations.catalogue import parity_of_live
from hotloop.trial.session import SessionResult

Tried = dict[str, TriedFix]
LONGEST_NAME = 64
NOT_PAID = "not paid"
"""Instead of a reason: the budget did not do for the pairs that confirm."""


def stack(
    bench: Workbench,
    learning: Learning,
    kept: Sequence[Fix],
    tried: Tried,
    undecided: Sequence[Fix] = (),
) -> tuple[tuple[str, ...], Verdict | None]:
    """The fixes that stay, and what they bring together on fresh pairs.

    undecided: alone the noise hid what they do (`deciding.may_yet`). On top of what is kept they get another
    chance: what made the pairs differ may be gone. Entries of `tried` whose fix does not stay are replaced,
    with the reason.
    """
    stacked: list[Fix] = []
    for fix in order_of(kept, undecided, tried):
        if not stacked:
            stacked.append(fix)
            continue
        entry, stays = _added(bench, learning, stacked, fix, tried[fix.name])
        tried[fix.name] = entry
        if stays:
            stacked.append(fix)
    if not stacked:
        return (), None
    together, why = _confirmed(bench, learning, stacked)
    if why is None:
        return tuple(fix.name for fix in stacked), together
    status: Status = "rejected"
    if why == NOT_PAID:
        status, why = "not_tried", _left_of_budget(together)
        together = None
    for fix in stacked:
        entry = tried[fix.name]
        tried[fix.name] = replace(entry, status=status, why=f"{entry.why}, but {why}")
    return (), together


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
    bench: Workbench, learning: Learning, stacked: Sequence[Fix], fix: Fix, entry: TriedFix
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
    if bench.short_s(LOOKS[0], losses=1):
        why = f"{alone}; out of budget before it was tried on top of {onto}"
        return replace(entry, status="not_tried", why=why), False
    names = [each.name for each in (*stacked, fix)]
    arm_name = _short("with-" + "+".join(names))
    try:
        learned = learning.of(arm_name, (*stacked, fix))
        if learned.not_applied is not None:
            return rejected(f"on top of {onto} it was not applied: {learned.not_applied}")
        if learned.parity.result == "different":
            return rejected(f"with {onto} it learns something else: {learned.parity.reason}")
        if learned.parity.result == "not_checked":
            return rejected(
                f"with {onto} it is not known to learn the same: {learned.parity.reason}"
            )
        result = bench.compare(
            bench.with_fixes("without", stacked),
            bench.with_fixes(arm_name, (*stacked, fix)),
            fixes=(*stacked, fix),
            place=arm_name,
            parity_class=parity_of_live(names),
            parity=learned.parity,
            switched=learned.switchable & {fix.name},
        )
    except (CommandFailed, WritesOutside) as error:
        return rejected(f"together with {onto} it failed: {_first_line(error)}")
    verdict = result.verdict
    flaw = _flaw(result, (*stacked, fix), arm_name, learned)
    if flaw is not None:
        return rejected(f"on top of {onto} {flaw}", verdict)
    if verdict.outcome != "improved":
        return rejected(f"not on top of {onto}: {not_faster(verdict)}", verdict)
    why = (
        f"{entry.why}; faster on top of {onto} too"
        if entry.status == "kept"
        else f"{alone}, but faster on top of {onto}, and learns the same"
    )
    return replace(entry, status="kept", why=why, added=verdict), True


def conflict(stacked: Sequence[Fix], fix: Fix) -> str | None:
    """The name of one in the stack that it cannot be together with."""
    for each in stacked:
        if each.name in fix.technique.conflicts or fix.name in each.technique.conflicts:
            return each.name
    return None


def _confirmed(
    bench: Workbench, learning: Learning, stacked: Sequence[Fix]
) -> tuple[Verdict | None, str | None]:
    """All of them against the command as it is on pairs that chose nothing; why not, where they fail."""
    names = [fix.name for fix in stacked]
    # A call that continues may have kept others than the call before it.
    arm_name = _short("together-" + "+".join(names))
    try:
        learned = learning.of(arm_name, stacked)
        if learned.not_applied is not None:
            return None, f"together not applied: {learned.not_applied}"
        if bench.short_s(1, reserved=False, place=arm_name):
            return None, NOT_PAID
        result = bench.compare(
            bench.baseline,
            bench.with_fixes(arm_name, stacked),
            fixes=stacked,
            place=arm_name,
            parity_class=parity_of_live(names),
            parity=learned.parity,
            reserved=False,
            # What cannot be turned would be on in both halves.
            switched=names if learned.switchable.issuperset(names) else (),
        )
    except (CommandFailed, WritesOutside) as error:
        return None, f"the confirming runs failed: {_first_line(error)}"
    verdict = result.verdict
    flaw = _flaw(result, stacked, arm_name, learned)
    if flaw is not None:
        return verdict, f"together {flaw}"
    if verdict.num_pairs < LOOKS[0] and verdict.outcome != "incomparable":
        return verdict, NOT_PAID
    if verdict.outcome != "improved":
        return verdict, f"fresh pairs do not confirm it: {not_faster(verdict)}"
    if verdict.parity.result not in ("same", "within_noise"):
        return verdict, f"together they do not learn the same: {verdict.parity.reason}"
    return verdict, None


def _flaw(
    result: SessionResult, fixes: Sequence[Fix], arm_name: str, learned: Learned
) -> str | None:
    """What speaks against a stack in its timed runs: one that was not applied, losses that part later."""
    runs = sorted(result.directory.glob(f"pair-*-{arm_name}/run"))
    for fix in fixes:
        wrong = why_wrong(fix, runs)
        if wrong is not None:
            return f"{fix.name}: {wrong}"
        why = why_not_applied(fix, runs, [candidate for _, candidate in result.pairs])
        if why is None and fix.name in result.switched:
            why = why_not_switched(fix.name, runs)
        if why is not None:
            return f"{fix.name} was not applied: {why}"
    parity = longer(learned.parity, result)
    return f"it learns something else: {parity.reason}" if parity.result == "different" else None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _short(name: str) -> str:
    """Fit for an arm and a directory."""
    name = name.replace("+", "-")
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{digest}"
