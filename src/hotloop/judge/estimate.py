"""Intervals from per-pair log ratios.

The unit of replication is the pair of processes. Steps within a process share its memory layout, its
place on the machine and the moment; a t-test that treats them as independent calls most neighbouring
runs of the same program different (`benchmarks/results/judge_validation.md` counts them).

Why a t-interval on so few pairs is honest here. The order within each pair is drawn at random, so
without a true difference every log ratio is symmetric about 0 whatever the shape of the process times:
skewed, bimodal, heavy-tailed, drifting. For symmetric heavy tails Student's t is conservative (one
wild pair inflates the scatter more than the mean). What running second in a pair costs (a turbo budget, drift)
has the sign of the order: it is fitted beside the mean. Orders are balanced (ABBA). The bad case for t, ratios
that are two points +-c with nothing in between, needs all of 4 pairs on one side: (1/4)^4 when each process is
in one of two states, but 1/8 under load that comes and goes every four processes.
Trimmed means and bootstraps were left aside: with 4 pairs a trimmed mean throws half
of the data away, and a percentile bootstrap of 4 values covers about 80 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hotloop.judge import student_t

NO_SCATTER = 1e-9
"""Pairs that agree better than this were not measured with a real clock."""

LEAST_FITTED = 6
"""Pairs from which on what running second costs is fitted: in 4 pairs of processes in one of two states, ratios of
`c, 0, c, 0` would be a mean and an order effect without any scatter."""

POWER = 0.8

LARGEST_LOG = 700.0
"""Beyond it `exp` overflows; two wild pairs can have so wide an interval."""


def as_ratio(log: float) -> float:
    """`exp(log)`, kept finite so that it can be stored as JSON."""
    return math.exp(min(max(log, -LARGEST_LOG), LARGEST_LOG))


@dataclass(frozen=True, slots=True)
class LogInterval:
    """Mean log ratio of pairs, with its two-sided t-interval."""

    mean: float
    half_width: float
    """`t(1 - level/2, n - 1) * sd / sqrt(n)`; infinite for a single pair."""
    standard_error: float

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width


def log_interval(log_ratios: Sequence[float], level: float) -> LogInterval:
    """The two-sided `1 - level` interval of the mean of at least one log ratio."""
    count, mean = len(log_ratios), fmean(log_ratios)
    if count < 2:
        return LogInterval(mean, math.inf, math.inf)
    squares = math.fsum((value - mean) ** 2 for value in log_ratios)
    error = math.sqrt(squares / (count - 1) / count)
    return LogInterval(mean, student_t.quantile(1 - level / 2, count - 1) * error, error)


def paired_interval(
    log_ratios: Sequence[float], candidate_first: Sequence[bool], level: float
) -> LogInterval:
    """The interval of the mean, with what running second costs fitted beside it.

        log ratio = mean + order effect * (1 where the candidate ran first, else -1)

    As `log_interval` where orders are not known, or all alike, or pairs are too few to fit two numbers.
    """
    count = len(log_ratios)
    if len(candidate_first) != count or count < LEAST_FITTED or len(set(candidate_first)) < 2:
        return log_interval(log_ratios, level)
    # Two numbers fit two groups: their means are `mean + effect` and `mean - effect`.
    groups = [
        [log for log, first in zip(log_ratios, candidate_first) if first == order]
        for order in (True, False)
    ]
    means = [fmean(group) for group in groups]
    squares = math.fsum((log - mean) ** 2 for group, mean in zip(groups, means) for log in group)
    error = math.sqrt(squares / (count - 2) * sum(1 / len(group) for group in groups) / 4)
    return LogInterval(fmean(means), student_t.quantile(1 - level / 2, count - 2) * error, error)


def noise_floor(aa_log_ratios: Sequence[float], num_pairs: int) -> float | None:
    """Relative scatter that a mean over `num_pairs` pairs of identical code would show.

    `exp(rms(a_i) / sqrt(num_pairs)) - 1`, the root mean square taken about 0 because identical code
    has a true log ratio of 0. `None` without any A/A log ratio.
    """
    if not len(aa_log_ratios) or num_pairs < 1:
        return None
    rms = math.sqrt(fmean(log * log for log in aa_log_ratios))
    return as_ratio(rms / math.sqrt(num_pairs)) - 1


def minimum_detectable_effect(
    standard_error: float, num_pairs: int, level: float, margin: float
) -> float | None:
    """Smallest true relative gain that `num_pairs` pairs call `improved` in 80 of 100 cases.

    `improved` means `mean - t * se > log(1 + margin)`. For a true log gain `g` the statistic
    `(mean - log(1 + margin)) / se` is noncentral t with noncentrality `(g - log(1 + margin)) / se`;
    solved for the `g` where it exceeds `t(1 - level/2)` with probability 0.8. The observed standard
    error stands in for the true one. `None` for fewer than 2 pairs.
    """
    if num_pairs < 2 or not math.isfinite(standard_error):
        return None
    degrees = num_pairs - 1
    critical = student_t.quantile(1 - level / 2, degrees)
    noncentrality = student_t.noncentrality_for(1 - POWER, degrees, critical)
    if not math.isfinite(noncentrality):
        return None
    return as_ratio(math.log1p(margin) + noncentrality * standard_error) - 1
