"""The frame of every chart: text in HTML, so that it stays readable at any width; lines in SVG.

The drawing stretches to the width it gets while strokes and letters keep their size. Colours are
classes of the style sheet. What a place shows stands in its tooltip, without scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from hotloop.core.step import HOST_PHASES
from hotloop.report.axes import Axis

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
    rows = "" if y is None else _y_labels(y)
    lines = "" if y is None else _grid(y)
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


def _grid(y: Axis) -> str:
    return "".join(f'<path class="grid" d="M0 {down(y, value)}H{WIDTH}"/>' for value, _ in y.ticks)


def _y_labels(y: Axis) -> str:
    return "".join(
        f'<span style="top:{100 * (1 - y.share(value)):.1f}%">{escape(text)}</span>'
        for value, text in y.ticks
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
