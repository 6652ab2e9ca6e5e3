"""A page that shows everything that a page may show, with markup in each text."""

from __future__ import annotations

from dataclasses import replace

from judge_inputs import ENVIRONMENT

from hotloop.core.course import MachineCourse, PairSpeeds, StepCourse
from hotloop.core.judgement import Diagnosis, Finding, Interval, Parity, Steps, Verdict
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.judge.course import arms_course, machine_course, step_course
from hotloop.judge.targets import check_targets
from hotloop.report.html import Page

EVIL = "<script>alert('1')</script>"


def findings(count: int) -> tuple[Finding, ...]:
    return tuple(
        Finding(f"HL10{i}", EVIL, 1.45, site=EVIL, optimization=EVIL, advice=EVIL)
        for i in range(count)
    )


VERDICT = Verdict(
    outcome="improved",
    ratio=2.71,
    ratio_low=2.60,
    ratio_high=2.82,
    confidence=0.95,
    parity=Parity("within_noise", "reduced_precision", 40, 0.0004, 0.002, reason=EVIL),
    baseline=EVIL,
    candidate="hotloop",
    all_in=Interval(2.4, 2.3, 2.5),
    num_pairs=2,
    num_looks=1,
    noise_floor=0.008,
    minimum_detectable_effect=0.031,
    pair_ratios=(2.6, 2.8),
    baseline_s_per_work=1 / 1600,
    candidate_s_per_work=1 / 4300,
    reasons=(EVIL,),
)
DIAGNOSIS = Diagnosis(
    "input",
    Steps(60, 10, 0.214, 4301.2),
    {"data_wait": 0.333, "forward": 0.333, "backward": 0.334},
    findings=findings(5),
    not_examined=(EVIL,),
)


def course(count: int = 40, *, loss: float = 3.0) -> StepCourse:
    """A step in ten evaluates and takes twice as long; the first compiles for twenty seconds."""
    records = [
        StepRecord(
            n,
            20.0 if n == 0 else 0.2 if n % 10 == 5 else 0.1,
            host={"forward": 0.04, "backward": 0.06, **({"eval": 0.1} if n % 10 == 5 else {})},
            tokens=512,
            loss=loss,
            grad_norm=1.5,
            tags=("compile",) if n == 0 else ("eval", EVIL) if n % 10 == 5 else (),
        )
        for n in range(count)
    ]
    found = step_course(records)
    assert found is not None
    return found


def machine(*, num_gpus: int = 1, count: int = 30) -> MachineCourse:
    gpus = tuple(
        GpuSample(
            i, name=EVIL, busy_fraction=0.9, memory_bytes=60, memory_total_bytes=100, power_w=650.0,
            power_limit_w=700.0, sm_clock_mhz=1980.0, temperature_c=60.0, throttled_by=(EVIL,),
        )
        for i in range(num_gpus)
    )  # fmt: skip
    found = machine_course(
        [
            TelemetrySample(
                1e9 + n + (3600 if n > 20 else 0), process_cpus=1.9, process_bytes=10**9,
                cpu_fraction=0.97, iowait_fraction=0.01, steal_fraction=0.0, memory_bytes=2 * 10**9,
                memory_total_bytes=25 * 10**9, group_bytes=15 * 10**8, memory_limit_bytes=25 * 10**9,
                disk_read_bytes_per_s=0.0, disk_write_bytes_per_s=1e6, gpus=gpus,
                sampler_fraction=0.001,
            )
            for n in range(count)
        ]
    )  # fmt: skip
    assert found is not None
    return found


RECORDS = [StepRecord(n, 0.1, loss=9.0 - n / 10) for n in range(25)]
FULL = Page(
    title=EVIL,
    answer=EVIL,
    problems=(EVIL,),
    notes=(EVIL,),
    facts=((EVIL, EVIL),),
    verdict=VERDICT,
    pairs=(PairSpeeds(1, 1600.0, 4200.0), PairSpeeds(2, 1500.0, None)),
    arm_names=(EVIL, "hotloop"),
    arms=arms_course([RECORDS, RECORDS], [RECORDS]),
    breakdowns={EVIL: DIAGNOSIS.breakdown, "other": {"eval": 0.5, EVIL: 0.5}, "empty": {}},
    device={"compute": 0.8, "idle": 0.2},
    ranks=(("rank 0", EVIL),),
    steps=course(),
    held_out={EVIL: [(20, 5.0), (40, float("nan"))]},
    machine=machine(),
    cpus=2.0,
    use=((EVIL, EVIL),),
    targets=check_targets(None, verdict=VERDICT),
    diagnosis=DIAGNOSIS,
    explanations={finding.code: EVIL for finding in DIAGNOSIS.findings},
    sample=EVIL + "\x00\x1b[31m",
    environment=replace(ENVIRONMENT, device=EVIL, variables={"OMP_NUM_THREADS": EVIL}),
    settings=((EVIL, EVIL, EVIL), ("key", "value", "default")),
    footer=EVIL,
)
