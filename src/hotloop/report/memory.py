"""Where the memory of a training goes, as `hotloop fit` says it."""

from __future__ import annotations

from hotloop.core.memory_use import Fit, Proof
from hotloop.report.numbers import counted, percent, rate, shares

WORDS = {
    "activations": "activations of a microbatch",
    "passing by": "passing by at the peak",
    "freed and kept": "freed, kept by the allocator",
    "a save, and later steps": "a save, and later steps",
    "process": "Python, torch, libraries",
}


def size(num_bytes: int) -> str:
    """`1,239 MB`: one unit, so that parts can be added up."""
    return f"{num_bytes / 1e6:,.0f} MB"


def render_fit(fit: Fit) -> str:
    """The answer first, then the table, then what was measured and what is not known."""
    lines = [_answer(fit), ""]
    total = fit.whole_bytes
    each = shares({name: value / total for name, value in fit.parts.items()})
    for name, value in fit.parts.items():
        if value:
            lines.append(f"  {WORDS.get(name, name):30} {size(value):>10}  {each[name]}")
    lines.append(f"  {'peak, predicted':30} {size(total):>10}  100.0 %")
    lines.append("")
    if fit.calibrated_by is None:
        lines.append("uncalibrated: no real run says how much more a process takes")
    else:
        lines.append(f"calibrated by a real run with {fit.calibrated_by}")
    if fit.measured_bytes is not None and fit.error_fraction is not None:
        sign = "more" if fit.error_fraction >= 0 else "less"
        lines.append(
            f"the first steps: predicted {size(fit.steps_bytes)}, measured {size(fit.measured_bytes)}: "
            f"{percent(abs(fit.error_fraction))} {sign} than it takes"
        )
    lines += [f"not known: {each}" for each in fit.unknown]
    if fit.largest_microbatch:
        lines.append(f"largest microbatch predicted to fit: {fit.largest_microbatch:,}")
    if fit.ways:
        lines += ["", "it fits with one of these, the cheapest first (predicted peak):"]
        for way in fit.ways:
            lines.append(f"  {' '.join(way.settings)}")
            lines.append(f"      {size(way.whole_bytes)}; {way.effect}")
    if fit.proof is not None:
        lines += ["", *_proof(fit.proof)]
    return "\n".join(lines)


def _answer(fit: Fit) -> str:
    limit = f"{size(fit.limit_bytes)} ({fit.limit_from})"
    what = f"microbatch {fit.microbatch}, {size(fit.whole_bytes)} at the peak as predicted"
    if fit.fits:
        return f"It fits in {limit}: {what}."
    if not fit.largest_microbatch and not fit.ways:
        return f"It does NOT fit in {limit} at any microbatch: {what}, {size(fit.least_bytes)} with a microbatch of 1."
    return f"It does NOT fit in {limit}: {what}."


def _proof(proof: Proof) -> list[str]:
    lines = []
    for microbatch, value in proof.tokens_per_s.items():
        shown = rate(value, "tokens") if value is not None else "took too much memory"
        lines.append(f"  microbatch {microbatch:,}: {shown}")
    settings = (
        f"train.microbatch={proof.microbatch} train.grad_accum_steps={proof.grad_accum_steps}"
    )
    if proof.survived:
        lines.append(
            f"recommended, and proven over {counted(proof.steps, 'step')} with evaluation and saves:"
        )
        lines.append(f"  {settings}")
    else:
        lines.append("no microbatch survived:" if proof.microbatch else "none is predicted to fit:")
    peak = ""
    if proof.peak_bytes is not None:  # a group does not count the libraries, and a process does
        peak = f", at most {size(proof.peak_bytes)} resident, with libraries that were in memory before"
    lines.append(
        f"  limited by {proof.limited_by}{peak}; {counted(proof.num_processes, 'real process', 'real processes')}"
    )
    return lines
