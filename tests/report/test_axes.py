"""Axes end on round numbers, hold their values, and count in one unit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.report.canvas import ROUND, Axis, Kind, axis


def labels(found: Axis) -> list[str]:
    return [text for _, text in found.ticks]


@pytest.mark.parametrize(
    ("low", "high", "kind", "texts", "unit"),
    [
        (0.0, 5290.0, "count", ["0", "2", "4", "6"], "K"),
        (0.0, 0.98, "fraction", ["0", "25", "50", "75", "100"], "%"),
        (0.0, 0.392, "seconds", ["0", "100", "200", "300", "400"], "ms"),
        (0.0, 171.0, "seconds", ["0", "1", "2", "3"], "minutes"),
        (0.0, 719e6, "bytes", ["0", "200", "400", "600", "800"], "MB"),
        (3.2, 9.1, "plain", ["2", "4", "6", "8", "10"], ""),
        (-0.00003, 0.00004, "fraction", ["-0.004", "-0.002", "0.000", "0.002", "0.004"], "%"),
    ],
)
def test_ticks_are_round_numbers_in_one_unit(
    low: float, high: float, kind: Kind, texts: list[str], unit: str
) -> None:
    found = axis(low, high, kind, count=4)
    assert labels(found) == texts
    assert found.unit == unit
    assert found.low <= low
    assert found.high >= high


def test_an_exact_axis_ends_where_its_values_do() -> None:
    found = axis(0, 599, "step", exact=True, count=7)
    assert (found.low, found.high) == (0, 599)
    assert labels(found) == ["0", "100", "200", "300", "400", "500"]
    assert labels(axis(1.0, 3.3, "ratio", exact=True)) == ["1.0x", "1.5x", "2.0x", "2.5x", "3.0x"]


def test_steps_are_whole_and_large_ones_are_counted_in_thousands() -> None:
    assert labels(axis(0, 3, "step", exact=True)) == ["0", "1", "2", "3"]
    found = axis(0, 1_000_000, "step", exact=True)
    assert (found.unit, labels(found)) == ("M", ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"])
    assert axis(0, 80_000, "step", exact=True).unit == "K"


def test_what_is_counted_stands_behind_its_size() -> None:
    assert axis(0, 5000, "count", unit="tokens/s").unit == "K tokens/s"
    assert axis(0, 5e6, "bytes", unit="/s").unit == "MB/s"


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_a_single_value_has_an_axis_around_it(value: float) -> None:
    found = axis(value, value, "plain")
    assert found.low <= value <= found.high
    assert found.low < found.high


@given(
    st.floats(-1e9, 1e9), st.floats(1e-6, 1e9),
    st.sampled_from(["step", "seconds", "fraction", "bytes", "count", "plain", "ratio"]),
    st.booleans(),
)  # fmt: skip
def test_any_range_has_few_ticks_in_order_at_multiples_of_a_round_number(
    low: float, width: float, kind: Kind, exact: bool
) -> None:
    found = axis(low, low + width, kind, exact=exact)
    values = [value for value, _ in found.ticks]
    assert values == sorted(values)
    assert len(values) <= 8
    assert all(0.0 <= found.share(value) <= 1.0 for value in values)
    assert math.isfinite(found.low)
    if not exact:
        assert len(values) >= 2
        assert len(set(labels(found))) == len(values) or width < 1e-6 * abs(low)


def test_round_numbers_are_those_people_count_in() -> None:
    assert ROUND == (1.0, 2.0, 2.5, 5.0, 10.0)
