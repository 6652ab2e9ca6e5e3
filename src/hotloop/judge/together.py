"""What of several processes that train together one of them does not show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hotloop.core.judgement import Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.attribute import attribute, under_way
from hotloop.judge.exposure import is_foreign, runs_on_cpu
from hotloop.judge.findings import hl107_input_in_loop, hl801_own_code
from hotloop.judge.warmup import tag_warmup

OWN_CODE = (hl107_input_in_loop, hl801_own_code)
"""Findings about one process's own lines, of which the others see nothing but that they wait."""


def hides_waiting(measurement: Measurement) -> bool:
    """Whether several processes train together and no waiting for each other was seen.

    DistributedDataParallel sends gradients and waits for them inside the pass backward: what a rank
    computes and what it waits for a slower one is one phase then, unless torch's profiler saw it send.
    """
    census = measurement.census
    if census is None or not is_foreign(census) or (census.num_ranks or 1) < 2:
        return False
    if census.profiled_communication_s is not None:
        return False
    steps = under_way(measurement.records)
    seen = math.fsum(
        r.host.get("grad_sync", 0.0) + (r.device or {}).get("communication", 0.0) for r in steps
    )
    return seen <= 0


def with_other_ranks(
    findings: Sequence[Finding], others: Mapping[int, Measurement]
) -> tuple[Finding, ...]:
    """The findings; of a rank that spends more in its own code than the judged one, its line instead."""
    found = list(findings)
    for module in OWN_CODE:
        best = next((f for f in found if f.code == module.CODE), None)
        for rank, measurement in others.items():
            other = _found(module.find, measurement)
            if other is not None and (best is None or other.gain_at_most > best.gain_at_most):
                best = replace(
                    other,
                    evidence={"rank": rank, **other.evidence},
                    advice=f"On rank {rank}: {other.advice[0].lower()}{other.advice[1:]}",
                )
        if best is not None:
            found = [f for f in found if f.code != module.CODE] + [best]
    return tuple(found)


def _found(find: object, measurement: Measurement) -> Finding | None:
    assert callable(find)
    kept = replace(
        measurement, records=tag_warmup(measurement.records, on_cpu=runs_on_cpu(measurement))
    )
    if not any(record.host for record in under_way(kept.records)):
        return None
    counted = under_way(measurement.records)
    breakdown = replace(
        attribute(
            kept.records,
            clock_read_s=kept.census.clock_read_s if kept.census else None,
            census=kept.census,
        ),
        counted_steps=len(counted),
        counted_wall_s=math.fsum(record.wall_s for record in counted),
    )
    finding = find(kept, breakdown)
    assert finding is None or isinstance(finding, Finding)
    return finding
