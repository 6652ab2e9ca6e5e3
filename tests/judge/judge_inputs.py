"""Small measurements for the judge's tests; nothing is timed here."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.measurement import Environment, Measurement, Plan, Sample
from hotloop.core.step import StepRecord

ENVIRONMENT = Environment(
    device="AMD EPYC", num_devices=1, cpu_model="AMD EPYC", num_cpus=2, cpu_quota=2.0,
    memory_limit_bytes=None, platform="Linux-x86_64", kernel="6.1", python="3.11.7",
    torch="2.13.0", cuda=None, driver=None, hotloop="0.1",
)  # fmt: skip

JITTER = (0.004, -0.006, 0.001, 0.007, -0.003, 0.005, -0.008, 0.002, -0.001, 0.006)
"""Relative scatter between runs of one arm: half a per cent, as on a quiet machine."""


def run(
    arm: str = "plain",
    step_s: float = 0.1,
    *,
    steps: int = 30,
    tokens: int | None = 1000,
    losses: Sequence[float | None] | None = None,
    environment: Environment = ENVIRONMENT,
    position: int | None = None,
) -> Measurement:
    """One process with steps of equal length and two warm-up steps that took ten times as long."""
    records = tuple(
        StepRecord(
            number,
            step_s * (10 if number < 2 else 1),
            tokens=tokens,
            loss=None if losses is None else losses[number],
            tags=("warmup",) if number < 2 else (),
        )
        for number in range(steps + 2)
    )
    return Measurement(
        arm, ("train",), Plan(2, steps, 60.0, position=position), environment, records
    )


def pairs(
    ratio: float,
    count: int,
    *,
    environment: Environment = ENVIRONMENT,
    scatter: float = 1.0,
) -> list[tuple[Measurement, Measurement]]:
    """`count` ABBA pairs whose candidate is faster by `ratio`, with `scatter` times half a per cent."""
    found = []
    for i in range(count):
        first = i % 2
        baseline = run("plain", 0.1 * (1 + scatter * JITTER[i % 10]), position=first)
        seconds = 0.1 / ratio * (1 + scatter * JITTER[(i + 3) % 10])
        candidate = run("fast", seconds, position=1 - first, environment=environment)
        found.append((baseline, candidate))
    return found


def sampled(arm: str, seconds: Sequence[float], work: float = 1.0) -> Measurement:
    """A command that shows no steps."""
    samples = tuple(Sample(s, "s", work) for s in seconds)
    return Measurement(arm, ("command",), Plan(0, 0, 60.0), ENVIRONMENT, samples=samples)


def curve(losses: Sequence[float | None]) -> list[StepRecord]:
    """A run that is only looked at for its losses."""
    return [StepRecord(step, 0.1, loss=loss) for step, loss in enumerate(losses)]


def phased(number: int, wall_s: float, *tags: str, **host: float) -> StepRecord:
    """A step with phases."""
    return StepRecord(number, wall_s, host=host, clock_reads=10, tags=tags)
