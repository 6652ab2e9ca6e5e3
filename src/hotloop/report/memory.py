"""Where the memory of a training goes: as `hotloop fit` predicts it, as a run saw it, and of one that ended for it."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.core.memory_use import Fit, MemoryProfile, OutOfMemory, Proof
from hotloop.core.step import HOST_PHASES
from hotloop.report.canvas import in_words
from hotloop.report.numbers import counted, percent, rate, shares

WORDS = {
    "activations": "activations of a microbatch",
    "passing by": "temporary tensors",
    "freed and kept": "freed, kept by the allocator",
    "a save, and later steps": "a save, and later steps",
    "start": "the process before training",
    "freed": "freed before training",
    "process": "Python, torch, libraries",
}


def size(num_bytes: int) -> str:
    """`1,239 MB`: one unit, so that parts can be added up."""
    return f"{num_bytes / 1e6:,.0f} MB"


ERROR = 0.1
"""Of a prediction, relative: seldom more."""
Rows = list[tuple[str, str, str]]


def part_rows(parts: Mapping[str, int], total: str) -> Rows:
    """Owners with their sizes and shares, then their sum."""
    whole = sum(parts.values())
    each = shares({name: value / max(whole, 1) for name, value in parts.items()})
    rows = [(WORDS.get(k, k), size(value), each[k]) for k, value in parts.items() if value]
    return [*rows, (total, size(whole), "100.0 %")]


def phase_rows(profile: MemoryProfile) -> Rows:
    """The highest memory seen in each phase, beside the limit."""
    rows = [(in_words(n), size(profile.phases[n]), "") for n in HOST_PHASES if n in profile.phases]
    if profile.limit_bytes is not None:
        rows.append(("the limit", size(profile.limit_bytes), profile.limit_from or ""))
    return rows


def microbatch_rows(fit: Fit) -> list[tuple[str, str, str, str]]:
    """Microbatch, predicted peak of a whole training, measured peak, and whether it fits by the larger of both."""
    rows = []
    for n in sorted(fit.by_microbatch.keys() | fit.measured.keys()):
        predicted, seen = fit.by_microbatch.get(n, 0), fit.measured.get(n, 0)
        fits = "fits" if max(predicted, seen) <= fit.limit_bytes else "does not fit"
        rows.append(
            (f"{n:,}", size(predicted) if predicted else "", size(seen) if seen else "", fits)
        )
    return rows


def out_of_memory_answer(found: OutOfMemory) -> str:
    """`It ran out of memory in backward of step 3: 990 MB of 1,000 MB, the control group ...`"""
    what = {
        "said": "it ran out of memory",
        "killed": "the kernel killed it for its memory",
        "probably": "it was probably killed for its memory",
    }[found.certainty]
    seen = "in" if found.certainty == "said" else "last seen in"
    where = found.where if found.where.startswith("before") else f"{seen} {found.where}"
    of = f" of {size(found.limit_bytes)}" if found.limit_bytes else ""
    source = f" ({found.limit_from})" if found.limit_from else ""
    used = f"; {size(found.used_bytes)}{of}{source} in use" if found.used_bytes else ""
    if used and found.certainty != "said":
        used += " when last looked at"
    return f"{what}, {where}{used}"


def render_out_of_memory(found: OutOfMemory) -> str:
    """How it ended, where its memory was, and what to do."""
    answer = out_of_memory_answer(found)
    lines = [f"{answer[0].upper()}{answer[1:]}."]
    if found.said:
        lines.append(f"  {found.said}")
    if found.profile is not None:
        lines += ["", "where its memory went", *_lines(part_rows(found.profile.parts, "peak"))]
        if found.profile.phases:
            lines += ["highest seen in each phase", *_lines(phase_rows(found.profile))]
    if found.ways:
        lines += [
            "",
            "what takes less, the cheapest first (neither predicted nor measured here)",
            *(f"  - {each}" for each in found.ways),
        ]
    return "\n".join(lines)


def _lines(rows: Rows) -> list[str]:
    return [f"  {name:30} {value:>10}  {share}".rstrip() for name, value, share in rows]


def render_fit(fit: Fit) -> str:
    """The answer first, then the table, then what was measured and what is not known."""
    lines = [_answer(fit), ""]
    lines += _lines(part_rows(fit.parts, "peak, predicted"))
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
    if len(rows := microbatch_rows(fit)) > 1:
        lines += ["", f"  {'microbatch':12} {'predicted':>10}  {'measured':>10}"]
        lines += [f"  {n:>10}   {peak:>10}  {seen:>10}  {fits}" for n, peak, seen, fits in rows]
        lines.append("")
    lines += [f"not known: {each}" for each in fit.unknown]
    if fit.largest_microbatch:
        lines.append(f"largest microbatch predicted to fit: {fit.largest_microbatch:,}")
    if fit.ways:
        lines += [
            "",
            "it fits with one of these, the cheapest first (peaks predicted, not measured):",
        ]
        for way in fit.ways:
            lines.append(f"  {' '.join(way.settings)}")
            lines.append(f"      {size(way.whole_bytes)}; {way.effect}")
    if fit.proof is not None:
        lines += ["", *_proof(fit.proof)]
    return "\n".join(lines)


def _answer(fit: Fit) -> str:
    limit = f"{size(fit.limit_bytes)} ({fit.limit_from})"
    what = f"microbatch {fit.microbatch}, {size(fit.whole_bytes)} at the peak as predicted"
    if fit.measured_bytes is not None and fit.measured_bytes > fit.limit_bytes:
        what += f", {size(fit.measured_bytes)} as measured"
    elif not fit.fits and fit.whole_bytes <= fit.limit_bytes:
        what += ", but a real run was ended for its memory"
    if fit.fits:
        is_near = fit.proof is None and fit.whole_bytes * (1 + ERROR) > fit.limit_bytes
        near = " Predictions are off by up to a tenth, so it may be too much." if is_near else ""
        return f"It fits in {limit}: {what}.{near}"
    if not fit.largest_microbatch and not fit.ways:
        return f"It does NOT fit in {limit} at any microbatch: {what}, {size(fit.least_bytes)} with a microbatch of 1."
    return f"It does NOT fit in {limit}: {what}."


def _proof(proof: Proof) -> list[str]:
    lines = []
    for microbatch, value in proof.tokens_per_s.items():
        shown = rate(value, "tokens") if value is not None else "took too much memory"
        lines.append(f"  microbatch {microbatch:,}: {shown}")
    if len(proof.tokens_per_s) > 1:
        lines.append("  (one process each, which differ by some percent among themselves)")
    batch = (
        f"train.microbatch={proof.microbatch}",
        f"train.grad_accum_steps={proof.grad_accum_steps}",
    )
    settings = " ".join([*batch, *proof.settings])
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
