"""Lines over steps or seconds, each with the band between its lowest and highest values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TypeVar

from hotloop.core.course import Curve
from hotloop.report import numbers
from hotloop.report.canvas import (
    HEIGHT,
    WIDTH,
    Axis,
    Kind,
    across,
    axis,
    down,
    figure,
    hover_areas,
    plot,
    with_unit,
)

T = TypeVar("T")

_WRITTEN: dict[str, Callable[[float], str]] = {
    "fraction": numbers.percent,
    "bytes": lambda value: numbers.size(int(value)),
    "/s": lambda value: f"{numbers.size(int(value))}/s",
    "CPUs": lambda value: f"{value:.3g} CPUs",
    "W": lambda value: f"{value:.0f} W",
    "MHz": lambda value: f"{value:.0f} MHz",
    "°C": lambda value: f"{value:.0f} °C",
}
"""How a value reads in tooltips, by its unit or kind."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart."""

    name: str
    curve: Curve
    style: int
    """0 is the pale, thick one that others are drawn over; 1 to 5 are colours with their own dashes."""
    dots: bool = False
    """Mark every place: they are few."""


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    kind: Kind,
    unit: str = "",
    x_kind: Kind = "step",
    x_name: str = "step",
    from_zero: bool = True,
    limit: tuple[str, float] | None = None,
    breaks: Sequence[float] = (),
    note: str = "",
    written: Callable[[float], str] | None = None,
) -> str:
    """Lines over one x axis, each with the band between lowest and highest; empty without a value.

    limit: a level with its name; drawn where it is near the values, else only named.
    breaks: places on x where recording paused.
    written: how a value reads in tooltips, where its unit or kind does not say that.
    """
    drawn = [each for each in series if any(value is not None for value in each.curve.mid)]
    if not drawn:
        return ""
    lows = [v for each in drawn for v in each.curve.low if v is not None]
    highs = [v for each in drawn for v in each.curve.high if v is not None]
    low, high = min(lows), max(highs)
    if from_zero:
        low = min(low, 0.0)
    near = limit is not None and high >= 0.4 * limit[1]
    if limit is not None and near:
        high = max(high, limit[1])
    if kind == "fraction" and 0.5 < high <= 1.0 and from_zero:
        high = 1.0
    y = axis(low, high, kind, unit=unit, count=4)
    xs = [value for each in drawn for value in each.curve.x]
    x = axis(min(xs), max(xs), x_kind, exact=True, count=7)
    write = written or _WRITTEN.get(unit) or _WRITTEN.get(kind) or (lambda value: f"{value:.4g}")
    marks = [f'<path class="break" d="M{across(x, at)} 0V{HEIGHT}"/>' for at in breaks]
    if limit is not None and near:
        marks.append(f'<path class="limit" d="M0 {down(y, limit[1])}H{WIDTH}"/>')
    body = "".join(_band(x, y, each) for each in drawn)
    body += "".join(_line(x, y, each) for each in drawn)
    hover = hover_areas(x, drawn[0].curve.x, _tips(drawn, x_name, x_kind, write))
    dots = "".join(_dots(x, y, each, x_name, write) for each in drawn if each.dots)
    names = ", ".join(each.name for each in drawn)
    if limit is not None:
        where = "dashed" if near else "above this scale"
        note = f"{note}; {limit[0]}: {write(limit[1])} ({where})".removeprefix("; ")
    return figure(
        title,
        plot(x, y, "".join(marks) + body + hover + dots, label=f"{title}: {names}"),
        unit=y.unit,
        x_name=with_unit(x_name, x),
        legend=[(each.name, f"line s{each.style}") for each in drawn] if len(drawn) > 1 else [],
        note=note,
    )


def _unbroken(points: Iterable[T | None]) -> Iterator[list[T]]:
    """The runs of points between those that are not known."""
    for known, run in groupby(points, key=lambda point: point is not None):
        if known:
            yield [point for point in run if point is not None]


def _band(x: Axis, y: Axis, each: Series) -> str:
    curve = each.curve
    if curve.is_exact:
        return ""
    edges = [
        None if low is None or high is None else (at, low, high)
        for at, low, high in zip(curve.x, curve.low, curve.high)
    ]
    shapes = []
    for run in _unbroken(edges):
        if len(run) > 1:
            upper = [f"{across(x, at)} {down(y, high)}" for at, _, high in run]
            lower = [f"{across(x, at)} {down(y, low)}" for at, low, _ in reversed(run)]
            shapes.append(f"M{'L'.join(upper + lower)}z")
    return f'<path class="band s{each.style}" d="{"".join(shapes)}"/>' if shapes else ""


def _line(x: Axis, y: Axis, each: Series) -> str:
    points = [None if v is None else (at, v) for at, v in zip(each.curve.x, each.curve.mid)]
    shapes = []
    for run in _unbroken(points):
        places = [f"{across(x, at)} {down(y, value)}" for at, value in run]
        shapes.append(f"M{'L'.join(places)}" if len(places) > 1 else f"M{places[0]}h1")
    return f'<path class="line s{each.style}" d="{"".join(shapes)}"/>'


def _dots(x: Axis, y: Axis, each: Series, x_name: str, write: Callable[[float], str]) -> str:
    return "".join(
        f'<path class="dot s{each.style}" d="M{across(x, at)} {down(y, value)}h1">'
        f"<title>{escape(each.name)}, {x_name} {at:,.0f}: {escape(write(value))}</title></path>"
        for at, value in zip(each.curve.x, each.curve.mid)
        if value is not None
    )


def _tips(
    series: Sequence[Series], x_name: str, x_kind: Kind, write: Callable[[float], str]
) -> list[str]:
    """A tooltip for each place of the first series, with the others where they share it."""
    first, *others = series
    shared = [
        (other, {at: place for place, at in enumerate(other.curve.x)})
        for other in others
        if not other.dots
    ]
    tips = []
    for place, at in enumerate(first.curve.x):
        where = numbers.seconds(at) if x_kind == "seconds" else f"{x_name} {at:,.0f}"
        parts = [_value(first, place, write, named=len(series) > 1)]
        for other, places in shared:
            if at in places:
                parts.append(_value(other, places[at], write, named=True))
        tips.append(f"{where}: {'; '.join(part for part in parts if part) or 'not known'}")
    return tips


def _value(each: Series, place: int, write: Callable[[float], str], *, named: bool) -> str:
    low, mid, high = each.curve.low[place], each.curve.mid[place], each.curve.high[place]
    if low is None or mid is None or high is None:
        return ""
    name = f"{each.name} " if named else ""
    spread = f" ({write(low)} to {write(high)})" if low != high else ""
    return f"{name}{write(mid)}{spread}"
