"""One look at a run, or at the machine alone: everything that a frame of the monitor shows."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hotloop.core.ceilings import Ceilings
from hotloop.core.census import Census
from hotloop.core.judgement import ModelFlops, RankComparison, Utilization
from hotloop.core.step import StepRecord, steps_name, steps_of_ranks
from hotloop.core.telemetry import TELEMETRY_FILE, TelemetrySample, read_telemetry
from hotloop.core.untrusted import object_lines
from hotloop.hardware.environment import cpu_model
from hotloop.hardware.telemetry import Sampler
from hotloop.judge.attribute import attribute, steady
from hotloop.judge.ranks import compare_ranks
from hotloop.judge.utilization import steady_tokens_per_s, utilize
from hotloop.monitor.follow import StepFollower, is_alive, is_complete

WINDOW = 50
"""Newest steps over which speed, phases and MFU are taken."""
CURVE = 120
"""Newest points of the small curves."""
TELEMETRY_TAIL_BYTES = 1 << 17
MONITOR_SCHEMA = "hotloop.monitor/1"

State = Literal[
    "not_started", "starting", "training", "finished", "stopped", "system",
    "examining", "trying_fixes", "comparing", "examined", "halted",
]  # fmt: skip
"""The last five are of a command that the doctor examines, or of a comparison."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What does not change while a run trains."""

    total_steps: int | None
    device: str | None = None
    flops: ModelFlops | None = None
    census: Census | None = None
    """Before the run has written its own: what its settings ask for."""
    ceilings: Ceilings | None = None
    steps_file: str = steps_name(0)
    doctor: State | None = None
    """What the doctor does with a command; `None` for a training of hotloop's own."""
    doctor_rows: tuple[tuple[str, str], ...] = ()
    """What is known of that command and of the fixes tried on it."""
    complete: bool = True
    """False while the run has not written everything these are read from: they are read again."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`None` means not known yet."""

    taken_at: float
    """Seconds since the epoch."""
    state: State
    run: str | None = None
    device: str | None = None
    steps: int | None = None
    """Steps done, those before a resume included."""
    total_steps: int | None = None
    step_s: float | None = None
    """Median wall seconds of the newest steady steps."""
    remaining_s: float | None = None
    """Steps left times the mean wall seconds of the newest steps, evaluations and checkpoints included,
    compiling not."""
    tokens_per_s: float | None = None
    loss: float | None = None
    held_out_loss: float | None = None
    num_window_steps: int = 0
    """Steps that `breakdown`, `step_s` and `utilization` are about."""
    breakdown: dict[str, float] | None = None
    utilization: Utilization | None = None
    ranks: RankComparison | None = None
    """The processes that train together; `None` for one."""
    losses: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    """Tokens per second of the newest steps."""
    telemetry: TelemetrySample | None = None
    telemetry_age_s: float | None = None
    cpu_fractions: tuple[float, ...] = ()
    num_recent: int = 0
    """Newest steps that are looked through for the three below."""
    num_spikes: int = 0
    num_skipped: int = 0
    """Updates left out."""
    num_rollbacks: int = 0
    num_damaged: int = 0
    """Lines of `steps.jsonl` and `telemetry.jsonl` that could not be read."""
    why_no_gpus: str | None = None
    doctor: tuple[tuple[str, str], ...] = ()
    """What is known of a command that the doctor examines, and of the fixes tried on it."""
    schema: str = MONITOR_SCHEMA


class RunMonitor:
    """Looks at one run directory again and again. `read_facts` is asked until it knows."""

    def __init__(self, directory: Path, read_facts: Callable[[Path], RunFacts | None]) -> None:
        self._directory = directory
        self._read_facts = read_facts
        self._facts: RunFacts | None = None
        self._steps = StepFollower(directory / steps_name(0))
        self._others: dict[int, StepFollower] = {}

    def look(self) -> Snapshot:
        if self._facts is None or not self._facts.complete:
            self._facts = self._read_facts(self._directory)
        facts = self._facts or RunFacts(total_steps=None)
        if self._steps.path.name != facts.steps_file:
            self._steps = StepFollower(self._directory / facts.steps_file)
        self._steps.poll()
        samples, damaged = read_telemetry(
            self._directory / TELEMETRY_FILE, tail_bytes=TELEMETRY_TAIL_BYTES
        )
        records = list(self._steps.records)
        by_rank = self._by_rank(records)
        window = records[-WINDOW:]
        calm = steady(window)
        to_come = [r.wall_s for r in window if "compile" not in r.tags]
        done = records[-1].step + 1 if records else 0
        total = facts.total_steps
        left = max(total - done, 0) if total is not None else None
        now = time.time()
        newest = samples[-1] if samples else None
        return Snapshot(
            taken_at=now,
            state=facts.doctor or self._state(done, total),
            run=str(self._directory),
            device=facts.device,
            steps=done,
            total_steps=total,
            step_s=statistics.median(r.wall_s for r in calm) if calm else None,
            remaining_s=left * statistics.fmean(to_come) if left is not None and to_come else None,
            tokens_per_s=steady_tokens_per_s(window),
            loss=next((r.loss for r in reversed(records) if r.loss is not None), None),
            held_out_loss=_last_evaluation(self._directory / "evals.jsonl"),
            num_window_steps=len(calm),
            breakdown=_breakdown(window),
            utilization=_utilization(window, facts, num_ranks=len(by_rank))
            if self._facts and calm
            else None,
            ranks=compare_ranks(by_rank),
            losses=tuple(r.loss for r in records if r.loss is not None)[-CURVE:],
            rates=tuple(
                r.tokens / r.wall_s for r in records if r.tokens is not None and r.wall_s > 0
            )[-CURVE:],
            telemetry=newest,
            telemetry_age_s=None if newest is None else max(now - newest.sampled_at, 0.0),
            cpu_fractions=tuple(
                s.cpu_fraction for s in samples[-CURVE:] if s.cpu_fraction is not None
            ),
            num_recent=len(records),
            num_spikes=sum("spike" in record.tags for record in records),
            num_skipped=sum("skipped" in record.tags for record in records),
            num_rollbacks=sum("rolled_back" in record.tags for record in records),
            num_damaged=self._steps.num_damaged + len(damaged),
            doctor=facts.doctor_rows,
        )

    def _by_rank(self, records: list[StepRecord]) -> dict[int, list[StepRecord]]:
        """The newest records of every process that trains now; the first one's are `records`."""
        if not records:
            return {}
        for rank, path in steps_of_ranks(self._directory).items():
            if path != self._steps.path and rank not in self._others:
                self._others[rank] = StepFollower(path)
        newest = {0: records[-WINDOW:]}
        for rank, follower in sorted(self._others.items()):
            follower.poll()
            kept = [r for r in follower.records if r.step >= newest[0][0].step]
            if kept:  # else it took part in an earlier process
                newest[rank] = kept
        return newest

    def _state(self, done: int, total: int | None) -> State:
        if total is not None and is_complete(self._directory, done, total):
            return "finished"
        if is_alive(self._directory, ("steps.jsonl", TELEMETRY_FILE)):
            return "training" if done else "starting"
        return "stopped" if done else "not_started"


def _utilization(window: list[StepRecord], facts: RunFacts, *, num_ranks: int) -> Utilization:
    census = facts.census
    if census is not None and num_ranks > 1:
        census = replace(census, num_ranks=num_ranks)
    return utilize(window, facts.flops, census, facts.ceilings)


def _breakdown(window: list[StepRecord]) -> dict[str, float] | None:
    try:
        return attribute(window).fractions
    except ValueError:  # no steady step yet, or records that make no sense
        return None


def _last_evaluation(path: Path) -> float | None:
    try:
        lines = list(object_lines(path, finite=False))
    except OSError:
        return None
    for _, found in reversed(lines):
        if isinstance(found, dict) and isinstance(loss := found.get("loss"), int | float):
            return float(loss)
    return None


class SystemMonitor:
    """Looks at this machine alone."""

    def __init__(self) -> None:
        self._sampler = Sampler(process=False)
        self._busy: deque[float] = deque(maxlen=CURVE)
        self._sampler.sample()  # rates are since the sample before

    def look(self) -> Snapshot:
        sample = self._sampler.sample()
        if sample.cpu_fraction is not None:
            self._busy.append(sample.cpu_fraction)
        return Snapshot(
            taken_at=time.time(),
            state="system",
            device=cpu_model(),
            telemetry=sample,
            telemetry_age_s=0.0,
            cpu_fractions=tuple(self._busy),
            why_no_gpus=self._sampler.why_no_gpus,
        )
