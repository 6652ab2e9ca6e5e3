"""Plain text for a terminal: the answer first, a table that adds up, then what was not examined."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from hotloop.core.course import PairSpeeds
from hotloop.core.judgement import Bound, Diagnosis, Finding, Target, Verdict
from hotloop.core.stack_profile import SampledPhase, StackProfile
from hotloop.core.step import HOST_PHASES
from hotloop.report import numbers
from hotloop.report.evidence import evidence_rows
from hotloop.report.words import (
    TARGET_WORDS,
    answer,
    count_line,
    gain,
    headline,
    target_value,
    worth_sentence,
)

BAR_CELLS = 32
TEXT_CELLS = 60
TARGETS_WIDTH = 100
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
    return "\n".join([answer(verdict), "", *columns(verdict_rows(verdict))])


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


def render_stack_profile(profile: StackProfile) -> str:
    """A process that was watched from outside: the largest phase, all of them with lines, what to try next time, and what such samples do not show."""
    largest = profile.phases[0]
    what = f"{largest.phase} {_about(largest)}" if profile.trains else "no training was seen"
    watched = f"{profile.num_samples:,} samples in {numbers.seconds(profile.seconds)}"
    lines = [f"PID {profile.pid}: {what} of {watched}", "", "where its thread that trains was seen"]
    for each in profile.phases:
        lines += _phase_lines(each)
    if profile.workers is not None:
        lines += ["", "what its loader workers did", *_phase_lines(profile.workers)]
    codes = {worth.code: worth for phase in profile.phases for worth in phase.worth_trying}
    if codes:
        lines += ["", "what this looks like, and what to try (nothing was tried here)"]
    for code, worth in codes.items():
        fixes = f"; fixes: {', '.join(worth.fixes)}" if worth.fixes else ""
        lines.append(f"  {code}  {worth.title}: `hotloop explain {code}`{fixes}")
    lines += ["", "next time, to have it measured and fixes tried"]
    lines.append(
        f"  {profile.command or 'hotloop doctor -- COMMAND (how it was started is not known)'}"
    )
    lines += ["", "not examined", *(f"  {note}" for note in profile.notes)]
    lines.append(
        "  steps and losses; evaluation, whose passes count as forward; C code within a line"
    )
    return "\n".join(lines)


def _phase_lines(each: SampledPhase) -> list[str]:
    bar = "█" * round(BAR_CELLS * each.fraction)
    lines = [f"  {each.phase:<14}  {_about(each):<28}  {bar}".rstrip()]
    for line in each.lines:
        text = f"  {line.text[:TEXT_CELLS]}" if line.text else ""
        lines.append(f"    {numbers.share(line.fraction)}  {line.site}  {line.function}{text}")
    return lines


def _about(each: SampledPhase) -> str:
    low, high = (f"{100 * value:.0f}" for value in (each.low, each.high))
    return f"about {100 * each.fraction:.0f} % ({low} to {high} %)"


def render_targets(targets: Sequence[Target]) -> str:
    """A table of the checklist; reasons wrap under themselves."""
    if not targets:
        return ""
    rows = [(TARGET_WORDS[t.status], t.title, target_value(t), t.bar, "") for t in targets]
    lines = [f"targets: {count_line(targets)}"]
    for first, target in zip(columns(rows), targets):
        reason = textwrap.wrap(target.reason, max(TARGETS_WIDTH - len(first), 30)) or [""]
        lines.append(f"{first}{reason[0]}".rstrip())
        lines += [f"{'':{len(first)}}{more}" for more in reason[1:]]
    return "\n".join(lines)


def pair_rows(pairs: Sequence[PairSpeeds]) -> list[tuple[str, str]]:
    """What both processes of each pair reached, before there is a verdict."""
    rows = []
    for each in pairs:
        before, after = each.baseline_per_s, each.candidate_per_s
        both = f"{numbers.count(before)} and {numbers.count(after)} per second"
        ratio = f", {numbers.ratio(after / before)}" if before and after else ""
        rows.append((f"pair {each.pair}", both + ratio))
    return rows


def render_settings(rows: Iterable[tuple[str, str, str]], *, num_defaults: int = 0) -> str:
    """`key value origin`, and how many others stand at their default."""
    aligned = columns(list(rows))
    if num_defaults:
        aligned.append(f"  and {num_defaults} at their default")
    return "\n".join(["settings", *aligned])


def render_rows(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """A titled list of names and values."""
    return "\n".join([title, *columns(rows)]) if rows else ""


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
    some = f"{steps.measured:,} of {steps.made:,} steps," if steps.left_out else ""
    warmup = f"{some or numbers.counted(steps.measured, 'step')} after {steps.warmup:,} of warm-up"
    if diagnosis.worth is not None and steps.warmup > 10:  # of somebody's script
        warmup += " (slower than later ones)"
    parts.append(f"{speed} (mean) over {'' if some else 'all '}{warmup}" if speed else warmup)
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


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row; every column but the last is as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows)][:-1]
    return [
        "  " + "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths)), row[-1]])
        for row in rows
    ]
