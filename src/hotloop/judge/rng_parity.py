"""Did two arms learn the same, where the candidate's batches draw their random numbers elsewhere?

`other_draws` is a change that gives a script the same samples in the same order, augmented with other random numbers
of the same distribution: crops, flips, noise, mixup and masks that loader workers draw instead of the process that trains.
Losses then differ at every step, by as much as with another seed, and a band that wide would pass mistakes. So
the comparison is made twice (`doctor.loss_parity` makes the runs, `trial.fixed_batch_rng` holds the numbers):

    held     the numbers of each batch follow from its indices and its epoch alone, in both arms, whichever process
             makes it; the process that trains draws the same for all else. Both must then learn the same by the usual
             rules of the other changes: to the last bit, where nothing else changes. Samples that are lost or come twice,
             a sampler that draws where it is asked twice or ahead of time, a dataset that counts or has
             a generator of its own, another learning rate: all of them show here, however noisy augmentation is.
    found    what holding the numbers hides: the states from which workers would have drawn. Each worker must find others
             in each epoch, of every generator that batches draw from, or their batches are augmented alike
             (NumPy's, where torch does not seed it; a `worker_init_fn` that seeds by a constant, which shows in one epoch
             since it is called once more with another seed). Code that seeds a generator while it makes
             a batch leaves what does not depend on where that began: refused.
    spread   the candidate with its own numbers, against baseline runs whose batches draw others, all else equal:
             |mean over 20 losses, from the median run's| <= 2 x the largest such difference between those runs, and
             the way of the weights within the calibrated band of these runs (`calibrated_parity`). Of exchangeable
             runs 1 in 500 leaves the first over 60 steps, 3 in 100 over 20. Where augmentation moves the losses by
             half of what they move at all, nothing is shown: refused.

Batches of another shape are another such change: dropout draws other numbers in them. There the comparison is made once,
without dropout (`without_dropout_parity`).

Refused is `not_checked`; only what is known to be otherwise is `different`. Not seen: a dataset that changes what it
draws after the steps that are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from hotloop.core.judgement import Parity
from hotloop.core.parity_records import BatchRng, EpochStart, RngLog
from hotloop.judge.calibrated_parity import CHAOS, ComparedRun, compare_weights
from hotloop.judge.parity import (
    MIN_STEPS,
    WINDOW,
    finite_steps,
    loss_moves,
    loss_table,
    medians,
    not_checked,
    width,
    window_means,
)

OTHER_RNG_RUNS = 4
"""As it is, each with other numbers: the first also stands against the candidate with the numbers held."""
TIMES = 2.0
"""How many times as far from the median run as those are from each other."""
FLOOR = 1e-6
"""Relative: rounding, where the numbers decide nothing."""
NOT_SEEN = "how its batches draw random numbers was not seen"
WHAT_STAYS = (
    "the same samples in the same order, with other random numbers in augmentation or dropout (later epochs may be "
    "shuffled as with another seed)"
)


@dataclass(frozen=True, slots=True)
class RngRun:
    """A run whose batches drew held numbers."""

    compared: ComparedRun
    rng: RngLog


def judge_other_rng(
    runs: Sequence[RngRun], candidate: ComparedRun, held: RngRun, parity: Parity
) -> Parity:
    """Judge `candidate`, which draws its own numbers.

    runs: as it is, each with other held numbers. held: the candidate with the numbers of the first of them.
    parity: of those two, which learned the same.
    """
    different = reason_rng_differs(runs, held)
    if different is not None:
        return Parity("different", "other_draws", num_steps=parity.num_steps, reason=different)
    unknown = reason_rng_unknown(held.rng)
    if unknown is not None:
        return not_checked("other_draws", unknown, parity.num_steps)
    spread = _judge_spread([run.compared for run in runs], candidate)
    if spread.result != "within_noise":
        return spread
    exactly = "equal to the last bit" if parity.result == "same" else "the same but for rounding"
    reason = (
        f"{WHAT_STAYS}: with the numbers of each batch held fixed its losses are {exactly} over "
        f"{parity.num_steps} steps; with its own {spread.reason}"
    )
    return replace(spread, reason=reason)


def without_dropout_parity(parity: Parity) -> Parity:
    """The parity of runs without dropout, said of runs with it.

    Dropout draws each number by itself from one distribution, whatever the shape: what else the change does is what
    these runs show.
    """
    if parity.result not in ("same", "within_noise"):
        return replace(parity, reason=f"without dropout, {parity.reason}".rstrip(", "))
    exactly = "equal to the last bit" if parity.max_difference == 0 else "the same but for rounding"
    reason = (
        f"without dropout its losses are {exactly} over {parity.num_steps} steps; dropout draws other numbers in the "
        "batches' new shape, as with another seed"
    )
    reason = f"{reason}; {parity.reason}" if parity.parity_class == "other_draws" else reason
    return replace(parity, parity_class="other_draws", result="within_noise", reason=reason)


def reason_rng_differs(runs: Sequence[RngRun], held: RngRun) -> str | None:
    """What the candidate would draw otherwise than from the same distribution; `None`: nothing was seen."""
    by_workers = _by_workers(held.rng)
    starts = Counter((each.loader, each.epoch) for each in held.rng.epochs if each.num_workers)
    if any(number > 1 and epoch in by_workers for (_, epoch), number in starts.items()):
        return "its workers begin two epochs with the same numbers, which the unchanged script does not"
    for name in sorted({name for each in held.rng.batches for name in each.left}):
        found = Counter(
            state
            for batches in by_workers.values()
            for state in {each.worker: each.found.get(name) for each in batches}.values()
        )
        most = max(found.values(), default=0)
        if most > 1:
            return (
                f"its batches draw from {_GENERATORS[name]}, and {most} workers begin with the same numbers: "
                "they would augment different samples alike"
            )
    for name in sorted(_seeded_while_made([run.rng for run in runs[:2]])):
        return (
            f"its dataset or collate function seeds {_GENERATORS[name]} itself, which also decides what the "
            "process that trains draws later: with workers it does not"
        )
    return None


def reason_rng_unknown(held: RngLog) -> str | None:
    """Why what was seen of workers is too little to know from what they draw; `None`: it is enough."""
    if not held.batches:
        return NOT_SEEN
    by_workers = _by_workers(held)
    loaders: dict[str, list[EpochStart]] = {}
    for start in held.epochs:
        if start.epoch in by_workers:
            loaders.setdefault(start.loader, []).append(start)
    if not loaders and any(each.num_workers for each in held.epochs):
        return "what its workers draw from was not seen"
    for first, *others in loaders.values():
        if others:
            continue
        if first.num_workers < 2:
            return "one worker in one epoch cannot show whether it repeats its numbers in the next"
        unknown = [name for name in first.seeded_by if name != "worker_init_fn"]
        if "worker_init_fn" in first.seeded_by and not _begin_anew(by_workers[first.epoch]):
            unknown.append("worker_init_fn")
        if unknown:
            return (
                f"its loader has a {' and a '.join(unknown)}, so it takes two epochs to see whether workers draw the "
                "same numbers in each, and one was seen"
            )
    return None


_GENERATORS = {
    "torch": "torch's generator",
    "random": "Python's `random`",
    "numpy.random": "`numpy.random`",
}


def _begin_anew(batches: Sequence[BatchRng]) -> bool:
    """Whether a worker was seen to find other states, of what its batches draw from, where it has another seed."""
    drawn = {name for each in batches for name in each.left}
    looked = [each for each in batches if each.next_epoch is not None]
    return bool(looked) and all(
        each.next_epoch is not None and each.next_epoch.get(name) != each.found.get(name)
        for each in looked
        for name in drawn
    )


def _by_workers(log: RngLog) -> dict[int, list[BatchRng]]:
    """Epoch -> the batches that its workers made, where any drew random numbers."""
    found: dict[int, list[BatchRng]] = {}
    for each in log.batches:
        if each.worker is not None:
            found.setdefault(each.epoch, []).append(each)
    return {epoch: made for epoch, made in found.items() if any(each.left for each in made)}


def _seeded_while_made(logs: Sequence[RngLog]) -> set[str]:
    """Generators left in one state from two beginnings."""
    one, other = ({(each.epoch, each.batch): each.left for each in log.batches} for log in logs)
    return {
        name
        for key in one.keys() & other.keys()
        for name in one[key].keys() & other[key].keys()
        if one[key][name] == other[key][name]
    }


def _judge_spread(runs: Sequence[ComparedRun], candidate: ComparedRun) -> Parity:
    """Whether the candidate is one of these runs, as far as their losses and weights tell."""
    steps, base, (own,) = loss_table([run.records for run in runs], [candidate.records])
    if len(steps) < MIN_STEPS:
        why = f"{len(steps)} common losses, at least {MIN_STEPS} are needed"
        return not_checked("other_draws", why, len(steps))
    if finite_steps(base) < len(steps):
        why = "its loss is not finite in every run with other random numbers"
        return not_checked("other_draws", why, len(steps))
    if not all(map(math.isfinite, own)):
        why = "its loss is not finite with the random numbers that workers draw"
        return Parity("different", "other_draws", num_steps=len(steps), reason=why)
    reference = medians(base)
    moves = loss_moves(reference)
    scale = max(fmean(map(abs, reference)), moves)
    spread = max(width(means) for means in zip(*map(window_means, base)))
    differences = [loss - usual for loss, usual in zip(own, reference)]
    away = max(map(abs, window_means(differences)))
    allowed = max(TIMES * spread, FLOOR * scale)
    if allowed >= CHAOS * moves:
        why = (
            f"with other random numbers alone the losses of this script differ by {spread:.1e} on average over "
            f"{WINDOW} steps, and training moves them by {moves:.1e}: they show nothing"
        )
        return not_checked("other_draws", why, len(steps))
    told = (
        f"they differ by up to {away / scale:.1e} on average over {WINDOW} steps from those of {len(runs)} baseline runs "
        f"with other numbers, which differ from each other by up to {spread / scale:.1e}"
    )
    weights = compare_weights(runs, candidate, steps[-1])
    is_within = away <= allowed and weights is None
    went = f"; the loss went from {reference[0]:.3g} to {reference[-1]:.3g}"
    return Parity(
        "within_noise" if is_within else "different",
        "other_draws",
        num_steps=len(steps),
        max_difference=away / scale,
        band=allowed / scale,
        baseline_envelope=spread / scale,
        reason=told + (f"; {weights}" if weights else "") + (went if is_within else ""),
    )
