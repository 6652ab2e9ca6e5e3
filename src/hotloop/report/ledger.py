"""Fixes that were tried, for a terminal."""

from __future__ import annotations

from hotloop.core.judgement import Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.report import numbers


def ledger_answer(ledger: Ledger) -> str:
    """The sentence a reader came for."""
    if not ledger.fixes:
        return "No fix that can be tried on a running script answers what was found."
    if not ledger.kept:
        return f"No fix was kept, of {_tried(len(ledger.fixes))}."
    names = " and ".join(ledger.kept)
    if ledger.together is None:
        return f"Kept {names}, but together they could not be measured."
    return f"With {names}: {_ratio(ledger.together)}, {ledger.together.outcome}, on fresh pairs."


def render_ledger(ledger: Ledger) -> str:
    """The answer, and a line for each fix."""
    width = max((len(fix.name) for fix in ledger.fixes), default=0)
    lines = [ledger_answer(ledger), ""] if ledger.fixes else [ledger_answer(ledger)]
    for fix in ledger.fixes:
        lines.append(_line(fix, width))
        lines += [f"      {line.strip()}" for line in fix.details.splitlines()]
    if ledger.not_comparable is not None:
        lines.append(f"  its steps are not comparable from run to run: {ledger.not_comparable}")
    if ledger.fixes:
        lines.append(
            f"  each over {ledger.steps} steps after {ledger.warmup_steps} of warm-up, in interleaved "
            f"pairs of fresh processes; {ledger.wall_s:.0f} s in all"
        )
    return "\n".join(lines)


def _line(fix: TriedFix, width: int) -> str:
    ratio = _ratio(fix.verdict) if fix.verdict is not None else ""
    at_most = f"predicted at most {numbers.ratio(fix.predicted)}" if fix.predicted else ""
    said = ", ".join(part for part in (fix.why, ratio, at_most) if part)
    return f"  {fix.status.replace('_', ' '):<11} {fix.name:<{width}}  {said}"


def _ratio(verdict: Verdict) -> str:
    if verdict.ratio is None or verdict.ratio_low is None or verdict.ratio_high is None:
        return "not measured"
    low, high = numbers.ratio(verdict.ratio_low), numbers.ratio(verdict.ratio_high)
    return f"{numbers.ratio(verdict.ratio)} ({low} to {high}, {verdict.num_pairs} pairs)"


def _tried(count: int) -> str:
    return "1 that was looked at" if count == 1 else f"{count} that were looked at"
