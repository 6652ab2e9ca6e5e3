"""Calls of each step, counted by kind and place over the counted steps, and what is kept of a step that has ended.

What can wait is done later, many steps at once: on the stepping thread every line of the probe is cold, and costs
ten times what it costs in a loop. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hotloop.core.census import CallUse
from hotloop.core.step import StepRecord
from hotloop.probe.attach.sites import Place, Sites

Key = tuple[str, str, Place | None, bool | None, str | None]
"""(kind, what, where, pageable, inside)"""
Call = tuple[Key, float, int]
"""(key, seconds, bytes)"""
MAX_PLACES = 4000
"""Code that is generated for every call would fill the memory."""


@dataclass(slots=True)
class Tally:
    num: int = 0
    seconds: float = 0.0
    num_bytes: int = 0

    def add(self, seconds: float, num_bytes: int = 0, *, num: int = 1) -> None:
        self.num += num
        self.seconds += seconds
        self.num_bytes += num_bytes


class CallCounts:
    """What the running step called, and, added by the writer's thread, what the counted steps called."""

    def __init__(self) -> None:
        self._step: list[Call] = []
        self._whole: dict[Key, Tally] = {}

    def add(
        self,
        kind: str,
        what: str,
        place: Place | None,
        seconds: float,
        num_bytes: int = 0,
        *,
        pageable: bool | None = None,
        inside: str | None = None,
    ) -> None:
        """One call of this step."""
        self._step.append(((kind, what, place, pageable, inside), seconds, num_bytes))

    def take(self) -> list[Call]:
        """The calls of the step that ends."""
        calls, self._step = self._step, []
        return calls

    def count(self, calls: Iterable[Call]) -> None:
        """They belong to a step that counts."""
        for key, seconds, num_bytes in calls:
            tally = self._whole.get(key)
            if tally is None:
                if len(self._whole) >= MAX_PLACES:
                    continue
                tally = self._whole[key] = Tally()
            tally.add(seconds, num_bytes)

    def clear(self) -> None:
        """Forget the steps that counted."""
        self._whole.clear()

    def uses(self, kind: str, sites: Sites, *, at_most: int = 40) -> tuple[CallUse, ...]:
        """The places where most time went."""
        merged: dict[tuple[str, str | None, bool | None, str | None], Tally] = {}
        for (own_kind, what, place, pageable, inside), tally in self._whole.items():
            if own_kind != kind:
                continue
            into = merged.setdefault((what, sites.name(place), pageable, inside), Tally())
            into.add(tally.seconds, tally.num_bytes, num=tally.num)
        uses = [
            CallUse(what, site, tally.num, tally.seconds, tally.num_bytes or None, pageable, inside)
            for (what, site, pageable, inside), tally in merged.items()
        ]
        return tuple(sorted(uses, key=lambda use: -use.seconds)[:at_most])


@dataclass(slots=True)
class Step:
    """What is seen of a step while it runs, and from its end on all that its record and the call counts are made of."""

    samples: int | None
    """`None` as long as no loader has said how many are in a batch: a step that fetched none, since one before fetched its,
    has 0."""
    losses: list[float] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    backwards: int = 0
    passed: int = 0
    """Calls of modules inside others: passed through, at a cost."""
    step: int = 0
    wall_s: float = 0.0
    host: dict[str, float] = field(default_factory=dict)
    device: dict[str, float] | None = None
    on_device: bool = False
    calls: list[Call] = field(default_factory=list)
    reads: int = 0
    own_s: float = 0.0
    """The probe's own work, also in the steps left out before it."""
    own_by_phase: dict[str, float] = field(default_factory=dict)
    """Of it, what is in this step's time until `take_off_own`."""
    counted: bool = False
    left_out: int = 0
    """Steps before it that were not looked at."""
    left_out_s: float = 0.0

    def take_off_own(self) -> None:
        """Leave out the probe's own work, as far as the step had to wait for it: a device that was at work meanwhile did not."""
        own = {
            phase: min(seconds, self.host[phase])
            for phase, seconds in self.own_by_phase.items()
            if phase in self.host
        }
        waited = whole = sum(own.values())
        if (device := self.device) is not None:
            waited = min(whole, device["idle"] + device["unknown"])
            device["unknown"] -= min(max(waited - device["idle"], 0.0), device["unknown"])
            device["idle"] -= min(waited, device["idle"])
        for phase, seconds in own.items():
            self.host[phase] -= min(seconds * waited / (whole or 1.0), seconds)
        # Where the thread had to wait between the reads of the two clocks, the step before has that time.
        self.wall_s = max(self.wall_s - waited, sum(self.host.values()))

    def record(self, extra_reads: int) -> StepRecord:
        """extra_reads: what the rest of the probe cost, in clock reads."""
        syncs = sum(key[0] == "syncs" for key, _, _ in self.calls) if self.on_device else None
        return StepRecord(
            step=self.step,
            wall_s=self.wall_s,
            host=self.host,
            device=self.device,
            samples=self.samples,
            loss=sum(self.losses) if self.losses else None,
            syncs=syncs,
            clock_reads=self.reads + extra_reads,
            tags=tuple(self.tags),
            left_out=self.left_out or None,
            left_out_s=self.left_out_s or None,
        )
