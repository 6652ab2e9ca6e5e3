"""When to look at a growing comparison, and how much error each look may spend.

Looking again and again at 5 % each makes far more than 5 % errors. The error is therefore split over
the looks that were planned; by Bonferroni's inequality the intervals of all looks together then hold
with at least `1 - sum(levels)`, whatever the dependence between looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hotloop.core.judgement import Verdict

LOOKS = (4, 6, 10)
"""Pairs at which a comparison is judged. Even numbers, so that both orders occur equally often."""

TOTAL_ERROR = 0.05
"""Two-sided, over all looks."""

DECIDED = ("improved", "regressed", "unchanged")

LARGE, ENOUGH_PAIRS = 1.2, 6
"""Fewer pairs than so many end a comparison only where the whole interval lies beyond this ratio, or its inverse:
load that comes and goes every few processes falls on one side of all of 4 pairs too often."""
WIDE = 2.0
"""Nor where one end of the interval is more than so many times the other: such a number helps nobody."""


def default_levels(looks: Sequence[int]) -> tuple[float, ...]:
    """Two-sided error per look, in proportion to its pairs: 0.01, 0.015, 0.025 for 4, 6, 10.

    Early looks have few degrees of freedom and need a strict level; the last look carries the power.
    """
    total = sum(looks)
    return tuple(TOTAL_ERROR * look / total for look in looks)


def divided_levels(looks: Sequence[int], num_comparisons: int, total: float) -> tuple[float, ...]:
    """The levels of each of so many comparisons that may err `total` times in all, and no more than one may alone."""
    share = min(total / TOTAL_ERROR / max(num_comparisons, 1), 1.0)
    return tuple(level * share for level in default_levels(looks))


def checked_levels(looks: Sequence[int], alpha: Sequence[float] | None) -> tuple[float, ...]:
    """The levels to use. Raises `ValueError` when looks and levels make no sense together."""
    if not looks or looks[0] < 2 or any(b <= a for a, b in pairwise(looks)):
        raise ValueError(f"looks must rise from at least 2 pairs, not {tuple(looks)}")
    levels = default_levels(looks) if alpha is None else tuple(alpha)
    if len(levels) != len(looks):
        raise ValueError(f"{len(looks)} looks need {len(looks)} levels, not {len(levels)}")
    if any(not 0 < level < 1 for level in levels) or sum(levels) > TOTAL_ERROR + 1e-12:
        raise ValueError(f"levels must be above 0 and sum to at most {TOTAL_ERROR}, not {levels}")
    return levels


def level_at(num_pairs: int, looks: Sequence[int], levels: Sequence[float]) -> float:
    """Two-sided error that the interval at `num_pairs` may spend.

    At a planned look: its own level. Between looks (the session was interrupted): an equal share of
    the next look's level among the counts since the last look, because what was seen on the way may
    have prompted the interruption. With looks 4, 6, 10 that is 0.0075 at 5 and 0.00625 at 7, 8, 9.
    Raises `ValueError` beyond the last look: every bit of error is spent there.
    """
    previous = 0
    for look, level in zip(looks, levels):
        if num_pairs == look:
            return level
        if num_pairs < look:
            return level / (look - previous)
        previous = look
    raise ValueError(
        f"{num_pairs} pairs, but the last planned look is at {looks[-1]}: plan the looks before measuring"
    )


def error_spent(num_pairs: int, looks: Sequence[int], levels: Sequence[float]) -> float:
    """Error of this look and all planned ones before it; `1 - error_spent` is the confidence."""
    earlier = sum(level for look, level in zip(looks, levels) if look < num_pairs)
    return earlier + level_at(num_pairs, looks, levels)


def num_looks(num_pairs: int, looks: Sequence[int]) -> int:
    """Looks taken, the present one included."""
    return sum(look < num_pairs for look in looks) + 1


def should_stop(verdict: Verdict, num_pairs: int, looks: Sequence[int] = LOOKS) -> bool:
    """Whether measuring more pairs is pointless or not allowed.

    True at the last look, at a planned look whose outcome is decided, and for arms that can not be
    compared at all. Never between looks: stopping there on a good-looking result is an unplanned look.
    """
    if num_pairs >= looks[-1] or verdict.outcome == "incomparable":
        return True
    few = num_pairs < ENOUGH_PAIRS and not verdict.switched
    return (
        num_pairs in looks and verdict.outcome in DECIDED and not (few and not _is_clear(verdict))
    )


def _is_clear(verdict: Verdict) -> bool:
    """Whether the interval is large and narrow."""
    low, high = verdict.ratio_low, verdict.ratio_high
    if low is None or high is None or high > WIDE * low:
        return False
    return low > LARGE or high < 1 / LARGE
