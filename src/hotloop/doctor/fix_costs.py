"""What a fix costs: seconds before the first fast step; of a kept one after how many steps it has paid for them, and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from hotloop.core.census import Census
from hotloop.core.ledger import TriedFix
from hotloop.core.measurement import Measurement
from hotloop.doctor.compared_arms import compared_arms
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.judge.outcome import MIN_MARGIN
from hotloop.trial.session import Pair, SessionResult

MOST = 0.9
"""Share of what this machine or container allows, from which on a fix is not kept."""
CLEAR_BYTES = 50_000_000
"""Less is what processes of the same command differ by."""


def with_costs(runner: TrialRunner, fix: Fix, entry: TriedFix, result: SessionResult) -> TriedFix:
    """The entry of a timed fix with what it costs; a kept one is no longer where that is more than it brings, or than there is."""
    pairs = () if result.toggled else result.pairs
    baseline, arm = compared_arms(runner, runner.with_fixes(fix.name, [fix]), [fix])
    entry = with_start_cost(
        with_memory(entry, pairs),
        pairs=pairs,
        losses=runner.first_losses(baseline, arm, [fix]),
        total_steps=runner.total_steps,
    )
    return with_epochs(entry, over_epochs(runner.census, [fix], result))


def with_epochs(entry: TriedFix, over: float | None) -> TriedFix:
    """A kept one is not where its workers, which each epoch starts again, bring less than that takes: the start is never paid.

    over: the ratio over whole epochs; `None`: they start once.
    """
    if over is None or entry.status != "kept":
        return entry
    entry = replace(entry, pays_after_steps=None)
    if over >= 1 + MIN_MARGIN:
        return entry
    why = f"its steps are faster, but each epoch starts its workers again: {over:.2f}x over whole epochs"
    return replace(entry, status="rejected", why=why)


def with_start_cost(
    entry: TriedFix,
    *,
    pairs: Sequence[Pair],
    losses: tuple[Sequence[Measurement], Measurement] | None,
    total_steps: int | None,
) -> TriedFix:
    """The entry with its seconds at start; a kept one is `does_not_pay` where the command ends before they pay.

    pairs: timed with and without it, none where it went on and off within processes. losses: baseline runs and one with it, where
    they were made. The first of all to compile is that one, or the first that was timed.
    total_steps: of the command, where that is known.
    """
    ratio = entry.verdict.ratio if entry.added is None and entry.verdict else None
    ratio = entry.added.ratio if entry.added is not None else ratio
    first = [compiling_s([baseline], candidate) for baseline, candidate in pairs[:1]]
    if losses is not None:
        first.append(compiling_s(*losses))
    start_s = max([_slower_start_s(pairs), *first])
    entry = replace(entry, start_s=start_s)
    baselines = [baseline for baseline, _ in pairs] or (losses[0] if losses is not None else [])
    if entry.status != "kept" or ratio is None or ratio <= 1 or not baselines:
        return entry
    step_s = fmean(map(_pace, baselines))
    pays_after = math.ceil(start_s / (step_s * (1 - 1 / ratio)))
    entry = replace(entry, pays_after_steps=pays_after)
    if total_steps is None or pays_after <= total_steps:
        return entry
    why = (
        f"its steps are faster, but starting takes {start_s:.3g} s more: that pays after {pays_after:,} steps, "
        f"and the command makes {total_steps:,}"
    )
    return replace(entry, status="does_not_pay", why=why)


def compiling_s(baselines: Sequence[Measurement], candidate: Measurement) -> float:
    """Seconds by which steps that compiled took longer than the same steps of the unchanged command.

    Later processes find what was compiled before them; the user's first run does not.
    """
    tagged = [record for record in candidate.records if "compile" in record.tags]
    known = min(len(run.records) for run in baselines)
    longer = [
        record.wall_s - fmean(run.records[record.step].wall_s for run in baselines)
        for record in tagged
        if record.step < known
    ]
    if any(record.wall_s == 0 for record in tagged):  # a GPU has no time for the first step
        longer = [_start_s(candidate) - fmean(map(_start_s, baselines))]
    return max(math.fsum(longer), 0.0)


def _slower_start_s(pairs: Sequence[Pair]) -> float:
    """By how much a process with it takes longer to begin; 0 unless every pair shows it, since starts scatter."""
    longer = [_start_s(candidate) - _start_s(baseline) for baseline, candidate in pairs]
    return median(longer) if longer and min(longer) > 0 else 0.0


def _start_s(run: Measurement) -> float:
    """Seconds of a process beyond its steps at their later pace."""
    return (run.process_s or 0.0) - len(run.records) * _pace(run)


def _pace(run: Measurement) -> float:
    """Losses are of runs that mark no warm-up: their later half."""
    counted = run.counted()
    return fmean(record.wall_s for record in counted[len(counted) // 2 :])


def over_epochs(
    census: Census | None, fixes: Sequence[Fix], result: SessionResult | None
) -> float | None:
    """The ratio over whole epochs, each of which starts and ends workers that the loader had none of; `None`: see `Ledger`."""
    loader = census.slowest_loader() if census is not None else None
    settings = [f.technique.setting(f.value) for f in fixes if f.technique.setting is not None]
    starts = any(s.get("num_workers") and not s.get("persistent_workers") for s in settings)
    ratio = result.verdict.ratio if result is not None and starts else None
    if census is None or loader is None or result is None or ratio is None:
        return None
    if loader.num_workers or not loader.per_epoch:
        return None
    steps = loader.per_epoch / census.batches_per_step()
    runs = [run for pair in result.pairs for run in pair]
    # A comparison over several epochs holds their starts; compiling would be taken for one.
    if any(len(run.records) > steps or "compile" in r.tags for run in runs for r in run.records):
        return None
    longer = [_around_s(candidate) - _around_s(baseline) for baseline, candidate in result.pairs]
    epoch_s = steps * fmean(_mean_s(baseline) for baseline, _ in result.pairs)
    over = epoch_s / (epoch_s / ratio + max(median(longer), 0.0))
    return over if min(longer) > 0 and ratio / over >= 1 + MIN_MARGIN else None


def _around_s(run: Measurement) -> float:
    """Seconds of a process before its first step, by which that is longer than others, and after its last."""
    return (run.process_s or 0.0) - math.fsum(r.wall_s for r in run.records[1:]) - _mean_s(run)


def _mean_s(run: Measurement) -> float:
    return fmean(record.wall_s for record in run.counted())


def with_memory(entry: TriedFix, pairs: Sequence[Pair]) -> TriedFix:
    """The entry of a kept fix with the memory that it takes; `rejected` where that leaves nearly none.

    pairs: timed with and without it, none where it went on and off within processes.
    """
    seen = [
        tuple(run.census.tree_bytes if run.census is not None else None for run in runs)
        for runs in (zip(*pairs, strict=True) if pairs else ())
    ]
    if entry.status != "kept" or not seen or any(None in runs for runs in seen):
        return entry
    without, with_it = (median(each for each in runs if each is not None) for runs in seen)
    limit = pairs[0][1].environment.memory_limit_bytes
    more = round(with_it - without)
    if limit is not None and more > CLEAR_BYTES and with_it > MOST * limit:
        why = (
            f"its steps are faster, but with it the command takes {with_it / 1e9:.3g} GB of memory "
            f"({without / 1e9:.3g} GB without), and {limit / 1e9:.3g} GB are all that may be used here"
        )
        return replace(entry, status="rejected", why=why)
    return replace(entry, memory_bytes=more if abs(more) > CLEAR_BYTES else 0)
