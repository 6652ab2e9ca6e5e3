"""Student's t beside scipy's."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special

from hotloop.judge import student_t

DEGREES = st.integers(1, 200)


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-6, 1 - 1e-6), DEGREES)
def test_quantile_is_scipys(probability: float, degrees: int) -> None:
    expected = float(special.stdtrit(degrees, probability))
    assert student_t.quantile(probability, degrees) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.0, 60.0), DEGREES, st.floats(0.0, 60.0))
def test_noncentral_is_scipys(value: float, degrees: int, noncentrality: float) -> None:
    expected = float(special.nctdtr(degrees, noncentrality, value))
    assume(not math.isnan(expected))  # which scipy gives for (63, 37, 1.03)
    assert student_t.noncentral_cdf(value, degrees, noncentrality) == pytest.approx(
        expected, abs=1e-9
    )


@settings(max_examples=50, deadline=None)
@given(st.floats(0.9, 0.999), st.integers(1, 60))
def test_noncentrality_is_the_one_that_gives_that_probability(
    confidence: float, degrees: int
) -> None:
    critical = student_t.quantile(confidence, degrees)
    found = student_t.noncentrality_for(0.2, degrees, critical)
    if math.isfinite(found):
        assert float(special.nctdtr(degrees, found, critical)) == pytest.approx(0.2, abs=1e-8)


def test_one_degree_is_the_cauchy_distribution() -> None:
    assert student_t.quantile(0.75, 1) == pytest.approx(1.0, abs=1e-12)
    assert student_t.quantile(0.025, 1) == pytest.approx(-12.7062047361747, rel=1e-12)
