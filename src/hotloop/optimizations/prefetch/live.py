"""Giving the loader workers of a running script a longer queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.optimizations.hooks import Arguments, set_arguments
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """The loader that trains, which has workers, gets `value` batches per worker."""

    def change(given: Mapping[str, Any]) -> Arguments | str:
        return {"prefetch_factor": int(value)} if given["num_workers"] else "has no loader workers"

    set_arguments(change, report)
