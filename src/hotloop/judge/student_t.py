"""Student's t, central and noncentral: what an interval and the smallest detectable effect need of it.

Written here because a library that has it is larger than all the rest that a diagnosis installs. To ten digits of
`scipy.special` over the arguments that occur (`tests/judge/test_student_t.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

TERMS = 10_000
SMALLEST = 1e-300
EXACT = 1e-15


@lru_cache(maxsize=4096)
def quantile(probability: float, degrees: int) -> float:
    """The value below which Student's t lies with a probability between 0 and 1."""
    if probability < 0.5:
        return -quantile(1 - probability, degrees)
    if probability == 0.5:
        return 0.0
    # By the tail: near 1 the probability itself has too few digits.
    tail = 1 - probability

    def missing(value: float) -> float:
        return tail - incomplete_beta(degrees / 2, 0.5, degrees / (degrees + value * value)) / 2

    return _root(missing, 0.0)


def noncentral_cdf(value: float, degrees: int, noncentrality: float) -> float:
    """Probability that noncentral t lies below a `value` of at least 0 (Lenth 1989, AS 243).

        normal_cdf(-d) + sum over j of p(j) I(j + 1/2) + q(j) I(j + 1),   h = d^2 / 2
        p(j) = exp(-h) h^j / (2 Gamma(j + 1)),   q(j) = d exp(-h) h^j / (2 sqrt(2) Gamma(j + 3/2))

    with `I(a)` the incomplete beta function at `value^2 / (value^2 + degrees)`. Summed downwards around the largest
    terms: `I(a - 1)` is `I(a)` and something positive. Each is a multiple of the one before it, unless that was
    too small for a float.
    """
    below = normal_cdf(-noncentrality)
    x, b, half = value * value / (value * value + degrees), degrees / 2, noncentrality**2 / 2
    if x <= 0 or x >= 1:
        return 1.0 if x >= 1 else below
    around = 8 * math.sqrt(half) + 30
    first, last = max(int(half - around), 0), int(half + around)
    log_half = math.log(half) if half > 0 else -math.inf
    for shift, factor in ((0.5, 0.5), (1.0, noncentrality / math.sqrt(8))):
        beta, weight, step = incomplete_beta(last + shift, b, x), 0.0, 0.0
        for term in range(last, first - 1, -1):
            a = term + shift
            if weight > SMALLEST:
                weight *= (a + 0.5) / half
            else:
                power = term * log_half if term else 0.0
                weight = math.exp(power - half - math.lgamma(a + 0.5))
            below += factor * weight * beta
            if term > first:
                step = step * a / ((a + b - 1) * x) if step > SMALLEST else _beta_step(a - 1, b, x)
                beta += step
    return below


def _beta_step(a: float, b: float, x: float) -> float:
    """`I(a) - I(a + 1)` of the incomplete beta function."""
    logs = math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b)
    return math.exp(logs + a * math.log(x) + b * math.log1p(-x))


@lru_cache(maxsize=4096)
def noncentrality_for(probability: float, degrees: int, value: float) -> float:
    """The noncentrality with which t lies below `value` with this probability, at most that of a central t."""
    return _root(lambda each: probability - noncentral_cdf(value, degrees, each), 0.0)


def normal_cdf(value: float) -> float:
    return math.erfc(-value / math.sqrt(2)) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22; Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there it converges fast
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1 / _away(1 + numerator * d)
            c = _away(1 + numerator / c)
            fraction *= c * d
        if abs(c * d - 1) < EXACT:
            break
    return front * fraction / a


def _away(value: float) -> float:
    """From 0, which Lentz's method would divide by."""
    return value if abs(value) > SMALLEST else SMALLEST


def _root(rising: Callable[[float], float], low: float) -> float:
    """The zero of a function that rises from below 0 at `low`; infinite where there is none below 1e12."""
    high = low + 1.0
    while rising(high) < 0:
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf
    while high - low > 1e-14 * max(high, 1.0):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
