"""Did two arms learn the same, held against what rounding does to this very script?

Some scripts amplify rounding a thousand times as much as others, so one band for all of them rejects what is harmless or
passes what is not. Here the band is the script's own: baseline runs that carry noise of the size of the rounding
(`optimizations.rounding_noise`) show how far losses and weights part by that alone.

    losses      |candidate - baseline| <= max(4 x noisy runs, 5 x baseline runs, floor x scale), at every step;
                scale: the larger of the loss's size and what it moves, from its 5th to its 95th percentile
    weights     five numbers at each sampled step, each held to 4 times its own in the noisy runs: how far the
                weights have come, how far from where the baseline's are, how much along the weights they began
                with (decay), how long the gradients are, and how far they are from the baseline's

A noisy run counts a few steps ahead of the one that is judged: what is harmless may be amplified a little sooner.
Where noise moves losses as much as training does nothing can be told: the judgement ends there. Calibration:
`benchmarks/parity_calibration.py`; harmless changes stay below 2.6 times the noisy runs, mistakes begin at 13 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.step import StepRecord
from hotloop.core.weights import TensorUpdates, WeightUpdates
from hotloop.judge.parity import MIN_STEPS, loss_moves, loss_table, not_checked

Floats = NDArray[np.float64]

TIMES = 4.0
"""The band, in what noise of the size of the rounding did."""
BASELINES = 5.0
"""Likewise, in what runs as they are differ by."""
FLOORS: dict[ParityClass, float] = {
    "bitwise": 1e-6,
    "reduction_order": 1e-6,
    "reduced_precision": 1e-4,
}
CHAOS = 0.5
"""Share of what the loss moves by which a band that wide hides everything."""
FIRST_DRAWN = 20
"""Updates from which on weights are compared of runs whose batches draw other numbers."""
UNLIKE = 2.0
"""The distance of a number from none: a gradient that is not there, or is where there was none."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run whose random numbers are those of the others."""

    records: Sequence[StepRecord]
    weights: WeightUpdates | None = None


@dataclass(frozen=True, slots=True)
class _Numbers:
    """One of the five, at each sampled step, of the candidate; and what noise makes of it."""

    what: str
    seen: Floats
    allowed: Floats

    @property
    def excess(self) -> Floats:
        return np.asarray(np.abs(self.seen) / self.allowed, dtype=np.float64)


def is_plain(plain: Parity, baseline: Sequence[ComparedRun], candidate: ComparedRun) -> bool:
    """Whether the usual band decides: nothing parts that noisy runs could explain, or nothing can be told."""
    if plain.result == "not_checked" or plain.parity_class == "changes_training":
        return True
    if plain.result == "different":
        return plain.parity_class == "bitwise" and _repeats(baseline)
    return all((each.excess <= 1).all() for each in _weights(baseline, candidate, [])[1])


def does_not_move(runs: Sequence[ComparedRun]) -> bool:
    """Whether updates were seen to leave all weights as they were."""
    seen = [tensor for run in runs if run.weights for tensor in run.weights.tensors]
    return bool(seen) and not any(any(tensor.moved) for tensor in seen)


def judge_calibrated(
    baseline: Sequence[ComparedRun],
    candidate: ComparedRun,
    noisy: Sequence[ComparedRun],
    parity_class: ParityClass,
) -> Parity:
    """Compare losses and weights of a candidate with runs as they are, by what `noisy` ones do."""
    base_records = [run.records for run in baseline]
    steps, base, others = loss_table(
        base_records, [candidate.records, *(run.records for run in noisy)]
    )
    finite = np.isfinite(base).all(axis=0) & np.isfinite(others[1:]).all(axis=0)
    last = len(steps) if finite.all() else int(finite.argmin())
    if last < MIN_STEPS:
        return not_checked(
            parity_class, f"{last} common losses, at least {MIN_STEPS} are needed", last
        )
    base, others = base[:, :last], others[:, :last]
    reference = np.median(base, axis=0)
    moves = loss_moves(reference)
    scale = np.maximum(np.abs(reference), moves)
    noise = _ahead(np.abs(others[1:] - reference).max(axis=0), steps[:last])
    own = np.maximum.accumulate(np.ptp(base, axis=0))
    allowed = np.maximum.reduce([TIMES * noise, BASELINES * own, FLOORS[parity_class] * scale])
    hidden = np.flatnonzero(allowed > CHAOS * moves)
    horizon = int(hidden[0]) if len(hidden) else last
    if horizon < MIN_STEPS:
        return not_checked(
            parity_class,
            f"within {horizon + 1} steps rounding alone moves its losses by up to {allowed[horizon]:.1e}, and "
            f"training moves them by {moves:.1e}: they show nothing",
            horizon,
        )
    away = np.abs(others[0] - reference)[:horizon]
    away[~np.isfinite(away)] = np.inf
    excess = away / allowed[:horizon]
    worst = int(excess.argmax())
    looked, numbers = _weights(baseline, candidate, noisy)
    notes = []
    if excess[worst] > 1:
        over = int(np.flatnonzero(excess > 1)[0])
        notes.append(
            f"losses part by {away[over] / scale[over]:.1e} after {over + 1} of {horizon} steps, and by rounding "
            f"alone this script's would by less than {allowed[over] / scale[over]:.1e}"
        )
    notes += _parted([step for step in looked if step <= horizon], numbers)
    passed = not notes
    if passed:
        notes.append(
            f"losses stay within {(away / scale[:horizon]).max():.1e} over {horizon} steps, as rounding alone moves them in "
            f"this script{', and so do its weights' if numbers else ''}; the loss went from {reference[0]:.3g} to "
            f"{reference[horizon - 1]:.3g}"
        )
    if horizon < len(steps):
        notes.append(
            f"later steps were left out: rounding alone parts them too far (of {len(steps)})"
        )
    return Parity(
        "within_noise" if passed else "different",
        parity_class,
        num_steps=horizon,
        max_difference=float(away[worst] / scale[worst]),
        band=float(allowed[worst] / scale[worst]),
        baseline_envelope=float((own[:horizon] / scale[:horizon]).max()) if len(base) > 1 else None,
        reason="; ".join(notes),
    )


def compare_weights(
    runs: Sequence[ComparedRun], candidate: ComparedRun, last_step: int
) -> str | None:
    """How the candidate's weights go where those of `runs`, which draw other numbers, do not; `None`: nowhere.

    It has to be away from each of them, by what the others are away from that one: a run of average numbers has
    all others close around it. The first updates are those of a few batches, which may be unlike by
    chance. Rates: `benchmarks/draws_spread.py`.
    """
    found: list[str] = []
    for run in runs:
        looked, numbers = _weights([run], candidate, [each for each in runs if each is not run])
        steps = [step for step in looked if step <= last_step]
        parted = _parted(
            *(steps, numbers, "with other random numbers alone"),
            first=int(np.searchsorted(steps, FIRST_DRAWN)),
        )
        if not parted:
            return None
        found += parted
    return found[0]


def _parted(
    steps: Sequence[int],
    numbers: Sequence[_Numbers],
    alone: str = "by rounding alone",
    first: int = 0,
) -> list[str]:
    """The words for what exceeds its band the most, at the steps from `first` on."""
    if not steps[first:] or not numbers:
        return []
    worst = max(numbers, key=lambda each: float(each.excess[first : len(steps)].max()))
    place = first + int(worst.excess[first : len(steps)].argmax())
    if worst.excess[place] <= 1:
        return []
    return [
        f"{worst.what} than {alone}: {worst.seen[place]:+.1e} after {steps[place]} updates, "
        f"{worst.allowed[place]:.1e} is allowed"
    ]


def _repeats(baseline: Sequence[ComparedRun]) -> bool:
    losses = [[record.loss for record in run.records] for run in baseline]
    return all(each == losses[0] for each in losses)


def _ahead(values: Floats, steps: Sequence[int]) -> Floats:
    """The largest up to a little later than each step."""
    reached = np.searchsorted(steps, [step + max(4, step // 4) for step in steps], side="right")
    largest = np.maximum.accumulate(values)
    return np.asarray(largest[np.minimum(reached, len(values)) - 1], dtype=np.float64)


def _weights(
    baseline: Sequence[ComparedRun], candidate: ComparedRun, noisy: Sequence[ComparedRun]
) -> tuple[list[int], list[_Numbers]]:
    """What the weights show; nothing where they were not seen, or are other tensors."""
    seen = [run.weights for run in (baseline[0], candidate, *noisy, *baseline[1:])]
    runs = [each.tensors for each in seen if each is not None]
    if len(runs) < len(seen) or len({len(run) for run in runs}) > 1:
        return [], []
    rows = [row for row in zip(*runs, strict=True) if any(row[0].moved)]
    most = max((len(row[0].steps) for row in rows), default=0)
    rows = [row for row in rows if len(row[0].steps) == most]
    count = min((len(tensor.steps) for row in rows for tensor in row), default=0)
    if not count:
        return [], []
    steps = list(rows[0][0].steps[:count])
    tables = [
        np.array([_numbers(row[0], row[place], count) for row in rows])
        for place in range(1, len(runs))
    ]  # of each run: tensors x numbers x steps
    found = []
    for number, (what, (residual, floor)) in enumerate(NUMBERS.items()):
        weight = np.ones((len(rows), count))
        if tables[1:]:
            # What is rounding alone, as the gradient of a bias that softmax cancels, counts for little.
            own = np.max([each[:, residual] for each in tables[1:]], axis=0)
            weight = 1 / (np.maximum.accumulate(own, axis=1) + LEAST_PART)
        weight /= weight.sum(axis=0)
        pooled = [(each[:, number] * weight).sum(axis=0) for each in tables]
        # A sum with signs may be small by chance: no less than if each tensor's were drawn by itself.
        drawn = [np.sqrt(((each[:, number] * weight) ** 2).sum(axis=0)) for each in tables[1:]]
        noise = np.max(np.abs([np.zeros(count), *pooled[1:], *drawn]), axis=0)
        found.append(_Numbers(what, pooled[0], np.maximum(TIMES * _ahead(noise, steps), floor)))
    return steps, found


NUMBERS = {
    "the weights move farther or less far": (1, 1e-4),
    "the weights move elsewhere": (1, 1e-3),
    "the weights shrink otherwise": (1, 1e-5),
    "the gradients are larger or smaller": (4, 1e-4),
    "the gradients point elsewhere": (4, 1e-3),
}
"""Which of them says how far a tensor is from the baseline's, and what is never held against anything."""
LEAST_PART = 1e-4


def _numbers(base: TensorUpdates, other: TensorUpdates, count: int) -> Floats:
    moved, length = np.array(base.moved[:count]), np.array(other.moved[:count])
    along = np.array(other.along[:count]) - np.array(base.along[:count])
    before = np.array([each or 0.0 for each in base.gradient[:count]])
    after = np.array([each or 0.0 for each in other.gradient[:count]])
    return np.array(
        [
            _log_ratio(length, moved),
            _apart(base.moved_sample[:count], other.moved_sample[:count]),
            np.divide(along, base.start * moved, out=np.zeros(count), where=base.start * moved > 0),
            _log_ratio(after, before),
            _apart(base.gradient_sample[:count], other.gradient_sample[:count]),
        ]
    )


def _log_ratio(one: Floats, other: Floats) -> Floats:
    both = (one > 0) & (other > 0)
    ratio = np.divide(one, other, out=np.ones_like(one), where=both)
    ratio = np.where(both, np.log(ratio), np.where(one == other, 0.0, UNLIKE))
    return np.asarray(np.clip(ratio, -UNLIKE, UNLIKE), dtype=np.float64)


def _apart(
    one: Sequence[tuple[float, ...] | None], other: Sequence[tuple[float, ...] | None]
) -> Floats:
    found = []
    for mine, theirs in zip(one, other, strict=True):
        if mine is None or theirs is None:
            found.append(0.0 if mine is theirs else UNLIKE)
            continue
        length = float(np.linalg.norm(mine))
        distance = float(np.linalg.norm(np.subtract(theirs, mine)))
        found.append(min(distance / length, UNLIKE) if length else UNLIKE * (distance > 0))
    return np.array(found)
