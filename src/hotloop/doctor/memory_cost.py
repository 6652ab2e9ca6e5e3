"""What memory a fix takes: loader workers are copies of the process that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from hotloop.core.ledger import TriedFix
from hotloop.core.measurement import Measurement
from hotloop.trial.session import Pair

MOST = 0.9
"""Share of what this machine or container allows, from which on a fix is not kept."""
CLEAR_BYTES = 50_000_000
"""Less is what processes of the same command differ by."""


def with_memory(entry: TriedFix, pairs: Sequence[Pair]) -> TriedFix:
    """The entry of a kept fix with the memory that it takes; `rejected` where that leaves nearly none.

    pairs: timed with and without it, none where it went on and off within processes.
    """
    seen = [tuple(map(_bytes_of, runs)) for runs in (zip(*pairs, strict=True) if pairs else ())]
    if entry.status != "kept" or not seen or any(None in runs for runs in seen):
        return entry
    without, with_it = (median(each for each in runs if each is not None) for runs in seen)
    limit = pairs[0][1].environment.memory_limit_bytes
    more = round(with_it - without)
    if limit is not None and more > CLEAR_BYTES and with_it > MOST * limit:
        why = (
            f"its steps are faster, but with it the command takes {with_it / 1e9:.3g} GB of memory "
            f"({without / 1e9:.3g} GB without), and {limit / 1e9:.3g} GB are all that may be used here"
        )
        return replace(entry, status="rejected", why=why)
    return replace(entry, memory_bytes=more if abs(more) > CLEAR_BYTES else 0)


def _bytes_of(run: Measurement) -> int | None:
    return run.census.tree_bytes if run.census is not None else None
