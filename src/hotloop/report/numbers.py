"""Numbers for people. Everywhere else seconds are seconds and fractions are fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "not known"


def ratio(value: float | None, *, digits: int = 2) -> str:
    """`2.71x`"""
    return UNKNOWN if value is None else f"{value:.{digits}f}x"


KNOWN_WITHIN = 1.1
"""An interval that reaches further than this factor from its ratio is said without the ratio."""


def is_known(value: float, low: float, high: float) -> bool:
    """True if a ratio with this interval may stand as one number."""
    return max(value / low, high / value) <= KNOWN_WITHIN if low > 0 else False


def interval(low: float | None, high: float | None) -> str:
    """`2.60 to 2.82`; more digits where two would hide the width."""
    if low is None or high is None:
        return UNKNOWN
    digits = ratio_digits(low, high)
    return f"{low:.{digits}f} to {high:.{digits}f}"


def ratio_digits(low: float | None, high: float | None) -> int:
    """Digits that a ratio and its interval share: two, or three for a narrow interval."""
    return 3 if low is not None and high is not None and high - low < 0.02 else 2


def percent(fraction: float | None) -> str:
    """`62 %`, `3.1 %`, `0.04 %`: two digits that count, and never a false 0 or 100."""
    if fraction is None:
        return UNKNOWN
    if not math.isfinite(fraction):
        return str(fraction)
    value = 100 * fraction
    size = abs(value)
    if size == 0:
        return "0 %"
    if size < 0.0001:
        return f"{value:.0e} %"
    if size < 9.95:
        return f"{_two_digits(value)} %"
    if 99.5 <= size < 99.9995:  # rounding would make a whole of it
        return f"{math.copysign(math.floor(10 * size) / 10, value):.1f} %"
    return f"{value:.0f} %"


def _two_digits(value: float) -> str:
    """At most two digits that count, no exponent, no trailing zeros."""
    decimals = max(1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(fraction: float) -> str:
    """One decimal, aligned, for columns that add up: ` 31.4 %`."""
    return f"{100 * fraction:5.1f} %"


def shares(fractions: dict[str, float]) -> dict[str, str]:
    """Shares with one decimal whose printed sum equals the rounded sum of the parts.

    Plain rounding prints 99.9 or 100.1 for parts of a whole; the remainder goes to the parts that
    rounding down hurt most (largest remainder).
    """
    tenths = {name: 1000 * value for name, value in fractions.items()}
    down = {name: math.floor(value) for name, value in tenths.items()}
    missing = round(sum(tenths.values())) - sum(down.values())
    for name in sorted(tenths, key=lambda n: down[n] - tenths[n])[:missing]:
        down[name] += 1
    return {name: f"{value / 10:5.1f} %" for name, value in down.items()}


def seconds(value: float | None) -> str:
    """`214 ms`, `3.2 s`, `4 min 10 s`, `2 h 05 min`"""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0 s"
    if value < 0.9995e-3:
        return f"{value * 1e6:.3g} us"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(value: float | None) -> str:
    """`3.1 K`, `123 M`; three digits that count."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    for limit, name in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= 0.9995 * limit:
            return f"{_three_digits(value / limit)} {name}"
    return f"{value:.0f}" if value == int(value) else _three_digits(value)


def counted(number: int, one: str, many: str = "") -> str:
    """`1 step`, `1,200 steps`; `many` where an s is not enough."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`"""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}" if size >= 0.995 else f"{value:.2g}"


def rate(value: float | None, unit: str) -> str:
    """`3.1 K tokens/s`"""
    return UNKNOWN if value is None else f"{count(value)} {unit}/s".replace("  ", " ")


def size(num_bytes: int | None) -> str:
    """`1.9 GB`, in powers of 1000 as disks and `docker` count."""
    if num_bytes is None:
        return UNKNOWN
    value = float(num_bytes)
    for name in ("B", "KB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {name}" if name == "B" or value >= 9.95 else f"{value:.1f} {name}"
        value /= 1000
    return f"{value:.1f} TB"


def loss(value: float | None) -> str:
    """Four decimals: a held-out loss is compared in the third. Never a false 0: `1.4e-07`."""
    if value is None:
        return UNKNOWN
    return f"{value:.2g}" if 0 < abs(value) < 0.0005 else f"{value:.4f}"
