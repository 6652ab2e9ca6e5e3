"""The frame of every chart, and its axes: text in HTML, so that it stays readable at any width; lines in SVG.

The drawing stretches to the width it gets while strokes and letters keep their size. Colours are
classes of the style sheet. What a place shows stands in its tooltip, without scripts. Axes end on round numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

from hotloop.core.step import HOST_PHASES

Kind = Literal["step", "seconds", "fraction", "bytes", "count", "plain", "ratio"]
"""What is measured: `seconds` become ms, minutes or hours; `bytes` GB; `count` K or M."""

ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_SECONDS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "s"), (1e-3, "ms"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))
_COUNT = ((1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""))


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, and where it is labelled."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    unit: str
    """What the labels count; empty for plain numbers."""

    def share(self, value: float) -> float:
        """The place of a value: 0 at `low`, 1 at `high`; what lies outside is put on the edge."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def axis(
    low: float, high: float, kind: Kind, *, count: int = 5, exact: bool = False, unit: str = ""
) -> Axis:
    """An axis over finite `low` to `high` with about `count` ticks.

    Its ends are round numbers, or `low` and `high` themselves when `exact`. `unit` names what is
    counted, for instance `tokens/s`.
    """
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # one value, drawn in the middle
        pad = abs(low) * 0.1 or 1.0
        low, high = (low - pad if low else 0.0), high + pad
    size, name = _unit(kind, max(abs(low), abs(high)))
    step = _round_step((high - low) / size / count, whole=kind == "step" and size == 1)
    first, last = math.ceil(low / size / step - 1e-9), math.floor(high / size / step + 1e-9)
    if not exact:
        first, last = math.floor(low / size / step + 1e-9), math.ceil(high / size / step - 1e-9)
        low, high = first * step * size, last * step * size
    decimals = _decimals(step)
    after = "x" if kind == "ratio" else ""
    ticks = tuple(
        (number * step * size, f"{number * step or 0.0:,.{decimals}f}{after}")
        for number in range(first, last + 1)
    )
    return Axis(low, high, ticks, f"{name}{'' if unit.startswith('/') else ' '}{unit}".strip())


def _unit(kind: Kind, largest: float) -> tuple[float, str]:
    """How much one of the unit is, and its name."""
    if kind == "fraction":
        return 0.01, "%"
    choices = {"seconds": _SECONDS, "bytes": _BYTES, "count": _COUNT}.get(kind)
    if kind == "step" and largest >= 20_000:
        choices = _COUNT
    if choices is None:
        return 1.0, ""
    # Two of a unit are enough to count in it: 90 s stay seconds.
    wanted = 2.0 if kind == "seconds" else 1.0
    return next(((size, name) for size, name in choices if largest >= wanted * size), choices[-1])


def _round_step(rough: float, *, whole: bool) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(r * power for r in ROUND if r * power >= rough * (1 - 1e-9))
    return max(math.ceil(step), 1) if whole and step < 1 else step


def _decimals(step: float) -> int:
    for decimals in range(10):
        if abs(step * 10**decimals - round(step * 10**decimals)) < 1e-6 * step * 10**decimals:
            return decimals
    return 10


WIDTH, HEIGHT = 2000, 1000
"""Units of the drawing; pixels are the reader's."""


def figure(
    title: str,
    body: str,
    *,
    unit: str = "",
    x_name: str = "",
    legend: Sequence[tuple[str, str]] = (),
    note: str = "",
) -> str:
    """A drawing with its title, its units and its legend; `legend` is of names and swatch classes."""
    units = f' <span class="unit">{escape(unit)}</span>' if unit else ""
    keys = "".join(
        f'<li><span class="key {kind}"></span>{escape(name)}</li>' for name, kind in legend
    )
    keys = f'<ul class="legend">{keys}</ul>' if keys else ""
    under = f'<p class="xname">{escape(x_name)}</p>' if x_name else ""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f"<figure><figcaption><strong>{escape(title)}</strong>{units}</figcaption>{keys}"
        f"{body}{under}{said}</figure>"
    )


def plot(x: Axis, y: Axis | None, body: str, *, label: str, kind: str = "", below: str = "") -> str:
    """The drawing between its labelled axes; `below` stands between it and the labels of x."""
    rows = lines = ""
    if y is not None:
        for value, text in y.ticks:
            rows += f'<span style="top:{100 * (1 - y.share(value)):.1f}%">{escape(text)}</span>'
            lines += f'<path class="grid" d="M0 {down(y, value)}H{WIDTH}"/>'
    more = f" {kind}" if kind else ""
    return (
        f'<div class="plot{more}"><div class="y">{rows}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{lines}{body}</svg>'
        f'{below}<div class="x">{_x_labels(x)}</div></div>'
    )


DEVICE_LIKE = {
    "compute": "forward",
    "communication": "grad_sync",
    "memcpy": "host_to_device",
    "idle": "unattributed",
}
"""Phases of a device in the colours of what the host does meanwhile."""


def phase(name: str) -> str:
    """The style class of a phase; those that nobody knows share one."""
    known = DEVICE_LIKE.get(name, name)
    return f"ph-{known}" if known in HOST_PHASES else "ph-other"


def across(x: Axis, value: float) -> int:
    return round(WIDTH * x.share(value))


def down(y: Axis, value: float) -> int:
    return round(HEIGHT * (1 - y.share(value)))


def hover_areas(x: Axis, places: Sequence[float], tips: Sequence[str]) -> str:
    edges = [across(x, at) for at in places] + [WIDTH]
    return "".join(
        f'<path class="hover" d="M{left} 0H{max(right, left + 1)}V{HEIGHT}H{left}z">'
        f"<title>{escape(tip)}</title></path>"
        for (left, right), tip in zip(pairwise(edges), tips)
    )


def _x_labels(x: Axis) -> str:
    labels = []
    for number, (value, text) in enumerate(x.ticks):
        share = x.share(value)
        side = "first" if share < 0.03 else "last" if share > 0.97 else "mid"
        # Every second one is left out where the page is narrow.
        odd = " odd" if number % 2 else ""
        labels.append(
            f'<span class="{side}{odd}" style="left:{100 * share:.2f}%">{escape(text)}</span>'
        )
    return "".join(labels)


def with_unit(x_name: str, x: Axis) -> str:
    return f"{x_name} ({x.unit})" if x.unit else x_name


def in_words(name: str) -> str:
    return name.replace("_", " ")
