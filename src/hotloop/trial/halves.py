"""One process in which techniques went on and off, as two runs: its steps without them and those with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement, Plan
from hotloop.trial.toggling import ALTERNATE, SETTLING, ToggleSchedule

LEAST_BLOCK = 5 * SETTLING
MOST_BLOCKS = 8 * ALTERNATE
"""More would only make them shorter."""


def block_steps_for(steps: int) -> int | None:
    """How long a block is where `steps` can be counted; `None` where they are too few for blocks."""
    blocks = min(steps // LEAST_BLOCK, MOST_BLOCKS) // ALTERNATE * ALTERNATE
    return steps // blocks if blocks else None


def counted_in_blocks(steps: int, block_steps: int) -> int:
    """The most of `steps` that are whole blocks, as many as both halves need."""
    return steps // (block_steps * ALTERNATE) * block_steps * ALTERNATE


def toggle_schedule(
    names: tuple[str, ...], plan: Plan, block_steps: int | None, seed: str
) -> ToggleSchedule:
    """Raises `UsageError` for blocks that do not make halves of the counted steps."""
    if not block_steps or block_steps <= SETTLING or plan.steps % (block_steps * ALTERNATE):
        raise UsageError(
            f"{plan.steps} steps cannot be halved in blocks of {block_steps}",
            do=f"count a multiple of {ALTERNATE} blocks of more than {SETTLING} steps",
        )
    return ToggleSchedule(names, plan.warmup_steps, block_steps, seed)


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

    def first(step: int) -> bool:
        return _off(schedule, step) and schedule.is_first_off(step)

    def second(step: int) -> bool:
        return _off(schedule, step) and not schedule.is_first_off(step)

    return _counting(measured, first), _counting(measured, second)


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
