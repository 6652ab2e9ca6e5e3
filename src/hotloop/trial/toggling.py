"""A technique that goes on and off while one process trains, in blocks of steps.

Two processes of one program differ, by where their memory lies and by what the machine does meanwhile, on
a shared machine often by more than a technique brings. What can be turned on and off between two steps is
compared within each process, where both halves have that in common; the process stays the unit.

Blocks come in fours, on-off-off-on or off-on-on-off as drawn, so that drift cancels. The first steps of
each are left out, but where all steps have to tell. Afterwards the process is two runs: its steps without the techniques,
and those with them.
Standard library only: this runs in other interpreters.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hotloop.core.child import TOGGLES_FILE
from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement, Plan
from hotloop.optimizations.live_report import Toggle

SETTLING = 2
"""Steps at the start of a block that say nothing: memory and caches are still those of the block before."""
IN_A_GROUP = 4
ALTERNATE = 2 * IN_A_GROUP
"""The number of blocks is a multiple of it: then each half has as many, and so have the halves of the off ones."""
HARMLESS_THREADS = ("TMonitor", "QueueFeederThread", "hotloop-saves")
"""Python threads that make no batches, by class or name: tqdm's, and those that write into a pipe to another process or a file."""


@dataclass(frozen=True, slots=True)
class ToggleSchedule:
    """Which techniques go on and off, and at which steps: a pure function of what was drawn."""

    names: tuple[str, ...]
    after: int
    """Steps before the first block; in these it is on, as it was made."""
    block_steps: int
    seed: str
    settling: int = SETTLING
    """Steps at the start of a block that are left out."""

    def is_on(self, step: int) -> bool:
        """Whether the techniques are on in this step, counted from 0."""
        block = self._block(step)
        return block is None or self._pattern(block)[block % IN_A_GROUP]

    def begins_block(self, step: int) -> bool:
        """Whether the step is the first of a block."""
        return step >= self.after and (step - self.after) % self.block_steps == 0

    def counts(self, step: int) -> bool:
        """Whether the step says anything of the block that it lies in."""
        return (
            self._block(step) is not None
            and (step - self.after) % self.block_steps >= self.settling
        )

    def is_first_off(self, step: int) -> bool:
        """Whether the step is in the first half of the steps without it: the two halves show the noise.

        Each group has two blocks without it; which of them is whose alternates, so that drift cancels.
        """
        block = self._block(step)
        if block is None or self.is_on(step):
            return False
        group, place = divmod(block, IN_A_GROUP)
        earlier = not any(not on for on in self._pattern(block)[:place])
        return earlier == (group % 2 == 0)

    def _block(self, step: int) -> int | None:
        return (step - self.after) // self.block_steps if step >= self.after else None

    def _pattern(self, block: int) -> tuple[bool, bool, bool, bool]:
        outer = random.Random(f"{self.seed} blocks {block // IN_A_GROUP}").random() < 0.5
        return outer, not outer, not outer, outer

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ToggleSchedule:
        values = json.loads(text)
        return cls(**{**values, "names": tuple(values["names"])})


class Toggler:
    """Toggles techniques in this process at the steps that a `ToggleSchedule` names.

    Without a schedule it only tells which can be toggled. Rank 0 writes `turns.json` after the second step (that, and
    which child processes and threads may make batches ahead) and once more after the first time off and on.
    """

    def __init__(self, directory: Path, schedule: ToggleSchedule | None) -> None:
        self._directory = directory
        self._schedule = schedule
        self._toggles: dict[str, list[Toggle]] = defaultdict(list)
        self._wrong: dict[str, Callable[[str], None]] = {}
        self._fixed: set[str] = set()
        self._is_on = True
        self._changes = 0
        self.is_over = False
        """Nothing will be toggled any more."""

    def offer(self, name: str, toggle: Toggle | None, wrong: Callable[[str], None]) -> None:
        """Technique `name` took effect; `toggle(on)` turns that off and on again. `None`: it cannot be.

        It is called before the step clock reads the end of a step: what it takes is time of the block that ends.

        wrong: told why where toggling it fails.
        """
        self._wrong[name] = wrong
        if toggle is None:
            self._fixed.add(name)
        elif toggle not in self._toggles[name]:
            self._toggles[name].append(toggle)

    def step_ended(self, number: int) -> None:
        """So many have: the next one is step `number`, counted from 0."""
        if number == 2:
            self._write()
            self.is_over = self._schedule is None
        # Drawing takes as long as a thousandth of a short step: at the start of a block only.
        if self._schedule is None or not self._schedule.begins_block(number):
            return
        if (on := self._schedule.is_on(number)) == self._is_on:
            return
        self._is_on = on
        for name in self._schedule.names:
            try:
                for toggle in self._toggles[name]:
                    toggle(on)
            except Exception as error:  # noqa: BLE001 - the script must go on whatever happens here
                self._wrong[name](
                    f"it could not be turned on and off: {type(error).__name__}: {error}"
                )
                self._schedule = None
                return
        self._changes += 1
        if self._changes == 2:
            self._write()

    def _write(self) -> None:
        if os.environ.get("RANK", "0") != "0":
            return
        names = sorted(name for name in self._toggles if name not in self._fixed)
        toggled = self._schedule.names if self._schedule and self._changes >= 2 else ()
        text = json.dumps(
            {
                "can": names,
                "turned": [name for name in toggled if name in names],
                "children": len(multiprocessing.active_children()),
                "threads": _threads(),
            }
        )
        temporary = self._directory / f"{TOGGLES_FILE}.tmp"
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self._directory / TOGGLES_FILE)
        except OSError:
            pass  # without it nothing was toggled, as far as anyone knows


def _threads() -> list[str]:
    """Names of Python's, beside the main one."""
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    return sorted(
        each.name for each in others if not {each.name, type(each).__name__} & set(HARMLESS_THREADS)
    )


LEAST_BLOCK = 5 * SETTLING
SHORT_BLOCK = SETTLING + 3
"""Of slow steps, where longer ones would not fit."""
MOST_BLOCKS = 8 * ALTERNATE
"""More would only make them shorter."""


def block_steps_for(steps: int, period: int = 0) -> int | None:
    """How long a block is where `steps` can be counted; `None` where they are too few for blocks.

    period: steps from one use of a technique to the next, where not every step has it: blocks are multiples of that.
    """
    least = LEAST_BLOCK if steps >= LEAST_BLOCK * ALTERNATE else SHORT_BLOCK
    if period:
        least = period * math.ceil(SHORT_BLOCK / period)
    blocks = min(steps // least, MOST_BLOCKS) // ALTERNATE * ALTERNATE
    if not blocks:
        return None
    return steps // blocks // period * period if period else steps // blocks


def counted_in_blocks(steps: int, block_steps: int) -> int:
    """The most of `steps` that are whole blocks, as many as both halves need."""
    return steps // (block_steps * ALTERNATE) * block_steps * ALTERNATE


def toggle_schedule(
    names: tuple[str, ...], plan: Plan, block_steps: int | None, seed: str, settling: int = SETTLING
) -> ToggleSchedule:
    """Raises `UsageError` for blocks that do not make halves of the counted steps."""
    if not block_steps or block_steps <= settling or plan.steps % (block_steps * ALTERNATE):
        do = f"count a multiple of {ALTERNATE} blocks of more than {settling} steps"
        raise UsageError(f"{plan.steps} steps cannot be halved in blocks of {block_steps}", do=do)
    return ToggleSchedule(names, plan.warmup_steps, block_steps, seed, settling)


def halves(
    measured: Measurement, schedule: ToggleSchedule, baseline: str
) -> tuple[Measurement, Measurement]:
    """The counted steps without, as a run of arm `baseline`, and those with."""
    return (
        replace(_counting(measured, lambda step: _off(schedule, step)), arm=baseline),
        _counting(measured, lambda step: schedule.counts(step) and schedule.is_on(step)),
    )


def off_halves(measured: Measurement, schedule: ToggleSchedule) -> tuple[Measurement, Measurement]:
    """The counted steps without, dealt out to two: what these differ by is noise."""
    return (
        _counting(measured, lambda step: _off(schedule, step) and schedule.is_first_off(step)),
        _counting(measured, lambda step: _off(schedule, step) and not schedule.is_first_off(step)),
    )


def _off(schedule: ToggleSchedule, step: int) -> bool:
    return schedule.counts(step) and not schedule.is_on(step)


def _counting(measured: Measurement, counts: Callable[[int], bool]) -> Measurement:
    """With the other steps marked as warm-up is: kept, and in no statistic."""
    records = tuple(
        record
        if counts(record.step) or "warmup" in record.tags
        else replace(record, tags=("warmup", *record.tags))
        for record in measured.records
    )
    return replace(measured, records=records)
