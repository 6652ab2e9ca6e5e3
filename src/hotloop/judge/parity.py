"""Did two arms learn the same? Losses step by step, against a calibrated band.

Both arms see the same batches in the same order, so the noise of a batch cancels: what is compared is
the relative difference at equal steps, `(candidate - baseline) / |baseline|`, the baseline being the
median over its runs. The step-to-step scatter of the loss (several per cent) is no yardstick here: it
is common to both arms, and a band that wide would pass every mistake this module is for.

    envelope E(t)       largest relative difference between two baseline runs at any step up to t
    bitwise             equal at every step; where the baseline differs from itself, as reduction_order
    reduction_order     |d(t)| <= max(1e-5, 5 E(t))
    reduced_precision   |d(t)| <= max(2e-3, 10 E(t)) and |mean of d over the last third| <= 3e-4
    changes_training    not checked by steps

Rounding is a wandering difference without a sign; a mistake (a missing weight decay, another learning
rate) is a steady one, which the mean over the last third shows before any single step does.
Warm-up steps count: they are slow, not untrained. Calibration: `tests/golden/parity_losses.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.step import StepRecord

MIN_STEPS = 20
"""Fewer common losses than this show almost no mistake."""

MAX_ENVELOPE = 2e-3
"""Where baseline runs part by more, a difference of losses means nothing: later steps are left out."""

SMALLEST_SCALE = 1e-3
"""Losses count as at least this share of their median: near a loss of 0 a ratio means nothing."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Band:
    """How far the losses of one parity class may part."""

    floor: float
    envelopes: float
    tail: float | None = None


BANDS: dict[ParityClass, Band] = {
    "bitwise": Band(1e-5, 5),
    "reduction_order": Band(1e-5, 5),
    "reduced_precision": Band(2e-3, 10, tail=3e-4),
}
"""`bitwise` uses its band only where the baseline does not repeat itself."""


def judge_parity(
    baseline: Sequence[Sequence[StepRecord]],
    candidate: Sequence[Sequence[StepRecord]],
    parity_class: ParityClass,
) -> Parity:
    """Compare the losses of all runs of both arms at the steps that all of them have."""
    if parity_class == "changes_training":
        return _not_checked(parity_class, "the change trains differently on purpose")
    if not baseline or not candidate:
        return _not_checked(parity_class, "an arm has no run")
    steps, base, cand = _losses(baseline, candidate)
    if not len(steps):
        return _not_checked(parity_class, "the runs have no step with a loss in common")
    horizon = _first(~_finite(base))
    broken = _first(~_finite(cand[:, :horizon]))
    if broken < horizon:
        return Parity(
            "different",
            parity_class,
            num_steps=broken,
            reason=f"the candidate's loss is not finite at step {steps[broken]}, the baseline's is",
        )
    cut = "" if horizon == len(steps) else f"; the baseline's loss is not finite from step {steps[horizon]}"  # fmt: skip
    if horizon < MIN_STEPS:
        return _not_checked(
            parity_class, f"{horizon} common losses, at least {MIN_STEPS} are needed{cut}", horizon
        )
    base, cand = base[:, :horizon], cand[:, :horizon]
    if (base == base[0]).all() and (cand == base[0]).all():
        return Parity(
            "same",
            parity_class,
            num_steps=horizon,
            max_difference=0.0,
            band=0.0,
            baseline_envelope=0.0,
            reason=f"every loss is equal to the last bit over {horizon} steps{cut}",
        )
    return _judge_band(base, cand, parity_class, cut)


def _judge_band(base: Floats, cand: Floats, parity_class: ParityClass, cut: str) -> Parity:
    reference = np.median(base, axis=0)
    scale = np.maximum(np.abs(reference), SMALLEST_SCALE * np.median(np.abs(reference)))
    if not (scale > 0).all():
        return _not_checked(parity_class, "the baseline's loss is 0")
    envelope = np.maximum.accumulate(np.ptp(base, axis=0) / scale)
    horizon = _first(envelope > MAX_ENVELOPE)
    if horizon < MIN_STEPS:
        return _not_checked(
            parity_class,
            f"the baseline's own runs differ by {envelope[min(MIN_STEPS, len(envelope)) - 1]:.1e} "
            f"within {MIN_STEPS} steps, so losses can not tell the arms apart",
            horizon,
        )
    if horizon < len(reference):
        cut = f", after which baseline runs differ from each other by more than {MAX_ENVELOPE:g}"
    differences = ((cand - reference) / scale)[:, :horizon]
    envelope = envelope[:horizon]
    largest = np.abs(differences).max(axis=0)
    tail = differences[:, horizon - max(1, horizon // 3) :].mean(axis=1)
    tail_mean = float(tail[np.argmax(np.abs(tail))])

    exact = parity_class == "bitwise" and envelope[-1] == 0
    band = BANDS[parity_class]
    allowed = np.zeros(horizon) if exact else np.maximum(band.floor, band.envelopes * envelope)
    tail_band = None if band.tail is None else max(band.tail, float(envelope[-1]))
    over = _first(largest > allowed)
    notes = []
    if over < horizon:
        notes.append(
            f"losses part by {largest[over]:.1e} after {over + 1} of {horizon} steps, "
            f"{allowed[over]:.1e} is allowed"
        )
    if tail_band is not None and abs(tail_mean) > tail_band:
        notes.append(
            f"losses drift apart: {tail_mean:+.1e} on average over the last third of {horizon} steps, "
            f"{tail_band:.0e} is allowed"
        )
    passed = not notes
    if passed:
        notes.append(f"losses stay within {float(largest.max()):.1e} over {horizon} steps")
    spread = float((np.ptp(cand[:, :horizon], axis=0) / scale[:horizon]).max())
    if spread > float(envelope[-1]) and spread > 0:
        notes.append(f"the candidate's own runs differ by {spread:.1e}")
    if len(base) == 1:
        notes.append("one baseline run, so its own noise is not known")
    return Parity(
        "within_noise" if passed else "different",
        parity_class,
        num_steps=horizon,
        max_difference=float(largest.max()),
        band=float(allowed[over] if over < horizon else allowed.max()),
        tail_mean=tail_mean,
        tail_band=tail_band,
        baseline_envelope=float(envelope[-1]) if len(base) > 1 else None,
        reason="; ".join(notes) + cut,
    )


def _losses(
    baseline: Sequence[Sequence[StepRecord]], candidate: Sequence[Sequence[StepRecord]]
) -> tuple[list[int], Floats, Floats]:
    """Common steps in order, and the losses of each arm as runs x steps."""
    runs = [
        {record.step: record.loss for record in run if record.loss is not None}
        for run in (*baseline, *candidate)
    ]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    table: Floats = np.array([[run[step] for step in steps] for run in runs], dtype=np.float64)
    return steps, table[: len(baseline)], table[len(baseline) :]


def _finite(losses: Floats) -> NDArray[np.bool_]:
    """Per step: whether every run's loss is a number."""
    return np.asarray(np.isfinite(losses).all(axis=0), dtype=np.bool_)


def _first(condition: NDArray[Any]) -> int:
    """Index of the first true entry, or the length."""
    found = np.flatnonzero(condition)
    return int(found[0]) if len(found) else len(condition)


def _not_checked(parity_class: ParityClass, reason: str, num_steps: int = 0) -> Parity:
    return Parity("not_checked", parity_class, num_steps=num_steps, reason=reason)
