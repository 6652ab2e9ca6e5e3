"""Did two arms learn the same, held against what rounding does to this very script?

Some scripts amplify rounding a thousand times as much as others, so one band for all of them rejects what is harmless or
passes what is not. Here the band is the script's own: baseline runs that carry noise of the size of the rounding
(`trial.rounding_noise`) show how far losses and weights part by that alone.

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

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul, truediv

from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.parity_records import TensorUpdates, WeightUpdates
from hotloop.core.step import StepRecord
from hotloop.judge.parity import (
    MIN_STEPS,
    finite_steps,
    loss_moves,
    loss_table,
    medians,
    not_checked,
    width,
)

Table = Sequence[Sequence[float]]

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
    seen: list[float]
    allowed: list[float]

    @property
    def excess(self) -> list[float]:
        """Infinite for what is no number."""
        shares = (abs(seen) / allowed for seen, allowed in zip(self.seen, self.allowed))
        return [math.inf if math.isnan(share) else share for share in shares]


def is_plain(plain: Parity, baseline: Sequence[ComparedRun], candidate: ComparedRun) -> bool:
    """Whether the usual band decides: nothing parts that noisy runs could explain, or nothing can be told."""
    if plain.result == "not_checked" or plain.parity_class == "changes_training":
        return True
    if plain.result == "different":
        losses = [[record.loss for record in run.records] for run in baseline]
        return plain.parity_class == "bitwise" and all(each == losses[0] for each in losses)
    return all(max(each.excess) <= 1 for each in _weights(baseline, candidate, [])[1])


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
    own_losses, *noisy_losses = others
    last = finite_steps([*base, *noisy_losses])
    if last < MIN_STEPS:
        return not_checked(
            parity_class, f"{last} common losses, at least {MIN_STEPS} are needed", last
        )
    reference = medians(base)[:last]
    moves = loss_moves(reference)
    scale = [max(abs(loss), moves) for loss in reference]
    apart = [
        max(abs(loss - usual) for loss in losses)
        for usual, *losses in zip(reference, *noisy_losses)
    ]
    noise = _ahead(apart, steps[:last])
    own = list(accumulate(map(width, zip(*base)), max))[:last]
    floor = FLOORS[parity_class]
    allowed = [max(TIMES * noise[at], BASELINES * own[at], floor * scale[at]) for at in range(last)]
    horizon = next((at for at in range(last) if allowed[at] >= CHAOS * moves), last)
    if horizon < MIN_STEPS:
        return not_checked(
            parity_class,
            f"within {horizon + 1} steps rounding alone moves its losses by up to {allowed[horizon]:.1e}, and "
            f"training moves them by {moves:.1e}: they show nothing",
            horizon,
        )
    away = [
        abs(loss - usual) if math.isfinite(loss) else math.inf
        for loss, usual in zip(own_losses, reference[:horizon])
    ]
    excess = [distance / most for distance, most in zip(away, allowed)]
    worst = excess.index(max(excess))
    looked, numbers = _weights(baseline, candidate, noisy)
    notes = []
    if excess[worst] > 1:
        over = next(at for at in range(horizon) if excess[at] > 1)
        notes.append(
            f"losses part by {away[over] / scale[over]:.1e} after {over + 1} of {horizon} steps, and by rounding "
            f"alone this script's would by less than {allowed[over] / scale[over]:.1e}"
        )
    notes += _parted([step for step in looked if step <= horizon], numbers)
    passed = not notes
    if passed:
        notes.append(
            f"losses stay within {max(map(truediv, away, scale)):.1e} over {horizon} steps, as rounding alone moves them in "
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
        max_difference=away[worst] / scale[worst],
        band=allowed[worst] / scale[worst],
        baseline_envelope=max(map(truediv, own[:horizon], scale)) if len(base) > 1 else None,
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
            first=bisect_left(steps, FIRST_DRAWN),
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
    worst = max(numbers, key=lambda each: max(each.excess[first : len(steps)]))
    place = max(range(first, len(steps)), key=worst.excess.__getitem__)
    if worst.excess[place] <= 1:
        return []
    return [
        f"{worst.what} than {alone}: {worst.seen[place]:+.1e} after {steps[place]} updates, "
        f"{worst.allowed[place]:.1e} is allowed"
    ]


def _ahead(values: Sequence[float], steps: Sequence[int]) -> list[float]:
    """The largest up to a little later than each step."""
    largest = list(accumulate(values, max))
    return [largest[bisect_right(steps, step + max(4, step // 4)) - 1] for step in steps]


def _weights(
    baseline: Sequence[ComparedRun], candidate: ComparedRun, noisy: Sequence[ComparedRun]
) -> tuple[list[int], list[_Numbers]]:
    """What the weights show; nothing where they were not seen, or are other tensors, and of those of another size, such as a
    table without the rows that nobody reads."""
    seen = [run.weights for run in (baseline[0], candidate, *noisy, *baseline[1:])]
    runs = [each.tensors for each in seen if each is not None]
    if len(runs) < len(seen) or len({len(run) for run in runs}) > 1:
        return [], []
    alike = (row for row in zip(*runs, strict=True) if len({each.size for each in row}) == 1)
    rows = [row for row in alike if any(row[0].moved)]
    most = max((len(row[0].steps) for row in rows), default=0)
    rows = [row for row in rows if len(row[0].steps) == most]
    count = min((len(tensor.steps) for row in rows for tensor in row), default=0)
    if not count:
        return [], []
    steps = list(rows[0][0].steps[:count])
    tables = [
        [_numbers(row[0], row[place], count) for row in rows] for place in range(1, len(runs))
    ]
    exact = [[0.0] * count for _ in rows]
    found = []
    for number, (what, (residual, floor)) in enumerate(NUMBERS.items()):
        noise = [[tensor[residual] for tensor in table] for table in tables[1:]]
        shares = _tensor_shares([exact, *noise])
        own, *others = (_weighted([tensor[number] for tensor in table], shares) for table in tables)
        # A sum with signs may be small by chance: no less than if each tensor's were drawn by itself.
        moved = [
            max((max(abs(sum(run[at])), math.hypot(*run[at])) for run in others), default=0.0)
            for at in range(count)
        ]
        allowed = [max(floor, TIMES * each) for each in _ahead(moved, steps)]
        found.append(_Numbers(what, list(map(sum, own)), allowed))
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


def _tensor_shares(noise: Sequence[Table]) -> Table:
    """Shares of the tensors, which sum to 1 at each step: what is rounding alone, as the gradient of a bias
    that softmax cancels, counts for little.

    noise: how far the tensors of each run are from the baseline's.
    """
    weights = [
        [1 / (most + LEAST_PART) for most in accumulate(map(max, zip(*runs)), max)]
        for runs in zip(*noise)
    ]
    totals = list(map(sum, zip(*weights)))
    return [list(map(truediv, tensor, totals)) for tensor in weights]


def _weighted(table: Table, shares: Table) -> list[tuple[float, ...]]:
    """The products for all tensors, at each step."""
    return list(zip(*(map(mul, values, share) for values, share in zip(table, shares))))


def _numbers(base: TensorUpdates, other: TensorUpdates, count: int) -> Table:
    """The five at each step, of a tensor that differs from the baseline's."""
    at = range(count)
    along = [after - before for after, before in zip(other.along, base.along)]
    full = [base.start * moved for moved in base.moved]
    return [
        [_log_ratio(other.moved[i], base.moved[i]) for i in at],
        [_distance(base.moved_sample[i], other.moved_sample[i]) for i in at],
        [along[i] / full[i] if full[i] > 0 else 0.0 for i in at],
        [_log_ratio(other.gradient[i] or 0.0, base.gradient[i] or 0.0) for i in at],
        [_distance(base.gradient_sample[i], other.gradient_sample[i]) for i in at],
    ]


def _log_ratio(one: float, other: float) -> float:
    if one > 0 and other > 0:
        return min(max(math.log(one) - math.log(other), -UNLIKE), UNLIKE)
    return 0.0 if one == other else UNLIKE


def _distance(one: tuple[float, ...] | None, other: tuple[float, ...] | None) -> float:
    """Relative to the length of the first."""
    if one is None or other is None:
        return 0.0 if one is other else UNLIKE
    length, distance = math.hypot(*one), math.dist(one, other)
    return min(distance / length, UNLIKE) if length else UNLIKE * (distance > 0)
