"""Having DistributedDataParallel keep gradients in its buckets in a running script."""

from __future__ import annotations

from typing import Any

from hotloop.optimizations.ddp_bucket_view import ARGUMENT
from hotloop.optimizations.hooks import set_ddp_argument
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """Every DistributedDataParallel that the script makes."""
    set_ddp_argument(ARGUMENT, value, report)
