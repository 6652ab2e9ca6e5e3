"""Plain text for a terminal: the answer first, a table that adds up, then what was not examined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hotloop.core.course import PairSpeeds
from hotloop.core.judgement import Bound, Diagnosis, Finding, Verdict
from hotloop.core.step import HOST_PHASES
from hotloop.report import numbers
from hotloop.report.evidence import evidence_rows
from hotloop.report.words import answer, gain, headline, worth_sentence

BAR_CELLS = 32
MAX_FINDINGS = 3
MAX_EVIDENCE = 4
"""Evidence shown of each finding in the terminal; the page and the JSON have all."""
BOUNDS: dict[Bound, str] = {
    "input": "limited by waiting for data",
    "copy": "limited by copies to the device",
    "host": "limited by Python code around the model",
    "launch": "limited by starting many short operations",
    "sync": "limited by the host waiting for the device",
    "compute": "mostly computing",
    "memory_bandwidth": "limited by the speed of memory",
    "communication": "limited by waiting for other processes",
    "memory_capacity": "limited by the size of memory",
    "checkpoint": "limited by saving",
    "evaluation": "limited by evaluation",
    "logging": "limited by logging",
    "optimizer": "limited by the optimizer",
    "gc": "limited by garbage collection",
    "recompile": "limited by recompiling",
    "balanced": "balanced",
}


def render_verdict(verdict: Verdict) -> str:
    """The answer, then the evidence, one fact per line."""
    return "\n".join([answer(verdict), "", *_aligned(verdict_rows(verdict))])


def verdict_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """The evidence of a verdict, for the terminal and for the page."""
    rows = [("verdict", headline(verdict))]
    if verdict.ratio is not None:
        steady = "steady state" if verdict.over == "steady" else "over all steps"
        rows.append((steady, with_interval(verdict.ratio, verdict.ratio_low, verdict.ratio_high)))
    if (whole := verdict.all_in) is not None:
        rows.append(("all steps", with_interval(whole.ratio, whole.ratio_low, whole.ratio_high)))
    for arm, value in (
        (verdict.baseline, verdict.baseline_s_per_work),
        (verdict.candidate, verdict.candidate_s_per_work),
    ):
        if value:
            rows.append((arm, numbers.rate(1 / value, f"{verdict.unit}s")))
    if verdict.noise_floor is not None:
        rows.append(("noise floor", f"{numbers.percent(verdict.noise_floor)} (same against same)"))
    if (least := verdict.minimum_detectable_effect) is not None:
        rows.append(("gains these pairs can show", f"{numbers.percent(least)} or more"))
    if verdict.pair_ratios:
        digits = numbers.ratio_digits(verdict.ratio_low, verdict.ratio_high)
        each = "  ".join(f"{value:.{digits}f}" for value in verdict.pair_ratios)
        rows.append(("each pair", each))
    return rows + [("because", reason) for reason in verdict.reasons]


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """Speed, the breakdown of the step, at most three findings, what was not examined."""
    parts = [_speed_line(diagnosis)]
    if diagnosis.breakdown:
        parts.append(render_breakdown(diagnosis.breakdown))
    if diagnosis.device:
        parts.append(render_breakdown(diagnosis.device, title="what the device does meanwhile"))
    if diagnosis.breakdown or diagnosis.findings:
        parts.append(render_findings(diagnosis.findings))
    if diagnosis.worth is not None:
        parts.append("\n".join(["is it worth it?", f"  {worth_sentence(diagnosis.worth)}"]))
    if diagnosis.not_examined:
        parts.append("\n".join(["not examined", *(f"  {what}" for what in diagnosis.not_examined)]))
    return "\n\n".join(part for part in parts if part)


def render_breakdown(
    fractions: dict[str, float], *, title: str = "where a step's time goes"
) -> str:
    """Phases with their share of the time; the printed column adds up to its total."""
    names = in_order(fractions)
    shown = numbers.shares({name: fractions[name] for name in names})
    width = max(len(name) for name in names)
    lines = [title]
    for name in names:
        bar = "█" * round(BAR_CELLS * max(fractions[name], 0.0))
        lines.append(f"  {name:<{width}}  {shown[name]}  {bar}".rstrip())
    lines.append(f"  {'total':<{width}}  {numbers.share(sum(fractions.values()))}")
    return "\n".join(lines)


def in_order(fractions: dict[str, float]) -> list[str]:
    """The phases that took time, in the order of a step; unknown names last, none dropped."""
    known = [name for name in HOST_PHASES if name in fractions]
    names = known + [name for name in fractions if name not in HOST_PHASES]
    return [name for name in names if fractions[name] != 0] or names


def render_findings(findings: Sequence[Finding]) -> str:
    """At most three; the rest only counted."""
    if not findings:
        return "no findings"
    lines = ["findings"]
    for finding in findings[:MAX_FINDINGS]:
        site = f"  at {finding.site}" if finding.site else ""
        lines.append(f"  {finding.code}  {finding.title}{site} ({gain(finding)})")
        if finding.optimization:
            lines.append(f"         fixed by `{finding.optimization}`")
        if finding.advice:
            lines.append(f"         {finding.advice}")
        if seen := evidence_rows(finding.evidence)[:MAX_EVIDENCE]:
            lines.append(f"         seen: {'; '.join(f'{name} {value}' for name, value in seen)}")
    if len(findings) > MAX_FINDINGS:
        lines.append(f"  and {len(findings) - MAX_FINDINGS} more in the page and the JSON")
    lines.append(f"  how to test it, and what can go wrong: `hotloop explain {findings[0].code}`")
    return "\n".join(lines)


def render_pairs(pairs: Sequence[PairSpeeds]) -> str:
    """What both processes of each pair reached, before there is a verdict."""
    if not pairs:
        return ""
    rows = []
    for each in pairs:
        before, after = each.baseline_per_s, each.candidate_per_s
        both = f"{numbers.count(before)} and {numbers.count(after)} per second"
        ratio = f", {numbers.ratio(after / before)}" if before and after else ""
        rows.append((f"pair {each.pair}", both + ratio))
    return render_rows("measured so far", rows)


def render_settings(rows: Iterable[tuple[str, str, str]], *, num_defaults: int = 0) -> str:
    """`key value origin`, and how many others stand at their default."""
    aligned = _aligned_three(list(rows))
    if num_defaults:
        aligned.append(f"  and {num_defaults} at their default")
    return "\n".join(["settings", *aligned])


def render_rows(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A titled list of names and values."""
    return "\n".join([title, *_aligned(rows)]) if rows else ""


def _speed_line(diagnosis: Diagnosis) -> str:
    steps = diagnosis.steps
    if steps.tokens_per_s is not None:
        speed = numbers.rate(steps.tokens_per_s, "tokens")
    elif steps.samples_per_s is not None:
        speed = numbers.rate(steps.samples_per_s, "samples")
    else:
        speed = ""
    if not steps.measured:
        return ""
    parts = []
    if steps.median_s is not None:
        parts.append(f"{numbers.seconds(steps.median_s)} per step (median)")
    # Named apart from the median: slow steps (compile, evaluation) count here.
    count = "1 step" if steps.measured == 1 else f"{steps.measured:,} steps"
    warmup = f"{count} after {steps.warmup:,} of warm-up"
    parts.append(f"{speed} over all {warmup}" if speed else warmup)
    if diagnosis.bound:
        parts.append(BOUNDS[diagnosis.bound])
    return ", ".join(parts)


def with_interval(ratio: float | None, low: float | None, high: float | None) -> str:
    """`2.71x (2.60 to 2.82)`, without what is not known."""
    if ratio is None:
        return ""
    text = numbers.ratio(ratio, digits=numbers.ratio_digits(low, high))
    if low is None or high is None or not math.isfinite(high):
        return text
    return f"{text} ({numbers.interval(low, high)})"


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in rows]


def _aligned_three(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    first = max((len(row[0]) for row in rows), default=0)
    second = max((len(row[1]) for row in rows), default=0)
    return [f"  {a:<{first}}  {b:<{second}}  {c}" for a, b, c in rows]
