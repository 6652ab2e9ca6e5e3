"""A small part of `benchmarks/judge_validation.py`: the judge on recorded and on simulated identical runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import judge_validation as validation
import numpy as np
import pytest

from hotloop.judge.compare import Pair
from hotloop.judge.looks import LOOKS
from hotloop.trial.plan import round_orders


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


def rounds(times: list[Any], seed: int, num: int = 5) -> list[str]:
    """Outcomes of so many candidates that share a process of the baseline in each round, and differ in nothing."""
    names = ["baseline", *map(str, range(num))]
    pairs: dict[str, list[Pair]] = {name: [] for name in names[1:]}
    for number, order in enumerate(round_orders(LOOKS[-1], names, seed)):
        made = dict(zip(order, times[number * len(names) :]))
        for name, ours in pairs.items():
            last = int(order.index(name) > order.index("baseline"))
            runs = (("baseline", made["baseline"], 1 - last), ("candidate", made[name], last))
            one, other = (validation.measurement(a, t, number, at) for a, t, at in runs)
            ours.append((one, other))
    return [validation.judged(each).outcome for each in pairs.values()]


@pytest.mark.parametrize("name", ["two_threads", "shared", "two states", "tenant"])
def test_false_claims_are_as_rare_where_candidates_share_the_process_of_the_baseline(
    name: str,
) -> None:
    random, size, outcomes = np.random.default_rng(24), 6 * LOOKS[-1], Counter[str]()
    runs = validation.recorded_sets().get(name, [])
    for seed in range(20):
        if runs:
            start = int(random.integers(len(runs) - size + 1))
            times = runs[start : start + size]
        else:
            times = validation.simulated_times(validation.DESIGNS[name], size, random)
        outcomes.update(rounds(times, seed))
    assert outcomes.total() == 100
    assert outcomes["improved"] <= 3, outcomes
    assert outcomes["regressed"] <= 3, outcomes


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
