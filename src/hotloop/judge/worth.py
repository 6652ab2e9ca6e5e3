"""Whether finding out what a change brings pays for itself on what is left of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotloop.core.census import Census, LoaderUse
from hotloop.core.judgement import Finding, Worth
from hotloop.core.measurement import Measurement
from hotloop.judge.attribute import under_way
from hotloop.judge.thresholds import HEALTHY_BELOW
from hotloop.judge.together import hides_waiting
from hotloop.judge.waiting import training_loader

PAIRS = 6
"""Pairs of processes that a comparison usually takes: few enough to wait for, enough to be sure."""
TRIAL_STEPS, TRIAL_WARMUP = 60, 10


def worth(
    measurement: Measurement,
    findings: Sequence[Finding],
    *,
    pairs: int = PAIRS,
    steps: int = TRIAL_STEPS,
    warmup: int = TRIAL_WARMUP,
    counted_steps: int | None = None,
) -> Worth | None:
    """Seconds that the best finding could save on the remaining steps against those of finding out.

        saved at most = remaining steps x seconds of a step x (1 - 1 / gain_at_most)
        cost          = pairs x 2 x (start + (warmup + steps) x seconds of a step)

    Bounds that are loose promise nothing and are left out. `None` where no step was measured.
    counted_steps: those that the census counted in, where they are not all that are under way.
    """
    kept = under_way(measurement.records)
    if not kept:
        return None
    step_s = math.fsum(record.wall_s for record in kept) / len(kept)
    if not step_s > 0:
        return None
    gains = [f.gain_at_most for f in findings if not f.gain_is_loose and f.gain_at_most > 1]
    best = max(gains, default=1.0)
    if best < HEALTHY_BELOW:
        return _without_gain(measurement, findings, best)
    census = measurement.census
    start_s = (census.start_s if census is not None else None) or 0.0
    cost = pairs * 2 * (start_s + (warmup + steps) * step_s)
    per_step = step_s * (1 - 1 / best)
    needed = math.ceil(cost / per_step)
    remaining, what = remaining_steps(measurement, counted_steps=counted_steps)
    saved = None if remaining is None else remaining * per_step
    numbers = (best, remaining, saved, cost, needed)
    trial = f"{pairs} pairs of {warmup + steps} steps take {_time(cost)}"
    if remaining is None or saved is None:
        reason = (
            f"{what}. {trial}, which pays from {needed} remaining steps on, if all of the "
            f"{best:.2f}x at most were reached"
        )
        return Worth("not known", reason, *numbers)
    gained = f"{what}: at most {_time(saved)} saved. {trial}"
    if saved > cost:
        return Worth("worth trying", gained, *numbers)
    if what.startswith("at least"):
        why = f"{what}, how many follow is not known. {trial}, which pays from {needed} steps on"
        return Worth("not known", why, *numbers)
    return Worth("leave it running", gained, *numbers)


def remaining_steps(
    measurement: Measurement, *, counted_steps: int | None = None
) -> tuple[int | None, str]:
    """How many steps are still to come, and how that is known.

    A run that ended by itself has none left: the next one like it counts. Of an epoch under way the
    rest is a lower limit, since no loader knows how many epochs there will be.
    """
    records, census = measurement.records, measurement.census
    made = records[-1].step + 1 if records else 0
    if measurement.returncode == 0:
        return made, f"a run like this one makes {made} steps"
    if census is not None and census.planned_steps is not None:
        left = max(census.planned_steps - made, 0)
        # At most: it may have gone on from a checkpoint, and have made some before.
        return left, f"at most {left} of {census.planned_steps} steps are left"
    counted = len(under_way(records)) if counted_steps is None else counted_steps
    epoch = _steps_of_epoch(census, counted)
    if epoch:
        since = next((i + 1 for i, r in enumerate(reversed(records)) if "epoch" in r.tags), made)
        left = -since % epoch
        return left, f"at least {left} steps of this epoch are left"
    return None, "How many steps are left is not known: the script does not say how many it plans"


def _steps_of_epoch(census: Census | None, counted: int) -> int | None:
    """Of the loader that trains; each epoch may have made an iterator of its own from the same place."""
    loader = training_loader(census)
    if census is None or loader is None or not loader.per_epoch or not counted:
        return None

    def same(other: LoaderUse) -> bool:
        return other.trains and (other.site, other.per_epoch) == (loader.site, loader.per_epoch)

    batches = sum(other.num_batches for other in census.loaders if same(other))
    if not batches:
        return None
    per_step = batches / counted
    # Whole batches: what a command counted that was cut off is some seconds older than its steps.
    return math.floor(
        loader.per_epoch / (max(round(per_step), 1) if per_step > 2 / 3 else per_step)
    )


def _not_seen(measurement: Measurement) -> list[str]:
    """What could hold a gain and was not looked at."""
    census = measurement.census
    seen = census.seen if census is not None else ()
    missing = []
    if "lines" not in seen:
        missing.append("the script's own lines")
    if "operators" not in seen:
        missing.append("the operations of a step")
    if hides_waiting(measurement):
        missing.append("waiting for the other processes")
    return missing


def _without_gain(measurement: Measurement, findings: Sequence[Finding], best: float) -> Worth:
    if missing := _not_seen(measurement):
        *first, last = missing
        names = f"{', '.join(first)} and {last}" if first else last
        small = f"nothing that was found could gain {HEALTHY_BELOW - 1:.0%}"
        return Worth("not known", f"{names}: not observed; {small}", best)
    loose = [f for f in findings if f.gain_is_loose and f.gain_at_most >= HEALTHY_BELOW]
    if loose:
        return Worth(
            "not known",
            f"what {loose[0].code} brings shows only when tried; nothing else could gain "
            f"{HEALTHY_BELOW - 1:.0%}",
            best,
        )
    return Worth(
        "nothing to gain here",
        f"nothing that was found could gain {HEALTHY_BELOW - 1:.0%}",
        best,
    )


def _time(seconds: float) -> str:
    if 0 < seconds < 10:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
