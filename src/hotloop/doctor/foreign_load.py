"""How busy the machine was while a command trained, and how much of it was other programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from hotloop.core.census import Census
from hotloop.core.telemetry import TelemetrySample

FEWEST_SAMPLES = 3
"""Seconds of telemetry below which nothing is said."""


def with_foreign_load(
    census: Census, samples: Sequence[TelemetrySample], *, num_cpus: int | None = None
) -> Census:
    """The census with what the machine's CPUs did after the first step; unchanged without telemetry.

    `num_cpus`: all of the machine, whether or not this process may use them.
    """
    num_cpus = num_cpus or os.cpu_count()
    if not samples or census.cpu_busy is None or not num_cpus:
        return census
    since = samples[0].sampled_at + (census.start_s or 0.0)
    busy = [
        each.cpu_fraction
        for each in samples
        if each.sampled_at >= since and each.cpu_fraction is not None
    ]
    if len(busy) < FEWEST_SAMPLES:
        return census
    mean = min(fmean(busy), 1.0)
    return replace(
        census,
        machine_busy=mean,
        foreign_busy=max(mean - census.cpu_busy / num_cpus, 0.0),
    )
