"""Every outcome with every parity result has a sentence that can not be misread."""

from __future__ import annotations

import typing
from dataclasses import replace
from itertools import product

import pytest

from hotloop.core.judgement import Finding, Outcome, Parity, ParityName, Verdict
from hotloop.report.words import answer, gain, headline, trouble

OUTCOMES = typing.get_args(Outcome)
PARITIES = typing.get_args(ParityName)

VERDICT = Verdict(
    outcome="improved",
    ratio=2.71,
    ratio_low=2.60,
    ratio_high=2.82,
    confidence=0.95,
    parity=Parity("within_noise", "reduced_precision", 40, 0.0004, 0.002),
    baseline="plain",
    candidate="hotloop",
    num_pairs=4,
    minimum_detectable_effect=0.031,
)


def verdict(outcome: Outcome, parity: ParityName = "same") -> Verdict:
    reason = "no loss was recorded" if parity == "not_checked" else ""
    return replace(
        VERDICT, outcome=outcome, parity=replace(VERDICT.parity, result=parity, reason=reason)
    )


def test_improved_reads_as_the_answer_people_quote() -> None:
    assert answer(VERDICT) == (
        "hotloop's settings train 2.71x as fast as the plain loop (95 % interval 2.60 to 2.82, 4 pairs "
        "of fresh processes); the losses agree (largest difference 0.04 % over 40 steps, band 0.2 %)."
    )


@pytest.mark.parametrize(("outcome", "parity"), list(product(OUTCOMES, PARITIES)))
def test_every_outcome_and_parity_has_a_sentence(outcome: Outcome, parity: ParityName) -> None:
    text = answer(verdict(outcome, parity))
    assert text.endswith(".")
    assert "None" not in text + headline(verdict(outcome, parity))
    if outcome != "incomparable":
        assert "the losses" in text
    claims_a_proven_gain = text.startswith("hotloop's settings train") and "not" not in text
    assert claims_a_proven_gain == (outcome == "improved" and parity in ("same", "within_noise"))
    assert verdict(outcome, parity).is_proven == claims_a_proven_gain


def test_other_random_numbers_are_named() -> None:
    found = verdict("improved", "within_noise")
    found = replace(found, parity=replace(found.parity, parity_class="other_draws"))
    assert (
        "the samples are the same, augmentation or dropout draws other random numbers, and"
        in answer(found)
    )
    assert headline(found) == "improved, and it learns the same from other random numbers"


def test_faster_but_different_is_clearly_not_to_be_kept() -> None:
    found = verdict("improved", "different")
    assert "the losses differ" in answer(found)
    assert answer(found).endswith("so this speed is not to be kept.")
    assert "not to be kept" in headline(found)


def test_faster_without_compared_losses_is_not_called_proven() -> None:
    text = answer(verdict("improved", "not_checked"))
    assert "the losses were not compared (no loss was recorded)" in text
    assert "nothing is proven about what it learns" in text


def test_regression_says_so_first() -> None:
    slower = replace(verdict("regressed"), ratio=0.8, ratio_low=0.78, ratio_high=0.82)
    assert answer(slower).startswith(
        "A regression: hotloop's settings train 0.80x as fast as the plain"
    )


def test_unchanged_shows_enough_digits_to_see_the_interval() -> None:
    even = replace(verdict("unchanged"), ratio=1.001, ratio_low=0.997, ratio_high=1.005)
    assert "No difference that matters" in answer(even)
    assert "1.001x" in answer(even)
    assert "0.997 to 1.005" in answer(even)


def test_inconclusive_names_the_gain_that_would_have_shown() -> None:
    text = answer(verdict("inconclusive"))
    assert "may or may not be faster" in text
    assert "a gain of 3.1 % or more would have shown" in text


def test_incomparable_gives_the_reasons_and_no_speed() -> None:
    found = replace(
        verdict("incomparable"), reasons=("device: A100, not H200.", "torch: 2.11, not 2.13")
    )
    text = answer(found)
    assert text.endswith("device: A100, not H200; torch: 2.11, not 2.13.")
    assert "2.71" not in text


def test_inconclusive_without_a_ratio_gives_its_reason() -> None:
    empty = replace(
        verdict("inconclusive"),
        ratio=None,
        ratio_low=None,
        ratio_high=None,
        reasons=("one pair only",),
    )
    assert "one pair only" in answer(empty)


def test_identical_losses_are_called_identical() -> None:
    parity = Parity("same", "bitwise", 40, 0.0, 0.0)
    assert "the losses are identical over 40 steps" in answer(replace(VERDICT, parity=parity))


def test_arms_of_others_are_named() -> None:
    text = answer(replace(VERDICT, baseline="A", candidate="B"))
    assert text.startswith("The settings of `B` train 2.71x as fast as those of `A`")
    of_commands = answer(replace(VERDICT, baseline="baseline", candidate="candidate"))
    assert of_commands.startswith("The candidate trains 2.71x as fast as the baseline (")


def test_loose_gain_is_not_sold_as_an_estimate() -> None:
    assert gain(Finding("HL302", "t", 1.4)) == "up to 1.40x, all else equal"
    assert "only when tried" in gain(Finding("HL302", "t", 4.0, gain_is_loose=True))


def test_trouble_counts_what_was_seen_and_is_silent_about_nothing() -> None:
    assert trouble(spikes=1, skipped=2) == "1 spike, 2 updates left out"
    assert trouble(skipped=1, rollbacks=1) == "1 update left out, 1 rollback"
    assert trouble() == ""
