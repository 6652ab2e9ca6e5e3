"""Small inline drawings for the page. Colours come from the page's CSS, so both themes work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 640
MAX_POINTS = 400
"""A screen shows no more; a curve of 100 000 steps would be megabytes of page."""

Curve = Sequence[tuple[int, float]]


def interval_bar(low: float, mid: float, high: float, *, label: str) -> str:
    """The interval on a line that holds 1.0 (no difference), with a tick at each end of it."""
    if not all(math.isfinite(value) for value in (low, mid, high)):
        return ""
    left, right = min(low, 1.0), max(high, 1.0)
    margin = 0.12 * (right - left) or 0.1
    left, right = left - margin, right + margin

    def at(value: float) -> float:
        return 20 + (WIDTH - 40) * (value - left) / (right - left)

    # Labels sit on two rows: one is often inside the width of the interval's own.
    return (
        f'<svg viewBox="0 0 {WIDTH} 84" role="img" aria-label="{escape(label)}">'
        f'<line class="axis" x1="20" y1="44" x2="{WIDTH - 20}" y2="44"/>'
        f'<line class="axis" x1="{at(1):.1f}" y1="28" x2="{at(1):.1f}" y2="60"/>'
        f'<text x="{at(1):.1f}" y="78" text-anchor="{_anchor(at(1))}">1.00x, no difference</text>'
        f'<rect class="interval" x="{at(low):.1f}" y="36" rx="3" height="16" '
        f'width="{max(at(high) - at(low), 2):.1f}"/>'
        f'<line class="mid" x1="{at(mid):.1f}" y1="32" x2="{at(mid):.1f}" y2="56"/>'
        f'<text class="strong" x="{at(mid):.1f}" y="22" text-anchor="{_anchor(at(mid))}">'
        f"{escape(label)}</text></svg>"
    )


def _anchor(x: float) -> str:
    return "start" if x < 120 else "end" if x > WIDTH - 120 else "middle"


def breakdown_bar(fractions: Mapping[str, float], names: Sequence[str]) -> str:
    """One stacked bar; widths are the fractions as they are."""
    x = 0.0
    parts = []
    for index, name in enumerate(names):
        width = WIDTH * max(fractions.get(name, 0.0), 0.0)
        parts.append(
            f'<rect class="part p{index % 10}" x="{x:.2f}" y="0" width="{width:.2f}" height="26">'
            f"<title>{escape(name)} {100 * fractions.get(name, 0.0):.1f} %</title></rect>"
        )
        x += width
    return (
        f'<svg viewBox="0 0 {WIDTH} 26" role="img" aria-label="share of wall time by phase">'
        f"{''.join(parts)}</svg>"
    )


def loss_curves(curves: Mapping[str, Curve], *, x_name: str = "step", y_name: str = "loss") -> str:
    """Every curve on the same axes. Points that are not finite are left as gaps."""
    drawn = {name: thinned(points) for name, points in curves.items()}
    finite = [p for points in drawn.values() for p in points if math.isfinite(p[1])]
    if not finite:
        return ""
    height, left, bottom, top = 260, 52, 32, 12
    xs = [point[0] for point in finite]
    ys = [point[1] for point in finite]
    x_low, x_span = min(xs), (max(xs) - min(xs)) or 1
    y_low, y_span = min(ys), (max(ys) - min(ys)) or 1.0

    def place(step: int, value: float) -> tuple[float, float]:
        x = left + (WIDTH - left - 12) * (step - x_low) / x_span
        return x, top + (height - top - bottom) * (1 - (value - y_low) / y_span)

    parts = []
    for part in range(5):
        value = y_low + y_span * part / 4
        y = place(x_low, value)[1]
        parts.append(
            f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - 12}" y2="{y:.1f}"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    parts.append(
        f'<text x="{left}" y="{height - 10}">{x_name} {x_low}</text>'
        f'<text x="{WIDTH - 12}" y="{height - 10}" text-anchor="end">{x_name} {max(xs)}</text>'
    )
    for index, points in enumerate(drawn.values()):
        for run in _unbroken(points):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in run))
            parts.append(f'<polyline class="curve c{index % 4}" points="{path}"/>')
    label = escape(f"{y_name} over {x_name}: {', '.join(drawn)}")
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def thinned(points: Curve) -> list[tuple[int, float]]:
    """Every k-th point and the last one: drawing, not smoothing."""
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    kept = list(points[::stride])
    if points and kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


def _unbroken(points: Curve) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
