"""One measured run as the judge looks at it: shares of its time, the part that is exposed, and what was seen in it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from hotloop.core.census import CallUse, Census, CollectionUse, LineUse, LoaderUse
from hotloop.core.judgement import Breakdown
from hotloop.core.measurement import Measurement
from hotloop.core.step import WOULD_DO, StepRecord
from hotloop.judge.attribute import AFTER_PROFILER, STARTING_UP, attribute, under_way
from hotloop.judge.operations import Operations
from hotloop.judge.thresholds import ENOUGH_S, ENOUGH_STEPS, MOST
from hotloop.judge.warmup import tag_warmup


def runs_on_cpu(measurement: Measurement) -> bool:
    """Whether the model ran on the CPU, as seen; without a census, as its records look."""
    census = measurement.census
    if census is not None and census.device is not None:
        return census.device.startswith("cpu")
    return measurement.environment.device == measurement.environment.cpu_model


def frees_memory(measurement: Measurement) -> bool:
    """Whether steps after torch's profiler may be faster by the memory that it left free."""
    kept = measurement.census is not None and measurement.census.profile_kept
    return not kept and runs_on_cpu(measurement)


def gain_without(share: float) -> float:
    """Ratio that a step gains when this share of it goes: `1 / (1 - share)`."""
    return 1 / (1 - min(max(share, 0.0), MOST))


def costliest(calls: Sequence[CallUse]) -> CallUse | None:
    return max(calls, key=lambda call: (call.seconds, call.num), default=None)


_INSTALLED = re.compile(r"[/\\\\](?:site-packages|dist-packages|lib[/\\\\]python3\.\d+)[/\\\\]")


def is_installed(site: str) -> bool:
    """Whether a place is in installed code, which its user does not change."""
    return _INSTALLED.search(site) is not None


FEWEST_FULL = 3
"""Full collections below which one more or less would decide what they cost."""


def few_full(seen: CollectionUse | None) -> bool:
    """Whether there were full collections, and too few to say what they cost."""
    return seen is not None and 0 < seen.num_full < FEWEST_FULL


@dataclass(frozen=True, slots=True)
class Found:
    """A cause that a file of `findings` found: a `Finding` without that file's code and title."""

    share: float
    """The part of a step that goes with the cause, at most; of it follows the gain."""
    evidence: dict[str, float | int | str | None]
    site: str | None = None
    advice: str = ""
    optimization: str | None = None
    gain_is_loose: bool = False
    gain_at_most: float | None = None
    """Where it is another one than that of the share."""
    title: str | None = None
    """Where it is another one than the file's."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """What comes every N steps."""

    share: float
    num: int
    """Steps with it."""
    every: float
    """Steps from one to the next."""


@dataclass(frozen=True)
class JudgedRun:
    """Shares are of wall time under way."""

    measurement: Measurement
    """Its start is tagged `warmup`."""
    counted: tuple[StepRecord, ...]
    """Steps that the census counted in: also what only their course showed to be start."""

    @cached_property
    def breakdown(self) -> Breakdown:
        """Raises `ValueError` for damaged records, and where no step under way carries phases."""
        return attribute(
            self.measurement.records, census=self.measurement.census, counted=self.counted
        )

    @cached_property
    def census(self) -> Census:
        """An empty one where none was taken."""
        return self.measurement.census or Census()

    @cached_property
    def on_cpu(self) -> bool:
        return runs_on_cpu(self.measurement)

    @property
    def has_phases(self) -> bool:
        """Whether any step under way carries phases: without them there is no breakdown."""
        return any(record.host for record in under_way(self.measurement.records))

    @property
    def is_foreign(self) -> bool:
        """Whether this is somebody else's script: hotloop's own trainer says how it loads."""
        return self.measurement.census is not None and not self.census.loader

    @property
    def is_short(self) -> bool:
        """Whether too little was counted to promise a gain."""
        seen = self.breakdown
        return seen.counted_steps < ENOUGH_STEPS or seen.counted_wall_s < ENOUGH_S

    @property
    def num_made(self) -> int:
        """Steps that ended, those before the first record included, and those at which nobody looked."""
        records = self.measurement.records
        return max(records[-1].step + 1 if records else 0, self.census.steps_made or 0)

    @property
    def num_left_out(self) -> int:
        """Steps at which nobody looked, those after the last record included."""
        records = self.measurement.records
        after = self.num_made - records[-1].step - 1 if records else 0
        return sum(record.left_out or 0 for record in records) + after

    @property
    def enough_steps(self) -> int | None:
        """Steps in all, about and to the next ten, with which it would not be short, at the pace of those that were counted; `None` where it
        is not, or where steps that come later do not count."""
        records, seen = self.measurement.records, self.breakdown
        if not self.is_short or any(AFTER_PROFILER in record.tags for record in records):
            return None
        step_s = seen.counted_wall_s / seen.counted_steps
        more = max(ENOUGH_STEPS - seen.counted_steps, (ENOUGH_S - seen.counted_wall_s) / step_s)
        more *= 1 + self.num_left_out / seen.counted_steps
        return max(WOULD_DO, 10 * math.ceil((len(records) + self.num_left_out + more) / 10))

    @property
    def loader(self) -> LoaderUse | None:
        """The loader that the training waited for longest."""
        return self.census.slowest_loader()

    @property
    def cpus(self) -> float | None:
        """CPUs for one of the processes: those on one machine share them. `None` where it is not known how
        many of several processes that is."""
        local = self.census.num_local_ranks
        if (self.census.num_ranks or 1) > 1 and not local:
            return None
        return (self.census.cpus or self.measurement.environment.cpu_quota) / (local or 1)

    @cached_property
    def operations(self) -> Operations | None:
        """`None` where they were not looked at."""
        census = self.census
        if not census.operators or not census.profiled_step_s:
            return None
        return Operations(census.operators, census.profiled_step_s, self.on_cpu)

    def host(self, *phases: str) -> float:
        """The host's share in these phases."""
        return sum(self.breakdown.fractions.get(phase, 0.0) for phase in phases)

    def device(self, phase: str) -> float:
        """Share of device time; 0 where the device has no clock."""
        return (self.breakdown.device or {}).get(phase, 0.0)

    def exposed(self, share: float) -> float:
        """The part of a host wait that cost time: at most the share in which the device idled.

        On a CPU all of it: the waiting thread computes nothing. 0 on an accelerator without clocks,
        where a wait of the host can not be told from a busy device.
        """
        return min(share, MOST) if self.on_cpu else min(share, self.device("idle"), MOST)

    def exposed_phase(self, phase: str) -> float:
        return self.exposed(self.host(phase))

    def share_of_wall(self, seconds: float) -> float:
        """Seconds of the census over the wall time of the steps that they were counted in."""
        wall = self.breakdown.counted_wall_s
        return seconds / wall if wall > 0 else 0.0

    def lines(self, phase: str) -> tuple[LineUse, ...]:
        """Lines that the host was on in a phase, most often first."""
        lines = (line for line in self.census.lines if line.phase == phase)
        return tuple(sorted(lines, key=lambda line: -line.fraction))

    def first_line(self, phase: str) -> str | None:
        """The place where the host was most seen in a phase."""
        return next((line.site for line in self.lines(phase)), None)

    def site_of(self, calls: Sequence[CallUse], phase: str) -> str | None:
        """The place of the costliest of `calls`; where none has one, the line where the host was most seen in `phase`."""
        call = costliest([each for each in calls if each.site])
        return call.site if call is not None else self.first_line(phase)

    def recurring(self, phase: str) -> Recurring | None:
        """The share of something that does not come in every step.

        From the step after its first time to its last: whole intervals, so that where the measured steps
        began or ended does not matter. A run that ended by itself counts whole. `None` for one time alone:
        how often it comes is not known then.
        """
        steps = under_way(self.measurement.records, after_profiler=True)
        most = sorted((record.host.get(phase, 0.0) for record in steps), reverse=True)
        # The least of those that hold most of it, without the longest: one that a disk held up is no measure of the others.
        most = most[1:] if sum(most[1:]) > 0.01 * sum(most) else most
        least = next(
            (x for x, so_far in zip(most, accumulate(most)) if so_far >= 0.9 * sum(most)), 0.0
        )
        if least <= 0:
            return None
        times = [i for i, r in enumerate(steps) if r.host.get(phase, 0.0) >= least / 10]
        every = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else float(len(steps))
        if self.measurement.returncode != 0:
            if len(times) < 2:
                return None
            steps = steps[times[0] + 1 : times[-1] + 1]
        wall = math.fsum(record.wall_s for record in steps)
        spent = math.fsum(record.host.get(phase, 0.0) for record in steps)
        return Recurring(spent / wall if wall > 0 else 0.0, len(times), every)

    def collection_share(self) -> float:
        """The share of wall time in all collections; `full_share` is that in full ones alone."""
        seen = self.census.collections
        if seen is None:
            return 0.0
        return self.share_of_wall(max(seen.seconds - seen.full_s, 0.0)) + self.full_share()

    def full_share(self) -> float:
        """The share of wall time in full collections.

        The census counted in more steps than are under way where a start was found only by its course: of
        full collections, which mark their steps, those of such a start are left out.
        """
        seen = self.census.collections
        if seen is None:
            return 0.0
        kept = under_way(self.measurement.records, after_profiler=True)
        others = STARTING_UP - {"warmup"}
        start = [
            record
            for record in self.measurement.records
            if "warmup" in record.tags and not others & set(record.tags)
        ]
        start = start[max(len(start) - max(len(self.counted) - len(kept), 0), 0) :]
        under_way_s = self.breakdown.counted_wall_s - sum(record.wall_s for record in start)
        in_start, marked = (sum("gc" in r.tags for r in steps) for steps in (start, kept))
        if not in_start or under_way_s <= 0:
            return self.share_of_wall(seen.full_s)
        return seen.full_s * marked / (marked + in_start) / under_way_s


def judged_run(measurement: Measurement) -> JudgedRun:
    """The first steps of somebody else's script are judged by how they went: see `warmup`."""
    run = JudgedRun(measurement, under_way(measurement.records))
    if not run.is_foreign:
        return run
    records = tag_warmup(measurement.records, frees_memory=frees_memory(measurement))
    return replace(run, measurement=replace(measurement, records=records))
