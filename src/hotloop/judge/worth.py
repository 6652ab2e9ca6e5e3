"""Decides whether trying a change pays for itself on what is left of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hotloop.core.judgement import Finding, Worth
from hotloop.judge.attribute import under_way
from hotloop.judge.data_wait import OTHER_PROGRAMS
from hotloop.judge.judged_run import JudgedRun
from hotloop.judge.looks import LOOKS
from hotloop.judge.ranks import hides_waiting
from hotloop.judge.thresholds import HEALTHY_BELOW, MODERATE

PAIRS = LOOKS[1]
"""Pairs of processes that a comparison usually takes: few enough to wait for, enough to be sure."""
COUNTED_S = 6.0
"""Seconds of counted steps in one process of a trial, about."""
STEPS = (20, 1000)
"""The least and the most of them."""
WARMUP_S = 3.0
"""Slow steps are warm after this, and after three of them."""


def warmup_steps(step_s: float) -> int:
    return max(math.ceil(WARMUP_S / max(step_s, 1e-6)), 3)


def counted_steps(step_s: float) -> int:
    return min(max(int(COUNTED_S / max(step_s, 1e-6)), STEPS[0]), STEPS[1])


def worth(run: JudgedRun, findings: Sequence[Finding]) -> Worth:
    """Seconds that the best finding could save on the remaining steps against those of finding out.

        saved at most = remaining steps x seconds of a step x (1 - 1 / gain_at_most)
        cost          = pairs x 2 x (start + (warm-up + counted) x seconds of a step)

    Bounds that are loose promise nothing and are left out. What only a person can change has no cost here.
    """
    kept = under_way(run.measurement.records)
    step_s = math.fsum(record.wall_s for record in kept) / len(kept)
    sure = [f for f in findings if not f.gain_is_loose and f.gain_at_most >= HEALTHY_BELOW]
    best = max(sure, key=lambda finding: finding.gain_at_most, default=None)
    if best is None:
        return _without_gain(run, findings)
    gain = best.gain_at_most
    others = best.evidence.get(OTHER_PROGRAMS)
    if isinstance(others, float):
        busy = f"other programs kept {_percent(others)} of the machine's CPUs busy"
        return Worth("not known", f"{busy}; run it again when it is quiet", gain)
    per_step = step_s * (1 - 1 / gain)
    left = remaining_steps(run)
    remaining = left.steps
    saved = None if remaining is None else remaining * per_step
    gained = left.why if saved is None else f"{left.why}: at most {_time(saved)} saved"
    if best.optimization is None:
        by_hand = f"{best.code} is changed in the script itself, without a test that takes time"
        return Worth("worth trying", f"{by_hand}; {gained}", gain, remaining, saved)
    num_steps = warmup_steps(step_s) + counted_steps(step_s)
    cost = PAIRS * 2 * ((run.census.start_s or 0.0) + num_steps * step_s)
    needed = math.ceil(cost / per_step)
    numbers = (gain, remaining, saved, cost, needed)
    testing = f"testing a fix takes about {_time(cost)}"
    pays = f"which pays off within {needed:,} steps"
    if saved is None:
        return Worth("not known", f"{gained}; {testing}, {pays}", *numbers)
    if saved > cost:
        return Worth("worth trying", f"{gained}; {testing}", *numbers)
    if left.more_may_follow:
        unknown = f"{left.why}, how many follow is not known; {testing}, {pays}"
        return Worth("not known", unknown, *numbers)
    return Worth("leave it running", f"{gained}; {testing}, {pays}", *numbers)


@dataclass(frozen=True, slots=True)
class Remaining:
    """Steps that are still to come."""

    steps: int | None
    why: str
    """How that is known."""
    more_may_follow: bool = False


def remaining_steps(run: JudgedRun) -> Remaining:
    """How many steps are still to come, and how that is known.

    A run that ended by itself has none left: the next one like it counts. Of an epoch under way the
    rest is a lower limit, since no loader knows how many epochs there will be.
    """
    records, planned = run.measurement.records, run.census.planned_steps
    made = run.num_made
    if run.measurement.returncode == 0:
        return Remaining(made, f"a run like this one makes {made:,} steps")
    if planned is not None:
        left = max(planned - made, 0)
        # At most: it may have gone on from a checkpoint, and have made some before.
        return Remaining(left, f"at most {left:,} of {planned:,} steps are left")
    if epoch := _steps_of_epoch(run):
        since = next((made - r.step for r in reversed(records) if "epoch" in r.tags), made)
        left = -since % epoch
        if not left:
            return Remaining(None, "an epoch has just ended, how many follow is not known")
        steps = "1 step of this epoch is" if left == 1 else f"{left:,} steps of this epoch are"
        return Remaining(left, f"at least {steps} left", more_may_follow=True)
    return Remaining(None, "how many steps are left is not known")


def _steps_of_epoch(run: JudgedRun) -> int | None:
    """Steps per epoch of the loader that trains; no more than any had, since a loop may leave each early."""
    loader = run.loader
    if loader is None or not loader.per_epoch or not run.counted:
        return None
    batches = run.census.training_batches()
    if not batches:
        return None
    per_step = batches / len(run.counted)
    # Whole batches: what a command counted that was cut off is some seconds older than its steps.
    whole = math.floor(
        loader.per_epoch / (max(round(per_step), 1) if per_step > 2 / 3 else per_step)
    )
    begins = [record.step for record in run.measurement.records if "epoch" in record.tags]
    return min(whole, max((b - a for a, b in pairwise(begins)), default=whole))


def _not_seen(run: JudgedRun) -> list[str]:
    """What could hold a gain and was not looked at."""
    seen = run.census.seen
    missing = []
    if not run.on_cpu and not any(record.device for record in run.measurement.records):
        missing.append("what the device does while the host waits")
    if "lines" not in seen:
        missing.append("the script's own lines")
    if "operators" not in seen:
        missing.append("the operations of a step")
    if hides_waiting(run):
        missing.append("waiting for the other processes")
    return missing


def _without_gain(run: JudgedRun, findings: Sequence[Finding]) -> Worth:
    best = max((f.gain_at_most for f in findings if not f.gain_is_loose), default=1.0)
    small = _percent(HEALTHY_BELOW - 1)
    rest = f"nothing that was found could gain {small}"
    loose = [f.code for f in findings if f.gain_is_loose and f.gain_at_most >= HEALTHY_BELOW]
    if loose := list(dict.fromkeys(loose)):
        brings = "bring" if loose[1:] else "brings"
        rest = (
            f"what {_listed(loose)} {brings} shows only when tried; nothing else could gain {small}"
        )
    if missing := _not_seen(run):
        return Worth("not known", f"{_listed(missing)}: not observed; {rest}", best)
    if run.is_foreign and run.is_short:
        return Worth("not known", f"too few steps were counted; {rest}", best)
    data_wait = run.exposed_phase("data_wait")
    if data_wait >= MODERATE:
        waits = f"data is waited for {_percent(data_wait)} of the time"
        return Worth("not known", f"{waits}, and what was found explains little of it", best)
    return Worth("not known" if loose else "nothing to gain here", rest, best)


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    if 0 < seconds < 10:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
