"""How often to save: what a save costs the steps against the steps that an interruption makes again."""

from __future__ import annotations

import math

DAY_S = 86_400.0
MAX_SHARE = 0.1
"""Saves take no more of the time than this, however often a run is interrupted."""
MAX_S = 3600.0
"""Nor are they further apart than this, however rarely."""


def best_interval_s(save_s: float, between_s: float) -> float:
    """Seconds of training between saves that cost `save_s`, with `between_s` between interruptions on average.

    Young's sqrt(2 save_s between_s) (Communications of the ACM 17, 1974) with the next terms of Daly (A higher order
    estimate of the optimum checkpoint interval for restart dumps, FGCS 22, 2006, equation 37), which count where a
    save takes long beside the time between interruptions.
    """
    if save_s >= 2 * between_s:
        return between_s
    part = math.sqrt(save_s / (2 * between_s))
    return math.sqrt(2 * save_s * between_s) * (1 + part / 3 + part**2 / 9) - save_s


def interval_steps(save_s: float, step_s: float, per_day: float) -> int:
    """The same in steps of `step_s`, for so many interruptions a day, within its bounds."""
    seconds = best_interval_s(save_s, DAY_S / per_day)
    seconds = min(max(seconds, save_s * (1 / MAX_SHARE - 1)), MAX_S)
    return max(1, round(seconds / step_s))


def interruptions_per_day(seen: int, trained_s: float) -> float:
    """Estimated from what a run has seen, and one in a day that it has not: so many are expected before any was seen."""
    return (1 + seen) / (1 + trained_s / DAY_S)
