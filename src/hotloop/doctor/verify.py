"""Every fix against the command as it is, in interleaved pairs of fresh processes; then all that were kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.files import write_json
from hotloop.core.judgement import Verdict
from hotloop.core.ledger import LEDGER_FILE, Ledger, Status, TriedFix
from hotloop.core.measurement import Measurement
from hotloop.core.progress import Progress, silent
from hotloop.doctor.fixes import Fix
from hotloop.optimizations.catalogue import parity_of_live
from hotloop.optimizations.live import APPLIED_FILE
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import SessionResult, compare_arms

AS_IT_IS = "as-it-is"
TRIALS = "trials"
COUNTED_S = 6.0
"""Seconds of counted steps in one process, about."""
STEPS = (20, 300)
LOOKS = (4, 6)
AA_PAIRS = 1


@dataclass(frozen=True, slots=True)
class Costs:
    """What one process takes."""

    start_s: float
    step_s: float

    def pair_s(self, plan: TrialPlan) -> float:
        return 2 * (self.start_s + plan.num_steps * self.step_s)


def plan_for(measurement: Measurement, *, steps: int | None) -> tuple[TrialPlan, Costs]:
    """How many steps to compare. Raises `UsageError` for a run that is too short to compare."""
    records = [each for each in measurement.records if "warmup" not in each.tags]
    walls = sorted(each.wall_s for each in records)
    if not walls:
        raise UsageError("no step was seen, so no fix can be tried")
    median = walls[len(walls) // 2]
    total = len(measurement.records)
    warmup = max(min(len(measurement.records) - len(records), total // 3), 3)
    wanted = steps or min(max(int(COUNTED_S / max(median, 1e-6)), STEPS[0]), STEPS[1])
    counted = min(wanted, total - warmup)
    if counted < STEPS[0] // 2:
        raise UsageError(
            f"it makes {total} steps: too few to compare one way of running it with another",
            do="let it train for longer, or ask for the diagnosis alone with --no-try",
        )
    start = measurement.census.start_s if measurement.census is not None else None
    costs = Costs(start if start is not None else 10.0, median)
    timeout = 60.0 + 10 * (costs.start_s + (warmup + counted) * median)
    return (
        TrialPlan(warmup, counted, timeout_s=timeout, looks=LOOKS, aa_pairs=AA_PAIRS),
        costs,
    )


def plan_that_shows(
    plan: TrialPlan, fixes: Sequence[Fix], measurement: Measurement
) -> TrialPlan | None:
    """With a warm-up after which the effect of every fix shows; `None` where the run is too short for it."""
    census = measurement.census
    needed = [
        fix.technique.warmup_for(census)
        for fix in fixes
        if fix.technique.warmup_for is not None and census is not None
    ]
    warmup = max([plan.warmup_steps, *needed])
    counted = min(plan.steps, len(measurement.records) - warmup)
    if counted < min(plan.steps, STEPS[0] // 2):
        return None
    more = (warmup - plan.warmup_steps) / plan.num_steps
    return replace(
        plan, warmup_steps=warmup, steps=counted, timeout_s=plan.timeout_s * (1 + max(more, 0.0))
    )


def verify(
    command: Sequence[str],
    fixes: Sequence[Fix],
    measurement: Measurement,
    *,
    directory: Path,
    workdir: Path,
    budget_s: float | None = None,
    steps: int | None = None,
    in_place: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Try each fix, then together those that helped. Called again, finished trials are not repeated.

    directory: the doctor's, where `trials/` and `ledger.json` go. A fix whose trial fails is rejected,
    and the rest goes on. Raises `UsageError` for a run too short or a budget too small for one pair,
    and what `compare_arms` raises where the command as it is fails.
    """
    started = time.monotonic()
    plan, costs = plan_for(measurement, steps=steps)
    plan = replace(plan, in_place=in_place)
    least = costs.pair_s(plan) * (AA_PAIRS + LOOKS[0])
    if budget_s is not None and budget_s < least:
        raise UsageError(
            f"a budget of {budget_s:.0f} s is too small for one comparison",
            do=f"give at least --budget {least:.0f}s, fewer --steps, or --no-try",
        )

    def left_s() -> float | None:
        return None if budget_s is None else budget_s - (time.monotonic() - started)

    baseline = Arm(AS_IT_IS, tuple(command), "step_clock", workdir=workdir)
    tried: list[TriedFix] = []
    for fix in fixes:
        left = left_s()
        # The fixes together need as much again.
        if left is not None and left < 2 * least:
            tried.append(_tried(fix, "not_tried", "the budget was spent"))
            continue
        longer = plan_that_shows(plan, [fix], measurement)
        if longer is None:
            tried.append(_tried(fix, "not_tried", "the run ends before its effect could show"))
            continue
        tried.append(_try(baseline, fix, longer, directory, progress, warn))
    kept = [entry for entry in tried if entry.status == "kept"]
    together: Verdict | None = None
    if kept:
        names = {entry.name for entry in kept}
        longer = plan_that_shows(plan, [fix for fix in fixes if fix.name in names], measurement)
        assert longer is not None
        together = _together(baseline, kept, longer, directory, progress, warn)
    ledger = Ledger(
        command=tuple(command),
        fixes=tuple(tried),
        kept=tuple(entry.name for entry in kept),
        together=together,
        warmup_steps=plan.warmup_steps,
        steps=plan.steps,
        wall_s=time.monotonic() - started,
        budget_s=budget_s,
    )
    write_json(directory / LEDGER_FILE, ledger)
    return ledger


def _try(
    baseline: Arm,
    fix: Fix,
    plan: TrialPlan,
    directory: Path,
    progress: Progress,
    warn: Callable[[str], None],
) -> TriedFix:
    candidate = replace(baseline, name=fix.name, fixes={fix.name: fix.value})
    place = f"{TRIALS}/{fix.name}"
    try:
        result = compare_arms(
            baseline,
            candidate,
            directory=directory / place,
            plan=plan,
            parity_class=parity_of_live([fix.name]),
            progress=progress,
        )
    except CommandFailed as error:
        if f"`{AS_IT_IS}`" in error.what:
            raise
        warn(f"{fix.name}: its trial failed; the others go on")
        return _tried(fix, "failed", f"its trial failed: {error.what}", place=place)
    status, why = judged(result, fix)
    return _tried(fix, status, why, verdict=result.verdict, place=place)


def judged(result: SessionResult, fix: Fix) -> tuple[Status, str]:
    """What becomes of a fix after its pairs."""
    verdict = result.verdict
    not_applied = why_not_applied(result, fix)
    if not_applied is not None:
        return "not_applied", not_applied
    if fix.technique.what_if:
        return "what_if", "shows what it costs; it is not a fix"
    if verdict.outcome != "improved":
        words = {
            "unchanged": "no gain",
            "regressed": "slower",
            "incomparable": "the runs cannot be compared: " + " ".join(verdict.reasons),
            "inconclusive": "inconclusive",
        }
        why = words[verdict.outcome]
        if verdict.outcome == "inconclusive" and verdict.minimum_detectable_effect is not None:
            why += f" (smallest detectable effect {verdict.minimum_detectable_effect:.1%})"
        return "rejected", why
    if verdict.parity.result == "different":
        return "rejected", "faster, but it learns something else: " + verdict.parity.reason
    if verdict.parity.result == "not_checked":
        return "rejected", "faster, but whether it learns the same is not known: " + (
            verdict.parity.reason or "its losses were not seen"
        )
    return "kept", "faster, and learns the same"


def why_not_applied(result: SessionResult, fix: Fix) -> str | None:
    """Why its effect was not seen in a process that should have had it; `None` if it was in all."""
    for _, measurement in result.pairs:
        census = measurement.census
        if census is not None and fix.technique.observed(census, fix.value) is False:
            said = _said(result.directory, fix.name)
            return f"its effect was not seen in the census ({said})"
    for path in sorted(result.directory.glob(f"pair-*-{fix.name}/run")):
        lines = _lines(path / APPLIED_FILE, fix.name)
        if not any(line["applied"] for line in lines):
            refused = "; ".join(str(line["what"]) for line in lines)
            return refused or "nothing that it could be applied to was made"
    return None


def _said(directory: Path, name: str) -> str:
    for path in sorted(directory.glob(f"pair-*-{name}/run")):
        for line in _lines(path / APPLIED_FILE, name):
            return str(line["what"])
    return "it said nothing"


def _lines(path: Path, name: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # a process that was killed while it wrote
            continue
        if entry.get("fix") == name:
            found.append(entry)
    return found


def _together(
    baseline: Arm,
    kept: Sequence[TriedFix],
    plan: TrialPlan,
    directory: Path,
    progress: Progress,
    warn: Callable[[str], None],
) -> Verdict | None:
    """All that were kept, on fresh pairs: what was chosen for being fast is not measured by its choice."""
    candidate = replace(
        baseline, name="together", fixes={entry.name: entry.value for entry in kept}
    )
    try:
        return compare_arms(
            baseline,
            candidate,
            directory=directory / TRIALS / "together",
            plan=replace(plan, seed=plan.seed + 1),
            parity_class=parity_of_live([entry.name for entry in kept]),
            progress=progress,
        ).verdict
    except CommandFailed as error:
        if f"`{AS_IT_IS}`" in error.what:
            raise
        warn(f"the kept fixes together fail: {error.what}")
        return None


def _tried(
    fix: Fix, status: Status, why: str, *, verdict: Verdict | None = None, place: str | None = None
) -> TriedFix:
    return TriedFix(
        name=fix.name,
        value=fix.value,
        status=status,
        why=why,
        answers=fix.answers,
        predicted=fix.predicted,
        verdict=verdict,
        directory=place,
    )
