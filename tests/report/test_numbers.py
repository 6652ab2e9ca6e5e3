"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.report import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0004, "0.04 %"),
        (0.62, "62 %"),
        (0.031, "3.1 %"),
        (0.002, "0.2 %"),
        (0.95, "95 %"),
        (1.0, "100 %"),
        (0.997, "99.7 %"),
        (0.9999, "99.9 %"),
        (-0.9996, "-99.9 %"),
        (0.994, "99 %"),
        (1.004, "100 %"),
        (0.1 + 0.7 + 0.2, "100 %"),  # 0.9999999999999999
        (0.0, "0 %"),
        (-0.0004, "-0.04 %"),
        (None, "not known"),
        (float("nan"), "nan"),
        (1e-9, "1e-07 %"),
    ],
)
def test_percent(value: float | None, text: str) -> None:
    assert numbers.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.214, "214 ms"),
        (3.2, "3.2 s"),
        (250.0, "4 min 10 s"),
        (7500.0, "2 h 05 min"),
        (99.97, "1 min 40 s"),
        (2.5e-5, "25 us"),
        (0.0, "0 s"),
        (None, "not known"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert numbers.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3100.0, "3.10 K"), (999.6, "1.00 K"), (123e6, "123 M"), (87.0, "87"), (0.25, "0.25")],
)
def test_count(value: float, text: str) -> None:
    assert numbers.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_900_000_000, "1.9 GB"), (999, "999 B"), (25_000_000_000, "25 GB"), (2 * 10**12, "2.0 TB")],
)
def test_size(value: int, text: str) -> None:
    assert numbers.size(value) == text


def test_rate_names_its_unit() -> None:
    assert numbers.rate(3100.0, "tokens") == "3.10 K tokens/s"
    assert numbers.rate(87.0, "tokens") == "87 tokens/s"


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=11))
def test_printed_shares_add_up_to_the_whole(parts: list[float]) -> None:
    whole = {str(index): part / sum(parts) for index, part in enumerate(parts)}
    shown = [float(text.removesuffix("%")) for text in numbers.shares(whole).values()]
    assert sum(shown) == pytest.approx(100.0, abs=1e-6)
    assert all(abs(a - 100 * b) < 0.1 + 1e-9 for a, b in zip(shown, whole.values()))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.31429, "2.3143"),
        (0.0, "0.0000"),
        (1.4e-07, "1.4e-07"),
        (0.00052, "0.0005"),
        (None, "not known"),
    ],
)
def test_a_small_loss_is_no_false_zero(value: float | None, text: str) -> None:
    assert numbers.loss(value) == text
