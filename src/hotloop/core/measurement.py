"""One process, measured: its records, what it used, where it ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hotloop.core.census import Census
from hotloop.core.step import StepRecord

MEASUREMENT_SCHEMA = "hotloop.measurement/1"

COMPARABLE_KEYS = (
    "device",
    "num_devices",
    "cpu_model",
    "cpu_quota",
    "memory_limit_bytes",
    "platform",
    "python",
    "torch",
    "cuda",
    "driver",
)
"""Measurements that differ in one of these are `incomparable`, never `regressed`."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and software that a process ran on. `None` means not known."""

    device: str
    """Exact device name: the GPU's, or the CPU model for CPU runs."""
    num_devices: int
    cpu_model: str | None
    num_cpus: int
    """CPUs this process may be scheduled on."""
    cpu_quota: float
    """CPUs this process may use on average: the cgroup quota, or `num_cpus`."""
    memory_limit_bytes: int | None
    platform: str
    """Operating system and machine, e.g. `Linux-x86_64`."""
    kernel: str | None
    python: str
    torch: str | None
    cuda: str | None
    driver: str | None
    hotloop: str
    git_commit: str | None = None
    git_dirty: bool | None = None
    load_average: float | None = None
    """One-minute load average when the process started; another's work on a shared machine."""
    clock_mhz: float | None = None
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables that change speed (threads, allocator, NCCL), as set."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One plain observation of a command that shows no steps."""

    value: float
    unit: Literal["s"]
    work: float = 1.0
    """Units of work done in it; `value / work` is what is compared."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process was asked to do."""

    warmup_steps: int
    """Steps at the start that are kept, marked and not counted."""
    steps: int
    """Steps that count. The process is ended after `warmup_steps + steps`."""
    timeout_s: float
    pair: int | None = None
    """Number of the interleaved pair; `None` outside a comparison."""
    position: int | None = None
    """0 if this process ran first in its pair, 1 if second."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One fresh process, measured."""

    arm: str
    """The configuration it ran, e.g. `plain` or `hotloop`."""
    command: tuple[str, ...]
    plan: Plan
    environment: Environment
    records: tuple[StepRecord, ...] = ()
    """All steps in order; warm-up steps carry the tag `warmup`."""
    samples: tuple[Sample, ...] = ()
    census: Census | None = None
    process_s: float | None = None
    """Wall time of the whole process, from start to end."""
    started_at: float | None = None
    """Seconds since the epoch."""
    returncode: int | None = None
    """`None` when the process was ended after its last counted step."""
    other_programs: float | None = None
    """Share of the machine's CPUs that other programs kept busy meanwhile; `None` where it took a second or two."""
    schema: str = MEASUREMENT_SCHEMA

    def counted(self) -> tuple[StepRecord, ...]:
        """The records that statistics may use."""
        return tuple(r for r in self.records if "warmup" not in r.tags)
