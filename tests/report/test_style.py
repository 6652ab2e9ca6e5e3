"""Colours that stay apart for every kind of colour blindness, and on both backgrounds."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from hotloop.core.step import HOST_PHASES
from hotloop.report.html import Page, render_html

Rgb = tuple[float, float, float]

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SEEN_BY: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "full colour": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
CSS = render_html(Page("t")).partition("<style>")[2].partition("</style>")[0]
PHASE_COLOURS = {
    name: (fill, letters)
    for name, fill, letters in re.findall(r"\.ph-(\w+)\{--fill:(#\w+);--ink:(#\w+)\}", CSS)
}
FILLS = {name: fill for name, (fill, _) in PHASE_COLOURS.items() if name in HOST_PHASES}


def linear(colour: str) -> Rgb:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    r, g, b = (
        c / 12.92 if (c := byte / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for byte in bytes.fromhex(digits)
    )
    return r, g, b


def lab(rgb: Rgb) -> Rgb:
    r, g, b = (min(max(c, 0.0), 1.0) for c in rgb)

    def f(t: float) -> float:
        return t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116

    x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047)
    y = f(0.2126 * r + 0.7152 * g + 0.0722 * b)
    z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def contrast(one: str, other: str) -> float:
    lights = sorted(
        0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other))
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_any_two_phases_look_different_to_all_eyes(eyes: str) -> None:
    seen = {
        name: lab(tuple(sum(a * b for a, b in zip(row, linear(fill))) for row in SEEN_BY[eyes]))  # type: ignore[arg-type]
        for name, fill in FILLS.items()
    }
    for one, other in combinations(seen, 2):
        apart = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other])) ** 0.5
        assert apart > 20, (eyes, one, other, apart)


@pytest.mark.parametrize("name", PHASE_COLOURS)
def test_letters_on_a_phase_can_be_read_and_it_shows_on_both_backgrounds(name: str) -> None:
    fill, letters = PHASE_COLOURS[name]
    assert contrast(fill, letters) >= 4.5
    assert contrast(fill, "#ffffff") >= 1.5
    assert contrast(fill, "#14171b") >= 2.0


def test_every_phase_has_its_colour_and_nothing_is_fetched() -> None:
    assert set(HOST_PHASES) < set(PHASE_COLOURS)
    assert "url(" not in CSS
    assert "@import" not in CSS
    assert CSS.count("{") == CSS.count("}")
