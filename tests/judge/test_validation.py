"""A small part of `benchmarks/judge_validation.py`: the judge on recorded and on simulated identical runs."""

from __future__ import annotations

from collections import Counter

import judge_validation as validation
import numpy as np
import pytest

from hotloop.judge.looks import LOOKS


def test_false_improved_at_most_three_in_hundred_on_recorded_aa_runs() -> None:
    random = np.random.default_rng(20)
    sets = validation.recorded_sets()
    assert {name: len(runs) for name, runs in sets.items()} == {"two_threads": 80, "one_thread": 48}
    for name, runs in sets.items():
        outcomes = Counter(validation.replayed(runs, 0.0, random).outcome for _ in range(120))
        assert outcomes["improved"] <= 0.03 * 120, (name, outcomes)
        assert outcomes["regressed"] <= 0.03 * 120, (name, outcomes)


@pytest.mark.parametrize("name", sorted(validation.DESIGNS))
def test_false_improved_at_most_three_in_hundred_on_simulated_machines(name: str) -> None:
    random = np.random.default_rng(21)
    design = validation.DESIGNS[name]
    count = 2 * LOOKS[-1]
    outcomes = Counter(
        validation.judged(
            validation.as_pairs(validation.simulated_times(design, count, random), 0.0, random)
        ).outcome
        for _ in range(150)
    )
    assert outcomes["improved"] <= 0.03 * 150, outcomes
    assert outcomes["regressed"] <= 0.03 * 150, outcomes


def test_a_gain_of_six_per_cent_is_seen_on_a_quiet_machine() -> None:
    random = np.random.default_rng(22)
    design = validation.DESIGNS["quiet"]
    for _ in range(50):
        times = validation.simulated_times(design, 2 * LOOKS[-1], random)
        assert validation.judged(validation.as_pairs(times, 0.06, random)).outcome == "improved"


def test_a_large_gain_is_seen_even_in_the_recorded_noise() -> None:
    random = np.random.default_rng(23)
    runs = validation.recorded_sets()["two_threads"]
    verdicts = [validation.replayed(runs, 0.6, random) for _ in range(100)]
    assert sum(v.outcome == "improved" for v in verdicts) >= 95


def test_naive_tests_on_steps_call_most_identical_runs_different() -> None:
    # Why the process is the unit: this is what the obvious test says about the same recording.
    for runs in validation.recorded_sets().values():
        assert validation.naive_false_claims(runs) > 0.4
