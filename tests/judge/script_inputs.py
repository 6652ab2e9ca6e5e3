"""Measurements of somebody else's script, with realistic numbers; nothing is timed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from judge_inputs import ENVIRONMENT

from hotloop.core.census import Census, LineUse, LoaderUse, OperatorUse
from hotloop.core.judgement import Diagnosis, Finding
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.judge.diagnose import diagnose

EVERYTHING = (
    "loaders", "copies", "syncs", "saves", "logs", "evaluations", "lines", "operators",
)  # fmt: skip

LOADER = LoaderUse(
    site="train.py:30", trains=True, dataset="Images", dataset_site="train.py:12",
    collate_site=None, iterable=False, in_memory=False, num_workers=0, batch_size=32,
    pin_memory=False, persistent_workers=False, prefetch_factor=None, num_batches=60,
    batch_bytes=600_000, wait_s=0.001, wait_p99_s=0.002, fetch_s=0.001, collate_s=0.0002, pin_s=None,
    fetch_cpu_fraction=0.97, num_epochs=1, epoch_start_s=None, per_epoch=None,
)  # fmt: skip

LONG = OperatorUse("aten::addmm", "bfloat16", num=40, self_s=0.05)
"""0.05 of 0.1 s: long products in half precision."""

HEALTHY = Census(
    device="cpu", num_threads=8, matmul_dtypes=("bfloat16",), fast_dtypes=("bfloat16",),
    optimizer="AdamW(fused)", compiled=True, num_graphs=1, num_graph_breaks=0, num_recompiles=0,
    clock_read_s=1e-7, cpus=8.0, cpu_busy=4.0, microbatches=1.0, loaders=(LOADER,),
    operators=(LONG,), profiled_step_s=0.1, seen=EVERYTHING,
)  # fmt: skip
"""A run on 8 CPUs with nothing wrong; steps of 0.1 s."""

STEP = {
    "data_wait": 0.001, "forward": 0.03, "backward": 0.063, "optimizer": 0.004, "unattributed": 0.002,
}  # fmt: skip
"""Seconds of a step of 0.1 s."""

GPU_HEALTHY = replace(HEALTHY, device="cuda:0", compiled=True, device_memory_bytes=80 << 30,
                      device_allocated_bytes=60 << 30, device_reserved_bytes=64 << 30,
                      operators=(replace(LONG, self_s=0.001, device_s=0.05),))  # fmt: skip
BUSY_DEVICE = {"compute": 0.098, "memcpy": 0.001, "idle": 0.001}


def steps(
    host: Mapping[str, float] = STEP,
    *,
    num: int = 60,
    device: Mapping[str, float] | None = None,
    each: Callable[[int, StepRecord], StepRecord] = lambda _, record: record,
) -> tuple[StepRecord, ...]:
    """Steps with the same phases; `each` may change single ones."""
    made = []
    for number in range(num):
        record = StepRecord(
            number,
            sum(host.values()),
            host=dict(host),
            device=dict(device) if device is not None else None,
            clock_reads=10,
        )
        made.append(each(number, record))
    return tuple(made)


def with_phase(record: StepRecord, phase: str, seconds: float, *tags: str) -> StepRecord:
    """The same step with `seconds` more in one phase."""
    host = {**record.host, phase: record.host.get(phase, 0.0) + seconds}
    return replace(record, host=host, wall_s=record.wall_s + seconds, tags=(*record.tags, *tags))


def script(
    records: tuple[StepRecord, ...], census: Census = HEALTHY, *, returncode: int | None = None
) -> Measurement:
    return Measurement(
        "script", ("python", "train.py"), Plan(0, len(records), 600.0), ENVIRONMENT, records,
        census=census, returncode=returncode,
    )  # fmt: skip


def waiting(
    wait_s: float, loader: Mapping[str, Any], census: Census = HEALTHY, num: int = 60
) -> Measurement:
    """A step of 0.1 s, `wait_s` of it for data from a loader that is changed as said."""
    rest = 0.1 - wait_s
    host = {"data_wait": wait_s, "forward": 0.3 * rest, "backward": 0.7 * rest}
    use = replace(LOADER, wait_s=wait_s, wait_p99_s=1.1 * wait_s, num_batches=num)
    use = replace(use, **loader)
    return script(steps(host, num=num), replace(census, loaders=(use,)))


def lines(*uses: tuple[str, str, float], inside: str | None = None) -> tuple[LineUse, ...]:
    """`(phase, function, fraction)` each, at train.py:50 and on."""
    return tuple(
        LineUse(phase, f"train.py:{50 + i}", function, fraction, inside)
        for i, (phase, function, fraction) in enumerate(uses)
    )


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


def found(measurement: Measurement, code: str) -> Finding | None:
    """Of everything that was found, the one with this code."""
    return next((f for f in diagnose(measurement).findings if f.code == code), None)


def only(measurement: Measurement, code: str) -> Finding:
    """The one thing that was found."""
    findings = diagnose(measurement).findings
    assert [f.code for f in findings] == [code]
    return findings[0]
