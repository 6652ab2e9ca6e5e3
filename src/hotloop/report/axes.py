"""Axes of charts: ranges that end on round numbers, ticks between, one unit for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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
