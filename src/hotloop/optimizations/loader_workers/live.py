"""Giving the loader of a running script worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from hotloop.optimizations.hooks import Arguments, set_arguments
from hotloop.optimizations.live_report import Report
from hotloop.optimizations.loader_workers import WITHOUT_WORKERS


def apply(value: Any, report: Report) -> None:
    """`value` workers for the loader that trains; 0 takes the script's own away."""

    def change(given: Mapping[str, Any]) -> Arguments | str:
        if isinstance(given["dataset"], IterableDataset):
            return "is an IterableDataset: what a worker gives depends on how many there are"
        return {"num_workers": int(value)} | ({} if value else WITHOUT_WORKERS)

    set_arguments(change, report)
