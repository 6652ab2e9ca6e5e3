"""Before and after, drawn: the ratio with its interval and every pair, and the losses of both arms."""

from __future__ import annotations

import math

from hotloop.core.course import ArmsCourse
from hotloop.core.judgement import Verdict
from hotloop.report import numbers
from hotloop.report.canvas import HEIGHT, across, axis, figure, plot
from hotloop.report.charts import Series, line_chart
from hotloop.report.terminal import verdict_rows, with_interval
from hotloop.report.words import losses


def ratio_chart(verdict: Verdict) -> str:
    """The ratio with its interval and every pair, on a line that holds 1 (no difference)."""
    low, mid, high = verdict.ratio_low, verdict.ratio, verdict.ratio_high
    if low is None or mid is None or high is None:
        return ""
    pairs = [ratio for ratio in verdict.pair_ratios if math.isfinite(ratio)]
    everything = [low, mid, high, 1.0, *pairs]
    if not all(math.isfinite(value) for value in everything):
        return ""
    pad = 0.05 * (max(everything) - min(everything))
    x = axis(min(everything) - pad, max(everything) + pad, "ratio", exact=True, count=6)
    parts = []
    legend = [("no difference", "line one")]
    if verdict.noise_floor:
        left, right = across(x, 1 / (1 + verdict.noise_floor)), across(x, 1 + verdict.noise_floor)
        parts.append(f'<path class="noise" d="M{left} 0H{max(right, left + 2)}V{HEIGHT}H{left}z"/>')
        legend.append((f"noise floor, {numbers.percent(verdict.noise_floor)}", "box noise"))
    parts.append(f'<path class="one" d="M{across(x, 1.0)} 0V{HEIGHT}"/>')
    parts.append(
        f'<path class="interval" d="M{across(x, low)} 700H{max(across(x, high), across(x, low) + 4)}"/>'
        f'<path class="mid" d="M{across(x, mid)} 520V880"/>'
    )
    sure = f"{numbers.percent(verdict.confidence)} " if verdict.confidence is not None else ""
    legend.append((f"ratio and its {sure}interval", "box interval"))
    parts += [
        f'<path class="pair" d="M{across(x, ratio)} 260h1"><title>pair {number}: {ratio:.4f}x</title>'
        "</path>"
        for number, ratio in enumerate(pairs, 1)
    ]
    if pairs:
        legend.append(("each pair", "dot pair"))
    label = with_interval(mid, low, high)
    return figure(
        f"{label} as fast",
        plot(x, None, "".join(parts), label=f"ratio {label}", kind="flat"),
        x_name=f"speed of {verdict.candidate} over that of {verdict.baseline}, in steady state",
        legend=legend,
    )


def evidence_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """What the verdict rests on, in words."""
    rows = [*verdict_rows(verdict), ("losses", losses(verdict.parity))]
    if verdict.parity.reason and verdict.parity.result in ("same", "within_noise"):
        rows.append(("how losses were compared", verdict.parity.reason))
    if verdict.confidence is not None:
        looks = numbers.counted(verdict.num_looks, "look")
        rows.append(("confidence", f"{numbers.percent(verdict.confidence)}, over {looks}"))
    return rows


def loss_charts(
    arms: ArmsCourse, baseline: str, candidate: str, *, band: float | None = None
) -> str:
    """Losses of both arms on the same axes, and how far they are apart; `band` is what was allowed."""
    allowed = f"; at most {numbers.percent(band)} was allowed" if band else ""
    together = line_chart(
        "Training loss",
        [Series(baseline, arms.baseline, 0), Series(candidate, arms.candidate, 1)],
        kind="plain",
        from_zero=False,
        note="the band is the spread over all processes of an arm",
    )
    apart = line_chart(
        f"Loss of {candidate} against {baseline}",
        [Series("relative difference", arms.difference, 1)],
        kind="fraction",
        from_zero=False,
        written=lambda value: f"{100 * value:+.4f} %",
        note=f"medians over the processes of an arm; 0 is the same loss{allowed}",
    )
    return together + apart
