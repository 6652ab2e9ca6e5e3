"""Did two arms learn the same? Losses step by step, against a calibrated band.

Both arms see the same batches in the same order, so the noise of a batch cancels: what is compared is
the relative difference at equal steps, `(candidate - baseline) / |baseline|`, the baseline being the
median over its runs. The step-to-step scatter of the loss (several per cent) is no yardstick here: it
is common to both arms, and a band that wide would pass every mistake this module is for.

    envelope E(t)       largest relative difference between two baseline runs at any step up to t
    growth g(t)         1 up to step 40, then doubling every 20 steps
    bitwise             equal at every step; where the baseline differs from itself, as reduction_order
    reduction_order     |d(t)| <= max(1e-5 g(t), 5 E(t)); where the baseline differs from itself, over any 20
                        losses in a row |mean of d| <= max(1e-5 g(t), 2.5 times that of baseline runs)
    reduced_precision   |d(t)| <= max(2e-3 g(t), 10 E(t)), and over any 20 losses in a row
                        |mean of d| <= max(3e-4 g(t), E(t)) with t their last step
    changes_training    not checked by steps

Rounding is a wandering difference without a sign; a mistake (a missing weight decay, another learning
rate) is a steady one, which a mean over 20 losses shows before any single step does. Any 20, not the
last: a wrong learning rate shows in the first steps, where the loss falls, and may cross 0 later.

Training amplifies every difference, rounding like mistakes, about twofold every 20 to 30 steps
(recorded: bf16 5e-4 after 30 steps, 1.1e-3 after 60, 3.3e-3 after 80, 7.3e-3 after 120). A constant
band is too narrow late or too wide early, where mistakes show best; hence g. The recording ends after
120 steps, and so does the judgement; only losses that are not numbers are looked for beyond it.
Warm-up steps count: they are slow, not untrained. Calibration: `benchmarks/record_parity.py`,
`tests/golden/parity_losses.json`; for that one small GPT a factor of 2 to 6 lies between bf16 and
its band throughout. Other models amplify more: a ResNet with batch norm leaves the band by rounding alone;
the doctor holds such a script against its own rounding (`calibrated_parity.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median, quantiles

from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.step import StepRecord

MIN_STEPS = 20
"""Fewer common losses than this show almost no mistake."""

MAX_ENVELOPE = 2e-3
"""Above this distance of baseline runs a difference of losses means nothing: later steps are left out."""

MAX_STEPS = 120
"""The step at which the recording that calibrates the bands ends."""

WINDOW = 20
"""Losses in a row over which a drift is averaged."""

STEADY_STEPS, DOUBLING_STEPS = 40, 20
"""Rounding differences stay small for so many steps, then double as often as this, recorded."""

OWN_DRIFTS = 2.5
"""How many times as far as baseline runs of each other losses may drift where those do not agree to the bit."""

Losses = Sequence[Sequence[float]]
"""Runs x steps."""


@dataclass(frozen=True, slots=True)
class Band:
    """How far the losses of one parity class may part."""

    floor: float
    envelopes: float
    drift: float | None = None


BANDS: dict[ParityClass, Band] = {
    "bitwise": Band(1e-5, 5),
    "reduction_order": Band(1e-5, 5),
    "reduced_precision": Band(2e-3, 10, drift=3e-4),
}
"""`bitwise` uses its band only where the baseline does not repeat itself."""


def judge_parity(
    baseline: Sequence[Sequence[StepRecord]],
    candidate: Sequence[Sequence[StepRecord]],
    parity_class: ParityClass,
) -> Parity:
    """Compare the losses of all runs of both arms at the steps that all of them have."""
    if parity_class == "changes_training":
        return not_checked(parity_class, "the change trains differently on purpose")
    if not baseline or not candidate:
        return not_checked(parity_class, "an arm has no run")
    steps, base, cand = loss_table(baseline, candidate)
    if not steps:
        return not_checked(parity_class, "the runs have no step with a loss in common")
    horizon = finite_steps(base)
    broken = min(finite_steps(cand), horizon)
    if broken < horizon:
        return Parity(
            "different",
            parity_class,
            num_steps=broken,
            reason=f"the candidate's loss is not finite at step {steps[broken]}, the baseline's is",
        )
    cut = "" if horizon == len(steps) else f"; the baseline's loss is not finite from step {steps[horizon]}"  # fmt: skip
    if horizon < MIN_STEPS:
        return not_checked(
            parity_class, f"{horizon} common losses, at least {MIN_STEPS} are needed{cut}", horizon
        )
    base, cand = ([run[:horizon] for run in arm] for arm in (base, cand))
    repeats = all(run == base[0] for run in base)
    if repeats and all(run == base[0] for run in cand):
        if width(base[0]) == 0:
            return not_checked(parity_class, f"{_STANDS_STILL}{cut}", horizon)
        return Parity(
            "same",
            parity_class,
            num_steps=horizon,
            max_difference=0.0,
            band=0.0,
            baseline_envelope=0.0 if len(base) > 1 else None,
            reason=f"every loss is equal to the last bit over {horizon} steps{cut}",
        )
    judged = bisect_left(steps, steps[0] + MAX_STEPS, hi=horizon)
    if judged < MIN_STEPS:
        return not_checked(
            parity_class,
            f"{judged} losses in the first {MAX_STEPS} steps, at least {MIN_STEPS} are needed",
            judged,
        )
    if judged < horizon:
        cut = f", the first of {horizon}: later, rounding alone parts losses too far to judge"
    if parity_class == "bitwise" and repeats:
        growth, cut = [0.0] * horizon, ""  # equal is equal at any step
    else:
        since = (step - steps[0] for step in steps[:judged])
        growth = [2.0 ** (max(0, each - STEADY_STEPS) / DOUBLING_STEPS) for each in since]
    base, cand = ([run[: len(growth)] for run in arm] for arm in (base, cand))
    return _judge_band(base, cand, growth, parity_class=parity_class, cut=cut)


def _judge_band(
    base: Losses, cand: Losses, growth: Sequence[float], *, parity_class: ParityClass, cut: str
) -> Parity:
    """Hold differences against the band of their class; `growth` 0 allows none."""
    reference = medians(base)
    moves = loss_moves(reference)
    scale = [max(abs(loss), moves) for loss in reference]
    if not all(size > 0 for size in scale):
        return not_checked(parity_class, "the baseline's loss is 0")
    widths = [width(losses) / size for losses, size in zip(zip(*base), scale)]
    envelope = list(accumulate(widths, max))
    horizon = bisect_right(envelope, MAX_ENVELOPE)
    if horizon < MIN_STEPS:
        return not_checked(
            parity_class,
            f"the baseline's own runs differ by {envelope[MIN_STEPS - 1]:.1e} within {MIN_STEPS} "
            "steps, so losses can not tell the arms apart",
            horizon,
        )
    if horizon < len(reference):
        cut = f", after which baseline runs differ from each other by more than {MAX_ENVELOPE:g}"
    envelope, scale = envelope[:horizon], scale[:horizon]
    differences = _relative(cand, reference, scale)
    largest = [max(map(abs, at_step)) for at_step in zip(*differences)]

    band = BANDS[parity_class]
    allowed = [
        max(band.floor * grown, band.envelopes * own) for grown, own in zip(growth, envelope)
    ]
    over = next((at for at in range(horizon) if largest[at] > allowed[at]), None)
    worst = largest.index(max(largest)) if over is None else over
    notes = []
    if over is not None:
        notes.append(
            f"losses part by {largest[over]:.1e} after {over + 1} of {horizon} steps, "
            f"{allowed[over]:.1e} is allowed"
        )
    drift = drift_band = None
    may_drift: list[float] = []
    ends = range(WINDOW - 1, horizon)
    if band.drift is not None:
        may_drift = [max(band.drift * growth[end], envelope[end]) for end in ends]
    elif envelope[-1] > 0:
        own_means = map(window_means, _relative(base, reference, scale))
        own_drifts = accumulate(map(width, zip(*own_means)), max)
        may_drift = [
            max(band.floor * max(growth[end], 1), OWN_DRIFTS * own)
            for end, own in zip(ends, own_drifts)
        ]
    if may_drift:
        drift, drift_band, end = _worst_window(differences, may_drift)
        if abs(drift) > drift_band:
            notes.append(
                f"losses drift apart: {drift:+.1e} on average over {WINDOW} steps up to {end + 1} "
                f"of {horizon}, {drift_band:.1e} is allowed"
            )
    passed = not notes
    if passed and width(reference) == 0:
        return not_checked(parity_class, f"{_STANDS_STILL}{cut}", horizon)
    if passed:
        notes.append(f"losses stay within {max(largest):.1e} over {horizon} steps")
    spread = max(width(losses) / size for losses, size in zip(zip(*cand), scale))
    if spread > envelope[-1]:
        notes.append(f"the candidate's own runs differ by {spread:.1e}")
    if len(base) == 1:
        notes.append("one baseline run, so its own noise is not known")
    return Parity(
        "within_noise" if passed else "different",
        parity_class,
        num_steps=horizon,
        max_difference=largest[worst],
        band=allowed[worst],
        tail_mean=drift,
        tail_band=drift_band,
        baseline_envelope=envelope[-1] if len(base) > 1 else None,
        reason="; ".join(notes) + cut,
    )


def _relative(runs: Losses, reference: Sequence[float], scale: Sequence[float]) -> Losses:
    """How far the losses of each run are from the reference, in its scale."""
    return [
        [(loss - usual) / size for loss, usual, size in zip(run, reference, scale)] for run in runs
    ]


def _worst_window(differences: Losses, bands: Sequence[float]) -> tuple[float, float, int]:
    """Signed mean, band and last index of the window that comes closest to its band or exceeds it most."""
    means = [
        (mean, band, place + WINDOW - 1)
        for run in differences
        for place, (mean, band) in enumerate(zip(window_means(run), bands))
    ]
    return max(means, key=lambda each: abs(each[0]) / each[1])


def window_means(values: Sequence[float]) -> list[float]:
    """Over each `WINDOW` values in a row."""
    ends = range(WINDOW, len(values) + 1)
    return [sum(values[end - WINDOW : end]) / WINDOW for end in ends]


def medians(runs: Losses) -> list[float]:
    """Over the runs, at each step."""
    return [median(losses) for losses in zip(*runs)]


def width(values: Sequence[float]) -> float:
    """From the lowest to the highest."""
    return max(values) - min(values)


def loss_moves(losses: Sequence[float]) -> float:
    """How far apart losses are, a few of them left out."""
    cuts = quantiles(losses, n=20, method="inclusive")
    return cuts[-1] - cuts[0]


def loss_table(
    baseline: Sequence[Sequence[StepRecord]], candidate: Sequence[Sequence[StepRecord]]
) -> tuple[list[int], list[list[float]], list[list[float]]]:
    """Common steps in order, and the losses of each arm as runs x steps."""
    runs = [
        {record.step: float(record.loss) for record in run if record.loss is not None}
        for run in (*baseline, *candidate)
    ]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    table = [[run[step] for step in steps] for run in runs]
    return steps, table[: len(baseline)], table[len(baseline) :]


def finite_steps(runs: Losses) -> int:
    """Steps from the first on at which the loss of every run is a number."""
    columns = list(zip(*runs))
    broken = (at for at, losses in enumerate(columns) if not all(map(math.isfinite, losses)))
    return next(broken, len(columns))


_STANDS_STILL = "the baseline's loss is the same at every step, so it shows nothing"


def not_checked(parity_class: ParityClass, reason: str, num_steps: int = 0) -> Parity:
    return Parity("not_checked", parity_class, num_steps=num_steps, reason=reason)
