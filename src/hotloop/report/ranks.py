"""Processes that train together, in words."""

from __future__ import annotations

from hotloop.core.judgement import RankComparison
from hotloop.report import numbers

MAX_RANKS = 8
"""Listed one by one; of more, those that compute longest."""


def ranks_answer(found: RankComparison) -> str:
    """Says which one holds the others up, if any does."""
    if found.reason is not None:
        return f"not compared: {found.reason}"
    if found.slowest is not None and found.hidden:
        by = numbers.percent(found.slower_by)
        return (
            f"rank {found.slowest} holds the others up {by} of a step: it takes longer outside of the "
            "pass backward, and they wait for it inside theirs"
        )
    if found.hidden:
        return (
            f"{len(found.ranks)}, none slower outside of the pass backward; inside, waiting is not told "
            "from computing"
        )
    if found.slowest is not None:
        by = numbers.percent(found.slower_by)
        return f"rank {found.slowest} is {by} slower than the others, who wait for it"
    return f"{len(found.ranks)}, none reliably slower than the others"


def rank_rows(found: RankComparison) -> list[tuple[str, str]]:
    """Each with its share of a step, the slowest first where not all are shown."""
    shown = list(found.ranks)
    if len(shown) > MAX_RANKS:
        shown = sorted(shown, key=lambda each: -each.computing_s)[:MAX_RANKS]
    rows = []
    for each in shown:
        computing, waiting = numbers.seconds(each.computing_s), numbers.seconds(each.waiting_s)
        # Where waiting is not told apart, computing is not known either.
        part = f"computes {computing}, waits {waiting}" if found.reason is None else computing
        if found.hidden:
            part = f"{computing} outside of the pass backward"
        rows.append((f"rank {each.rank}", f"{part} a step"))
    if len(found.ranks) > len(shown):
        rows.append(("", f"and {len(found.ranks) - len(shown)} others that compute no longer"))
    return rows
