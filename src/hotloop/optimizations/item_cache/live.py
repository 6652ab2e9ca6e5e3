"""Keeping the items of a running script."""

from __future__ import annotations

from typing import Any

from hotloop.optimizations.item_cache.kept_items import keep_items
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """At most `value` MB, and a quarter of what is available."""
    keep_items(int(value) * 1_000_000, report)
