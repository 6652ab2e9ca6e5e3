"""Fixes that were tried, their patch and how well their gains were predicted: for a terminal and for the page."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from itertools import groupby

from hotloop.core.judgement import Finding, Status, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.report import numbers

MANY = 3
"""Lines that would say the same."""
INDENT = " " * 6


def ledger_answer(ledger: Ledger) -> str:
    """The sentence a reader came for."""
    if not ledger.fixes and ledger.asked:
        return f"Nothing that was asked for could be tried here: {', '.join(ledger.asked)}."
    if not ledger.fixes:
        return "No fix that can be tried on a running script answers what was found."
    if all(fix.status in ("not_tried", "stopped") for fix in ledger.fixes):
        if not any(fix.verdict for fix in ledger.fixes):
            return f"No {_noun(ledger)[0]} was tried."
        if ledger.continue_with is not None:
            return f"No {_noun(ledger)[0]} is proven yet: the budget ended first."
    if not ledger.kept:
        return f"{_tested(ledger)}."
    names = " and ".join(ledger.kept)
    if ledger.together is None:
        return f"Kept {names}, but together they could not be measured."
    fresh = "fresh processes" if ledger.together.switched else "fresh pairs"
    if ledger.run_with and ledger.together in [fix.verdict for fix in ledger.fixes]:
        fresh = "its own pairs, since it was tried first and alone"
    measured = f"{ratio_words(ledger.together)}, {ledger.together.outcome}, on {fresh}"
    return f"With {names}: {measured}{whole_epochs(ledger)}."


def whole_epochs(ledger: Ledger) -> str:
    """What follows the ratio of steps where each epoch starts its workers again."""
    whole = numbers.ratio(ledger.together_over_epochs)
    known = ledger.together_over_epochs is not None
    return f"; {whole} over whole epochs, as each starts its workers again" if known else ""


def render_ledger(ledger: Ledger) -> str:
    """The answer, and a line for each fix."""
    width = max((len(fix.name) for fix in ledger.fixes), default=0)
    lines = [ledger_answer(ledger), ""] if ledger.fixes else [ledger_answer(ledger)]
    for _, group in groupby(ledger.fixes, _line_of):
        fixes = [*group]
        if len(fixes) >= MANY:
            lines.append(f"  {'not tried':<12} {len(fixes)} {_noun(ledger)[1]}: {fixes[0].why}")
            names = ", ".join(fix.name for fix in fixes)
            lines += textwrap.wrap(names, 110, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)  # fmt: skip
            continue
        for fix in fixes:
            lines.append(_line(fix, width))
            lines += [f"{INDENT}{line.strip()}" for line in fix.details.splitlines()]
    if ledger.not_comparable is not None:
        lines.append(f"  its steps are not comparable from run to run: {ledger.not_comparable}")
    if said := overstated(ledger):
        lines.append(f"  {said}")
    if ledger.fixes:
        lines.append(f"  {how_measured(ledger)}")
    if ledger.run_with is not None:
        lines.append(f"  run it {'with' if ledger.kept else 'as given'}: {ledger.run_with}")
    if ledger.continue_with is not None:
        lines.append(f"  go on with: {ledger.continue_with}")
    return "\n".join(lines)


def _line_of(fix: TriedFix) -> tuple[str, str]:
    """The same for all whose lines would say the same."""
    is_plain = fix.status == "not_tried" and not fix.details and not _expected(fix)
    return fix.why, "" if is_plain else fix.name


def overstated(ledger: Ledger) -> str:
    """What its gain over all pairs is, and that a gain as small as what shows at all tends to be smaller."""
    fresh = ledger.together
    if not ledger.kept or fresh is None or fresh.ratio is None:
        return ""
    said = []
    if ledger.together_pooled is not None:
        said.append(
            f"over all its pairs, those that chose it too: {numbers.ratio(ledger.together_pooled)}"
        )
    if fresh.is_overstated:
        least = numbers.ratio(1 + (fresh.minimum_detectable_effect or 0.0))
        said.append(
            f"pairs that differ as these do show gains from {least} on; one near or below that is on average overstated: "
            "in simulations by a twentieth to a third of the gain"
        )
    return "; ".join(said)


def _line(fix: TriedFix, width: int) -> str:
    # What was stopped says itself what its few pairs were.
    measured = fix.verdict if fix.status != "stopped" else None
    # A number that is in doubt is said with its doubt, if at all.
    ratio = ratio_words(measured) if measured is not None and not measured.doubts else ""
    said = ", ".join(part for part in (fix.why, ratio, *costs(fix)) if part)
    return f"  {status_words(fix.status):<12} {fix.name:<{width}}  {said}"


def status_words(status: Status) -> str:
    """The status as the JSON has it, with spaces: nothing else is said of it."""
    return status.replace("_", " ")


def costs(fix: TriedFix) -> tuple[str, str, str, str]:
    """What it brought to those that were kept before it, what it costs, and what was predicted before it was tried."""
    on_top = "" if fix.added is None else f"on top {ratio_words(fix.added)}"
    return on_top, start_cost(fix), memory_cost(fix), _expected(fix)


def start_cost(fix: TriedFix) -> str:
    """What it takes before its first fast step, of one that is kept."""
    if fix.start_s is None or fix.pays_after_steps is None or fix.status != "kept":
        return ""
    if not fix.pays_after_steps:
        return "pays from the first step on"
    return (
        f"starting takes {numbers.seconds(fix.start_s)} more, paid after "
        f"{numbers.counted(fix.pays_after_steps, 'step')}"
    )


def memory_cost(fix: TriedFix) -> str:
    """What it takes beside time, of one that is kept."""
    if fix.status != "kept" or not fix.memory_bytes:
        return ""
    more = "more" if fix.memory_bytes > 0 else "less"
    return f"takes {numbers.size(abs(fix.memory_bytes))} {more} memory"


def _expected(fix: TriedFix) -> str:
    if fix.predicted is not None:
        low, high = fix.predicted.ratio_low, fix.predicted.ratio_high
        return f"predicted {numbers.interval(low, high)}, all else equal"
    most = fix.gain_at_most
    return f"predicted up to {numbers.ratio(most)}, all else equal" if most else ""


def ratio_words(verdict: Verdict) -> str:
    """`1.31x (1.20 to 1.43, 4 pairs)`; the interval alone where it is wide."""
    if verdict.ratio is None or verdict.ratio_low is None or verdict.ratio_high is None:
        return "not measured"
    digits = numbers.ratio_digits(verdict.ratio_low, verdict.ratio_high)
    spread = numbers.interval(verdict.ratio_low, verdict.ratio_high)
    unit = "processes" if verdict.switched else "pairs"
    if not numbers.is_known(verdict.ratio, verdict.ratio_low, verdict.ratio_high):
        return f"{spread}x ({verdict.num_pairs} {unit})"
    return f"{numbers.ratio(verdict.ratio, digits=digits)} ({spread}, {verdict.num_pairs} {unit})"


def _tested(ledger: Ledger) -> str:
    num = sum(fix.verdict is not None for fix in ledger.fixes)
    one, several = _noun(ledger)
    if not num:
        return f"No {one} was kept, and none came as far as being timed"
    tested = f"{numbers.counted(num, one, several)} tested"
    late = [fix.name for fix in ledger.fixes if fix.status == "does_not_pay"]
    faster = [fix.name for fix in ledger.fixes if fix.status == "kept"]
    if faster:  # measured alone, not to be put together
        return f"{tested} alone, of which faster: {numbers.listed(faster)}"
    if late:
        return f"{tested}, none kept: the command ends before {numbers.listed(late)} would pay for its start"
    early = " before the budget ended" if ledger.continue_with is not None else ""
    return f"{tested}, none proven faster{early}"


def _noun(ledger: Ledger) -> tuple[str, str]:
    return ("fix", "fixes") if ledger.run_with is None else ("value", "values")


def fix_rows(ledger: Ledger) -> list[tuple[str, ...]]:
    """Status, name, measured ratio, what it adds and costs, what was expected, why, and what it answers; best first."""
    return [
        (
            status_words(fix.status),
            f"`{fix.name}` {'' if fix.value is True or ledger.run_with else fix.value}".strip(),
            "" if fix.verdict is None or fix.verdict.doubts else ratio_words(fix.verdict),
            *costs(fix),
            fix.why,
            " ".join(fix.answers),
        )
        for fix in sorted(ledger.fixes, key=_rank)
    ]


def _rank(fix: TriedFix) -> tuple[bool, float]:
    """Kept ones first, then by what was measured."""
    gain = fix.verdict.ratio if fix.verdict is not None else None
    return fix.status != "kept", -(gain or 0.0)


def by_hand(findings: Sequence[Finding], ledger: Ledger | None) -> list[Finding]:
    """What only a person can mend: findings with advice, but for those whose fix was tried and is none here."""
    tried = ledger.fixes if ledger is not None else ()
    settled = {
        code
        for fix in tried
        if fix.status in ("kept", "does_not_pay", "rejected")
        for code in fix.answers
    }
    return [each for each in findings if each.advice and each.code not in settled]


def how_measured(ledger: Ledger) -> str:
    """Over how many steps, in which processes, in what time."""
    took = f"{numbers.seconds(ledger.wall_s)} in all"
    if ledger.continued:
        took = (
            f"{numbers.seconds(ledger.wall_s)} in the last call, which went on from an earlier one"
        )
    over = _over(ledger)
    if not over:
        return f"none was timed; {took}"
    (steps, first), *others = over.items()
    parts = [
        f"each over {_after(*steps)}"
        if not others
        else f"{numbers.listed(first)} over {_after(*steps)}"
    ]
    parts += [f"{numbers.listed(names)} over {_after(*steps)}" for steps, names in others]
    how = "in interleaved pairs of fresh processes"
    if ledger.forked:
        how += ", forked two pairs at a time from one that had imported already"
    switched = [fix.name for fix in ledger.fixes if fix.verdict and fix.verdict.switched]
    if switched:
        how += f", {numbers.listed(switched)} toggled within each process"
    return f"{', '.join(parts)}, {how}{_kept_in(ledger)}; {took}"


def _kept_in(ledger: Ledger) -> str:
    """The places that these processes could write to."""
    hosts = f" but {', '.join(ledger.network_hosts)}" if ledger.network_hosts else ""
    network = f" and no network{hosts}" if hosts or not ledger.network else ""
    where = {
        "layer": f", with every write in a layer of its own{network}",
        "landlock": f", in copies that the kernel keeps them from leaving{network}",
        "copy": ", in copies of the working directory",
        "none": ", in the working directory itself",
    }
    return where[ledger.isolation] if ledger.isolation is not None else ""


def _over(ledger: Ledger) -> dict[tuple[int, int], list[str]]:
    """What was timed, by counted steps and warm-up of its processes."""
    over: dict[tuple[int, int], list[str]] = {}
    for fix in ledger.fixes:
        if fix.verdict is not None:
            steps = fix.steps or ledger.steps, fix.warmup_steps or ledger.warmup_steps
            over.setdefault(steps, []).append(fix.name)
    if ledger.together is not None:
        steps = (
            ledger.together_steps or ledger.steps,
            ledger.together_warmup_steps or ledger.warmup_steps,
        )
        over.setdefault(steps, []).append("all together")
    return over


def _after(steps: int, warmup_steps: int) -> str:
    return f"{steps} steps after {warmup_steps} of warm-up"


def render_patch(ledger: Ledger) -> str:
    """What the patch holds, and the words for what it does not, for a terminal."""
    kept = [fix for fix in ledger.fixes if fix.patch is not None]
    if not kept:
        return "No fix was kept, so there is no patch to write."
    edited = [fix for fix in kept if fix.patch == "edited"]
    if ledger.diff is None:
        lines = ["No patch was written: none of what was kept is safe to edit. By hand:"]
    else:
        lines = [f"Patch: {ledger.diff}"]
        lines += [f"  {fix.name}: edits {fix.patch_text}" for fix in edited]
        lines.append(f"  apply it here: {apply_command(ledger)}")
        lines.append(f"  undo it: {apply_command(ledger, undo=True)}")
    words = [fix for fix in kept if fix.patch == "words"]
    if words and edited:
        lines.append("Not in it, to be written by hand:")
    for fix in words:
        lines.append(textwrap.indent(f"{fix.name}: {fix.patch_text}", "  "))
    return "\n".join(lines)


def apply_command(ledger: Ledger, *, undo: bool = False) -> str:
    """`git apply runs/doctor-train/fix.patch`"""
    return shlex.join(["git", "apply", *(["-R"] if undo else []), ledger.diff or ""])
