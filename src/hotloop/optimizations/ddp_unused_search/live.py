"""Leaving DistributedDataParallel's search for unused parameters out of a running script."""

from __future__ import annotations

from typing import Any

from hotloop.optimizations.ddp_unused_search import ARGUMENT
from hotloop.optimizations.hooks import set_ddp_argument
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """A parameter that is not used after all is an error of torch's own, and the trial fails."""
    set_ddp_argument(ARGUMENT, value, report)
