"""The time of each step by phase, as bars over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from hotloop.core.course import StepSpan
from hotloop.report import numbers
from hotloop.report.canvas import (
    HEIGHT,
    WIDTH,
    Axis,
    across,
    axis,
    down,
    figure,
    hover_areas,
    in_words,
    phase,
    plot,
    with_unit,
)
from hotloop.report.terminal import in_order


def phases_of(many: Iterable[Mapping[str, float]]) -> list[str]:
    """Phases that took time in any of these, in the order of a step."""
    most: dict[str, float] = {}
    for each in many:
        for name, value in each.items():
            most[name] = max(value, most.get(name, 0.0))
    return in_order(most)


def step_bars(spans: Sequence[StepSpan]) -> str:
    """Seconds of a step over the steps, stacked by phase; below it, a row of marks for every tag."""
    if not spans:
        return ""
    top, num_cut = _top([span.wall_s for span in spans])
    y = axis(0.0, top, "seconds", unit="a step", count=4)
    x = axis(spans[0].first_step, spans[-1].last_step + 1, "step", exact=True, count=7)
    names = phases_of(span.host for span in spans)
    paths: dict[str, list[str]] = {name: [] for name in names}
    whole: list[str] = []
    cut: list[str] = []
    for span in spans:
        left, right = across(x, span.first_step), across(x, span.last_step + 1)
        bottom = 0.0
        for name in names:
            if seconds := span.host.get(name, 0.0):
                paths[name].append(_box(left, right, y, bottom, bottom + seconds))
                bottom += seconds
        if not bottom:  # only a step clock was carried
            whole.append(_box(left, right, y, 0.0, span.wall_s))
        if span.wall_s > y.high:
            cut.append(f"M{left} 0H{right}")
    body = "".join(f'<path class="{phase(name)}" d="{"".join(d)}"/>' for name, d in paths.items())
    if whole:
        body += f'<path class="ph-other" d="{"".join(whole)}"/>'
    if cut:
        body += f'<path class="cut" d="{"".join(cut)}"/>'
    hover = hover_areas(x, [span.first_step for span in spans], [_span_tip(span) for span in spans])
    slow = max(spans, key=lambda span: span.wall_s)
    most = max(span.num_steps for span in spans)
    notes = ["each bar is one step" if most == 1 else f"each bar is the mean of {most:,} steps"]
    if num_cut:
        bars = "1 bar is" if num_cut == 1 else f"{num_cut} bars are"
        notes.append(
            f"{bars} cut off at the top; the highest is {numbers.seconds(slow.wall_s)} "
            f"a step ({_steps(slow)})"
        )
    return figure(
        "Time of each step, by phase",
        plot(
            x,
            y,
            body + hover,
            label="time of each step by phase, over the steps",
            kind="tall",
            below=_tag_rows(spans, x),
        ),
        unit=y.unit,
        x_name=with_unit("step", x),
        legend=[(in_words(name), f"box {phase(name)}") for name in names],
        note="; ".join(notes),
    )


def _box(left: int, right: int, y: Axis, low: float, high: float) -> str:
    top, bottom = down(y, high), down(y, low)
    if top == bottom:
        return ""
    return f"M{left} {bottom}V{top}H{right}V{bottom}z"


def _top(heights: Sequence[float]) -> tuple[float, int]:
    """The highest value to draw, and how many are cut: a few slow steps must not flatten the rest."""
    ranked = sorted(heights)
    usual = ranked[(9 * (len(ranked) - 1)) // 10]
    if ranked[-1] <= 2.5 * usual or not usual:
        return ranked[-1], 0
    kept = [height for height in ranked if height <= 2.5 * usual]
    return 1.1 * kept[-1], len(ranked) - len(kept)


def _steps(span: StepSpan) -> str:
    if span.first_step == span.last_step:
        return f"step {span.first_step:,}"
    return f"steps {span.first_step:,} to {span.last_step:,}"


def _span_tip(span: StepSpan) -> str:
    mean = f"{numbers.seconds(span.wall_s)} a step"
    if span.num_steps > 1:
        mean += f" (longest {numbers.seconds(span.longest_s)})"
    whole = math.fsum(span.host.values())
    shares = numbers.shares({k: v / whole for k, v in span.host.items()}) if whole > 0 else {}
    parts = [f"{in_words(name)} {shares[name].strip()}" for name in in_order(span.host) if shares]
    tags = [f"{in_words(tag)} in {num} of them" for tag, num in span.tags.items()]
    if span.num_steps == 1:
        tags = [in_words(tag) for tag in span.tags]
    return "; ".join([f"{_steps(span)}: {mean}", *parts, *tags])


def _tag_rows(spans: Sequence[StepSpan], x: Axis) -> str:
    tags = list(dict.fromkeys(tag for span in spans for tag in span.tags))
    rows = []
    for tag in tags:
        marks, total = [], 0
        for span in spans:
            if num := span.tags.get(tag, 0):
                total += num
                left, right = across(x, span.first_step), across(x, span.last_step + 1)
                marks.append(
                    f'<path class="mark" d="M{(left + right) // 2} 0V{HEIGHT}">'
                    f"<title>{escape(in_words(tag))}: {num} in {_steps(span)}</title></path>"
                )
        steps = "step" if total == 1 else "steps"
        rows.append(
            f'<div class="tags"><span>{escape(in_words(tag))}</span>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
            f'aria-label="{total} {steps} with {escape(in_words(tag))}">{"".join(marks)}</svg></div>'
        )
    return "".join(rows)
