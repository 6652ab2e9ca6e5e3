"""Time that went into compiling again what was compiled before."""

from __future__ import annotations

import math

import numpy as np

from hotloop.core.measurement import Measurement

MIN_OTHERS = 5
"""Steps without compiling that must be there to tell what a usual one takes."""


def recompiling_share(measurement: Measurement) -> float:
    """The share of the wall time after the warm-up that steps with a recompile took beyond a usual step.

    Not over the steps under way alone: a step in which something was compiled for the first time as
    well carries `compile`, and is not among them. Where nearly every step compiled, no step shows
    what a usual one takes: then torch's own count of its seconds, over all steps since the start.
    """
    records = measurement.records
    steps = [r for r in records if not {"warmup", "resumed", "profiled"} & set(r.tags)]
    again = [record.wall_s for record in steps if "recompile" in record.tags]
    others = [r.wall_s for r in steps if not {"recompile", "compile"} & set(r.tags)]
    wall = math.fsum(record.wall_s for record in steps)
    if not again or wall <= 0:
        return 0.0
    if len(others) < MIN_OTHERS:
        return _by_compile_time(measurement)
    usual = float(np.median(others))
    return math.fsum(max(took - usual, 0.0) for took in again) / wall


def _by_compile_time(measurement: Measurement) -> float:
    census = measurement.census
    if census is None or census.compile_s is None or not census.num_recompiles:
        return 0.0
    wall = math.fsum(record.wall_s for record in measurement.records)
    again = census.num_recompiles / max(census.num_graphs or 0, census.num_recompiles)
    return min(census.compile_s / wall, 1.0) * again if wall > 0 else 0.0
