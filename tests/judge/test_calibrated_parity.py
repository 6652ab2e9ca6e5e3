"""Losses and weights of a script that amplifies what it is given, made up so that both are known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from judge_inputs import curve

from hotloop.core.parity_records import TensorUpdates, WeightUpdates
from hotloop.judge.calibrated_parity import (
    ComparedRun,
    compare_weights,
    does_not_move,
    is_plain,
    judge_calibrated,
)
from hotloop.judge.parity import judge_parity

STEPS = 60
SAMPLED = (1, 2, 4, 8, 16, 32, 60)


def weights(
    rounding: float = 0.0, *, seed: int = 0, faster: float = 1.0, decay: float = 0.0,
    gradient: float = 1.0, learns: bool = True,
) -> WeightUpdates:  # fmt: skip
    """Four tensors whose elements move by 0.1 an update."""
    given, noise = random.Random(1), random.Random(seed)
    tensors = []
    for _ in range(4):
        start = [given.gauss(0, 1) for _ in range(16)]
        slope = [given.gauss(0, 1) for _ in range(16)]
        moved, gradients = [], []
        for step in SAMPLED:
            far = 0.1 * step * learns
            moved.append(
                tuple(
                    faster * far * way * (1 + rounding * step * noise.gauss(0, 1))
                    - decay * step * at
                    for way, at in zip(slope, start, strict=True)
                )
            )
            gradients.append(
                tuple(gradient * way * (1 + rounding * noise.gauss(0, 1)) for way in slope)
            )
        tensors.append(
            TensorUpdates(
                SAMPLED,
                math.hypot(*start),
                tuple(math.hypot(*way) for way in moved),
                tuple(math.sumprod(way, start) for way in moved)
                if hasattr(math, "sumprod")
                else tuple(sum(a * b for a, b in zip(way, start, strict=True)) for way in moved),
                tuple(math.hypot(*way) for way in gradients),
                tuple(moved),
                tuple(gradients),
            )
        )
    return WeightUpdates(tuple(tensors))


def compared(
    losses: list[float] | None = None, rounding: float = 0.0, *, seed: int = 0, **mistakes: float
) -> ComparedRun:
    """A loss that falls from 4 to 2.8; what it is rounded by grows by half at each step."""
    noise = random.Random(seed)
    falling = losses or [4.0 - 0.02 * step for step in range(STEPS)]
    rounded = [
        each + rounding * 1.1**step * noise.uniform(-1, 1) for step, each in enumerate(falling)
    ]
    return ComparedRun(curve(rounded), weights(rounding, seed=seed, **mistakes))


BASELINE = [compared(), compared()]
NOISY = [compared(rounding=1e-4, seed=1), compared(rounding=1e-4, seed=2)]


def test_rounding_that_the_script_amplifies_is_within_its_own_band() -> None:
    candidate = compared(rounding=5e-5, seed=3)
    plain = judge_parity([run.records for run in BASELINE], [candidate.records], "reduction_order")
    assert plain.result == "different"  # one band for all scripts rejects it
    assert not is_plain(plain, BASELINE, candidate)
    parity = judge_calibrated(BASELINE, candidate, NOISY, "reduction_order")
    assert parity.result == "within_noise"
    assert "the loss went from 4 to 2.82" in parity.reason


@pytest.mark.parametrize(
    ("mistake", "shown"),
    [
        ({"faster": 0.9}, "the weights move"),
        ({"decay": 0.002}, "the weights"),
        ({"gradient": 0.99}, "the gradients are larger or smaller"),
    ],
)
def test_mistakes_that_no_loss_shows_are_seen_in_the_weights(
    mistake: dict[str, float], shown: str
) -> None:
    candidate = compared(rounding=5e-5, seed=3, **mistake)
    parity = judge_calibrated(BASELINE, candidate, NOISY, "reduction_order")
    assert parity.result == "different"
    assert shown in parity.reason


def test_equal_losses_do_not_hide_weights_that_go_elsewhere() -> None:
    candidate = compared(decay=0.002)
    plain = judge_parity([run.records for run in BASELINE], [candidate.records], "reduction_order")
    assert plain.result == "same"
    assert not is_plain(plain, BASELINE, candidate)


@pytest.mark.parametrize(
    ("place", "size", "is_seen"), [(0, 8, False), (0, 16, True), (1, 16, True)]
)
def test_tensor_of_another_size_is_not_compared_and_the_others_are(
    place: int, size: int, is_seen: bool
) -> None:
    given, elsewhere = weights().tensors, weights(decay=0.002).tensors

    def with_sizes(tensors: Sequence[TensorUpdates], first: int) -> ComparedRun:
        sized = (replace(tensors[0], size=first), *(replace(x, size=16) for x in tensors[1:]))
        return replace(BASELINE[0], weights=WeightUpdates(sized))

    baseline = [with_sizes(given, 16)] * 2
    candidate = with_sizes([*given[:place], elsewhere[place], *given[place + 1 :]], size)
    plain = judge_parity([each.records for each in baseline], [candidate.records], "reduction_order")  # fmt: skip
    assert is_plain(plain, baseline, candidate) != is_seen


def test_harmless_run_needs_no_further_ones() -> None:
    candidate = compared(rounding=1e-9, seed=3)
    plain = judge_parity([run.records for run in BASELINE], [candidate.records], "reduction_order")
    assert is_plain(plain, BASELINE, candidate)


def test_one_different_bit_of_what_claims_to_be_equal_needs_no_further_ones() -> None:
    candidate = compared(rounding=1e-6, seed=3)
    plain = judge_parity([run.records for run in BASELINE], [candidate.records], "bitwise")
    assert plain.result == "different"
    assert is_plain(plain, BASELINE, candidate)


def test_losses_that_part_more_than_by_rounding_are_different() -> None:
    other = [4.0 - 0.021 * step for step in range(STEPS)]
    parity = judge_calibrated(BASELINE, compared(other), NOISY, "reduction_order")
    assert parity.result == "different"
    assert parity.reason.startswith("losses part by")


def test_nothing_is_told_where_rounding_moves_losses_as_much_as_training() -> None:
    noisy = [compared(rounding=0.1, seed=1)]
    parity = judge_calibrated(BASELINE, compared(rounding=0.1, seed=2), noisy, "reduction_order")
    assert parity.result == "not_checked"
    assert "they show nothing" in parity.reason


def test_judgement_ends_where_rounding_hides_everything() -> None:
    noisy = [compared(rounding=2e-3, seed=1)]
    parity = judge_calibrated(BASELINE, compared(rounding=1e-3, seed=2), noisy, "reduction_order")
    assert parity.result == "within_noise"
    assert 20 <= parity.num_steps < STEPS
    assert "later steps were left out" in parity.reason


def test_candidate_that_diverges_is_different() -> None:
    broken = [4.0 - 0.02 * step for step in range(STEPS)]
    broken[30] = math.nan
    parity = judge_calibrated(BASELINE, compared(broken), NOISY, "reduction_order")
    assert parity.result == "different"


def test_loss_that_passes_through_0_is_judged_by_what_it_moves() -> None:
    through = [1 - 0.02 * step for step in range(STEPS)]
    noise = random.Random(1)
    candidate = curve([each + 1.2e-7 * noise.uniform(-1, 1) for each in through])
    assert (
        judge_parity([curve(through)] * 2, [candidate], "reduction_order").result == "within_noise"
    )


def test_run_that_does_not_learn_proves_nothing() -> None:
    still = [curve([0.5] * STEPS)] * 2
    for parity_class in ("bitwise", "reduction_order", "reduced_precision"):
        parity = judge_parity(still, [curve([0.5] * STEPS)], parity_class)
        assert parity.result == "not_checked"
        assert "the same at every step" in parity.reason
    assert does_not_move([ComparedRun(curve([0.5] * STEPS), weights(learns=False))])
    assert not does_not_move(BASELINE)


def test_baseline_whose_losses_are_0_proves_nothing() -> None:
    still = [compared([0.0] * STEPS), compared([0.0] * STEPS)]
    parity = judge_calibrated(still, compared([1e-3] * STEPS), still, "reduced_precision")
    assert parity.result == "not_checked"
    assert "they show nothing" in parity.reason


def test_steady_drift_shows_in_a_script_that_does_not_repeat_itself() -> None:
    noise = random.Random(1)
    falling = [4.0 - 0.02 * step for step in range(STEPS)]
    restless = [each * (1 + 9e-4 * noise.uniform(-1, 1)) for each in falling]
    drifting = [each * (1 + 2e-3 * noise.uniform(0, 1)) for each in falling]
    base = [curve(falling), curve(restless)]
    parity = judge_parity(base, [curve(drifting)], "bitwise")
    assert parity.result == "different"
    assert "drift apart" in parity.reason
    assert judge_parity(base, [curve(restless)], "bitwise").result == "within_noise"


DRAWN = [compared(rounding=1e-3, seed=seed) for seed in range(1, 5)]
"""Runs that draw other numbers: their weights differ a little at each step."""


def test_weights_among_those_of_runs_with_other_numbers_are_told_nothing_of() -> None:
    assert all(
        compare_weights(DRAWN, compared(rounding=1e-3, seed=seed), STEPS) is None
        for seed in range(5, 25)
    )


@pytest.mark.parametrize("mistake", [{"faster": 0.7}, {"decay": 0.05}])
def test_weights_that_leave_all_runs_with_other_numbers_are_named(
    mistake: dict[str, float],
) -> None:
    said = compare_weights(DRAWN, compared(rounding=1e-3, seed=9, **mistake), STEPS)
    assert said is not None
    assert "than with other random numbers alone" in said


def test_the_first_batches_with_other_numbers_may_be_unlike_by_chance() -> None:
    mistaken, usual = (compared(rounding=1e-3, seed=9, **each) for each in ({"faster": 0.9}, {}))
    assert mistaken.weights is not None
    assert usual.weights is not None
    tensors = tuple(
        replace(
            late,
            moved=early.moved[:5] + late.moved[5:],
            moved_sample=early.moved_sample[:5] + late.moved_sample[5:],
        )
        for early, late in zip(mistaken.weights.tensors, usual.weights.tensors, strict=True)
    )
    assert SAMPLED[4] < 20 < SAMPLED[5]
    candidate = replace(usual, weights=replace(usual.weights, tensors=tensors))
    assert compare_weights(DRAWN, candidate, STEPS) is None
