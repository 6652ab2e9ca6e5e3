"""Predicted against verified, for a terminal."""

from __future__ import annotations

from hotloop.core.ledger import Prediction, Scorecard
from hotloop.report import numbers


def render_scorecard(card: Scorecard) -> str:
    """The answer, then a line for each trial that had a prediction."""
    counts = f"{card.num_trials} trials in {card.num_runs} runs, {card.num_kept} kept"
    if not card.num_predicted:
        return f"No fix was kept of which a gain had been predicted ({counts})."
    lines = [
        f"{numbers.percent(card.coverage)} of {card.num_predicted} kept fixes came out inside the "
        f"interval that was predicted for them ({counts}).",
        f"  predictions are {_part(card.width)} wide and the verified gains {_part(card.gain)} "
        f"(medians); the middle of a prediction is off by {numbers.percent(card.error)}",
        "",
    ]
    width = max(len(each.name) for each in card.predictions)
    lines += [_line(each, width) for each in card.predictions]
    return "\n".join(lines)


def _part(value: float | None) -> str:
    return numbers.UNKNOWN if value is None else f"{value:.2f}"


def _line(each: Prediction, width: int) -> str:
    predicted = numbers.interval(each.predicted.ratio_low, each.predicted.ratio_high)
    verified = numbers.ratio(each.verified)
    spread = numbers.interval(each.verified_low, each.verified_high)
    sign = "inside" if each.inside else "outside"
    status = each.status.replace("_", " ")
    return (
        f"  {sign:<8} {each.name:<{width}}  {status:<11} predicted {predicted}, "
        f"verified {verified} ({spread})  {each.run}"
    )
