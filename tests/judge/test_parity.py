"""The bands, on recorded losses of a tiny GPT with harmless changes and with planted mistakes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from judge_inputs import curve

from hotloop.core.judgement import Parity, ParityClass
from hotloop.judge.parity import judge_parity

RECORDED = json.loads((Path(__file__).parent.parent / "golden" / "parity_losses.json").read_text())
LOSSES = RECORDED["losses"]
SEEDS = sorted(LOSSES["baseline"])
FALLING = [4.0 - 0.02 * step for step in range(60)]


def recorded(
    name: str, seed: str, steps: int, parity_class: ParityClass, baseline: str = "baseline"
) -> Parity:
    base, other = LOSSES[baseline][seed][:steps], LOSSES[name][seed][:steps]
    return judge_parity([curve(base)] * 4, [curve(other)] * 4, parity_class)


def shifted(losses: list[float], relative: float) -> list[float]:
    return [loss * (1 + relative) for loss in losses]


@pytest.mark.parametrize("steps", [30, 60, 80, 120])
@pytest.mark.parametrize("name", sorted(RECORDED["harmless"]))
def test_harmless_changes_pass_the_band_of_their_class(name: str, steps: int) -> None:
    claimed = RECORDED["harmless"][name]
    expected = "same" if claimed == "bitwise" else "within_noise"
    for seed in SEEDS:
        parity = recorded(name, seed, steps, claimed)
        assert parity.result == expected, (seed, parity.reason)


CAUGHT_OVER = {
    "no_weight_decay": 30,
    "no_clipping": 30,
    "learning_rate_x1.1": 30,
    "learning_rate_x1.01": 30,
    "beta2_0.99": 30,
    "no_warmup": 30,
    "other_order": 30,
    "other_init": 30,
    "wrong_targets": 30,
    "loss_halved": 60,  # Adam undoes the factor; only clipping and epsilon see it
    "one_skipped_step": 80,  # step 60
}
"""Mistakes that bf16's band tells from rounding, and the shortest horizon on which it does."""

ESCAPING = ("weight_decay_0.01_more", "one_skipped_step_late")
"""Mistakes as small as rounding to bf16: a tenth more weight decay, and one update missing 10 steps
before the end. The band of float32 catches both."""


def test_every_recorded_mistake_is_accounted_for() -> None:
    assert set(RECORDED["mistakes"]) == set(CAUGHT_OVER) | set(ESCAPING)


@pytest.mark.parametrize("name", sorted(CAUGHT_OVER))
def test_mistakes_are_different_even_within_the_band_of_bf16(name: str) -> None:
    for steps in (30, 60, 80, 120):
        for seed in SEEDS:
            if steps >= CAUGHT_OVER[name]:
                assert recorded(name, seed, steps, "reduced_precision").result == "different"


@pytest.mark.parametrize("name", sorted(RECORDED["mistakes"]))
def test_every_mistake_is_different_from_float32_over_120_steps(name: str) -> None:
    assert {recorded(name, seed, 120, "reduction_order").result for seed in SEEDS} == {"different"}


@pytest.mark.parametrize("name", ESCAPING)
def test_mistakes_known_to_escape_the_band_of_bf16_still_do(name: str) -> None:
    # A band that starts to catch them is good news: then move the name to CAUGHT_OVER.
    results = {recorded(name, seed, 120, "reduced_precision").result for seed in SEEDS}
    assert results == {"within_noise"}


def test_dropping_the_default_weight_decay_shows_in_float32_and_not_in_bf16() -> None:
    for seed in SEEDS:
        fine = recorded("decay_0", seed, 60, "reduction_order", baseline="decay_0.01")
        coarse = recorded("decay_0", seed, 60, "reduced_precision", baseline="decay_0.01")
        assert (fine.result, coarse.result) == ("different", "within_noise")


def test_bf16_claiming_to_be_bitwise_or_reordered_is_different() -> None:
    for parity_class in ("bitwise", "reduction_order"):
        assert recorded("bf16", "0", 60, parity_class).result == "different"


def test_equal_losses_are_the_same_under_every_class() -> None:
    for parity_class in ("bitwise", "reduction_order", "reduced_precision"):
        parity = judge_parity([curve(FALLING)], [curve(FALLING)] * 2, parity_class)
        assert parity.result == "same"
        assert "60 steps" in parity.reason


def test_one_different_bit_is_not_bitwise() -> None:
    other = [*FALLING[:59], math.nextafter(FALLING[59], 5)]
    assert judge_parity([curve(FALLING)] * 2, [curve(other)], "bitwise").result == "different"


def test_a_bitwise_change_of_a_baseline_that_does_not_repeat_itself_is_within_its_noise() -> None:
    base = [curve(FALLING), curve(shifted(FALLING, 1e-6))]
    near, far = curve(shifted(FALLING, 2e-6)), curve(shifted(FALLING, 1e-3))
    assert judge_parity(base, [near], "bitwise").result == "within_noise"
    assert judge_parity(base, [far], "bitwise").result == "different"


def test_the_band_widens_with_the_baselines_own_scatter() -> None:
    candidate = [curve(shifted(FALLING, 5e-4))]
    repeatable = [curve(FALLING)] * 2
    restless = [curve(FALLING), curve(shifted(FALLING, 2e-4))]
    assert judge_parity(repeatable, candidate, "reduction_order").result == "different"
    parity = judge_parity(restless, candidate, "reduction_order")
    assert parity.result == "within_noise"
    assert parity.baseline_envelope == pytest.approx(2e-4, rel=1e-2)


def test_a_small_steady_drift_is_different_though_no_step_is() -> None:
    parity = judge_parity([curve(FALLING)], [curve(shifted(FALLING, 1e-3))], "reduced_precision")
    assert parity.result == "different"
    assert parity.max_difference < parity.band
    assert "drift" in parity.reason


def test_the_same_size_without_a_sign_is_within_noise() -> None:
    wobbling = [loss * (1 + 1e-3 * (-1) ** step) for step, loss in enumerate(FALLING)]
    parity = judge_parity([curve(FALLING)], [curve(wobbling)], "reduced_precision")
    assert parity.result == "within_noise"


def test_baseline_runs_that_part_by_themselves_are_not_checked() -> None:
    base = [curve(FALLING), curve(shifted(FALLING, 0.05))]  # an unseeded script
    parity = judge_parity(base, [curve(shifted(FALLING, 0.02))], "reduction_order")
    assert parity.result == "not_checked"
    assert "own runs differ" in parity.reason


def test_only_the_steps_before_the_baseline_parts_are_judged() -> None:
    parting = FALLING[:40] + shifted(FALLING[40:], 0.05)
    base = [curve(FALLING), curve(parting)]
    parity = judge_parity(base, [curve(FALLING)], "reduction_order")
    assert (parity.result, parity.num_steps) == ("within_noise", 40)
    wrong = judge_parity(base, [curve(shifted(FALLING, 0.01))], "reduction_order")
    assert wrong.result == "different"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [0, 5, 59])
def test_a_candidate_loss_that_is_not_a_number_is_different(loss: float, step: int) -> None:
    broken = [loss if number == step else value for number, value in enumerate(FALLING)]
    for parity_class in ("bitwise", "reduction_order", "reduced_precision"):
        parity = judge_parity([curve(FALLING)] * 2, [curve(FALLING), curve(broken)], parity_class)
        assert parity.result == "different"
        assert f"step {step}" in parity.reason


def test_a_loss_that_is_not_a_number_beyond_the_judged_steps_is_still_different() -> None:
    long = [4.0] * 300
    broken = [*long[:250], math.nan, *long[251:]]
    assert judge_parity([curve(long)], [curve(broken)], "reduced_precision").result == "different"


def test_a_baseline_that_diverges_itself_is_judged_up_to_there() -> None:
    broken = [*FALLING[:30], *[math.nan] * 30]
    parity = judge_parity([curve(broken)] * 2, [curve(broken)], "reduction_order")
    assert (parity.result, parity.num_steps) == ("same", 30)
    assert "not finite from step 30" in parity.reason


def test_few_common_losses_are_not_checked() -> None:
    parity = judge_parity([curve(FALLING)], [curve(FALLING[:19])], "bitwise")
    assert parity.result == "not_checked"
    assert parity.num_steps == 19


def test_losses_are_compared_by_step_and_not_by_place() -> None:
    late = curve([None, None, *FALLING[2:]])
    parity = judge_parity([curve(FALLING)], [late], "bitwise")
    assert (parity.result, parity.num_steps) == ("same", 58)


def test_no_losses_are_not_checked() -> None:
    silent = curve([None] * 60)
    assert judge_parity([silent], [silent], "bitwise").result == "not_checked"
    assert judge_parity([], [curve(FALLING)], "bitwise").result == "not_checked"


def test_a_change_of_training_is_not_checked_by_steps() -> None:
    parity = judge_parity([curve(FALLING)], [curve(shifted(FALLING, 1))], "changes_training")
    assert parity.result == "not_checked"
    assert "on purpose" in parity.reason


def test_candidate_runs_that_disagree_are_reported() -> None:
    runs = [curve(FALLING), curve(shifted(FALLING, 3e-6))]
    parity = judge_parity([curve(FALLING)] * 2, runs, "reduction_order")
    assert parity.result == "within_noise"
    assert "candidate's own runs differ by 3.0e-06" in parity.reason


@pytest.mark.parametrize("parity_class", ["bitwise", "reduction_order", "reduced_precision"])
def test_one_bad_candidate_run_among_good_ones_is_different(parity_class: ParityClass) -> None:
    runs = [curve(FALLING)] * 5 + [curve(shifted(FALLING, 0.01))]
    assert judge_parity([curve(FALLING)] * 6, runs, parity_class).result == "different"


def test_rounding_is_judged_over_the_first_120_steps_of_a_long_run() -> None:
    long = [4.0] * 300
    parting = [*long[:200], *shifted(long[200:], 0.05)]
    parity = judge_parity([curve(long)], [curve(parting)], "reduced_precision")
    assert parity.num_steps == 120
    assert "first of 300" in parity.reason
