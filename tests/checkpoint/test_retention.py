"""Which checkpoints stay: by count, age and held-out loss, whatever the clock does."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from hotloop.checkpoint import store
from hotloop.checkpoint.entries import Entry, held_out_losses, retired
from hotloop.checkpoint.state import FILES
from hotloop.core.config import CheckpointConfig

NOW = 1_000_000.0
HOUR = 3600.0


def left(ages_h: dict[int, float], *, losses: dict[int, float] | None = None, good_until: int | None = None, **rules: object) -> list[int]:  # fmt: skip
    """The steps that stay, of checkpoints of these ages."""
    entries = [Entry(f"step-{s}", s, "whole", saved_at=NOW - age * HOUR) for s, age in ages_h.items()]  # fmt: skip
    gone = retired(
        entries,
        CheckpointConfig.model_validate(rules),
        newest=f"step-{max(ages_h)}",
        now=NOW,
        losses=losses or {},
        good_until=good_until,
    )
    return sorted(ages_h.keys() - {each.step for each in gone})


def test_newest_so_many_stay() -> None:
    assert left({1: 5, 2: 4, 3: 3, 4: 2}, keep=2) == [3, 4]


def test_young_ones_stay_and_age_alone_never_leaves_fewer_than_are_kept_by_count() -> None:
    ages = {1: 9.0, 2: 5.0, 3: 4.0, 4: 3.0}
    assert left(ages, keep=2, keep_hours=4.5) == [3, 4]
    assert left(ages, keep=2, keep_hours=5.5) == [2, 3, 4]
    assert left(ages, keep=3, keep_hours=0.001) == [2, 3, 4]


def test_clock_that_jumps_ahead_or_back_deletes_no_newer_one_while_an_older_stays() -> None:
    assert left({1: 0.5, 2: 1000.0, 3: 1000.0, 4: 0.1}, keep=2, keep_hours=1) == [1, 2, 3, 4]
    assert left({1: 3.0, 2: -1000.0, 3: 2.0, 4: 1.0}, keep=2, keep_hours=1) == [2, 3, 4]
    assert left({1: 9e5, 2: 9e5, 3: 9e5}, keep=2, keep_hours=1) == [2, 3]  # a year later at once


def test_best_evaluated_ones_stay_and_no_number_is_none_of_them() -> None:
    losses = {1: 2.0, 2: 1.5, 3: math.nan, 5: 1.5, 99: 0.1}
    ages = dict.fromkeys(range(1, 8), 1.0)
    assert left(ages, keep=2, keep_best=1, losses=losses) == [5, 6, 7]  # the later of equal ones
    assert left(ages, keep=2, keep_best=9, losses=losses) == [1, 2, 5, 6, 7]


def test_what_came_after_updates_were_left_out_gives_way_and_what_was_before_stays() -> None:
    ages = dict.fromkeys(range(1, 7), 1.0)
    assert left(ages, keep=2, good_until=3) == [1, 2, 3, 6]


@given(
    ages=st.dictionaries(st.integers(0, 40), st.floats(-1e4, 1e4), min_size=1, max_size=12),
    keep=st.integers(2, 5),
    hours=st.none() | st.floats(0.01, 1e4),
    best=st.integers(0, 3),
    losses=st.dictionaries(st.integers(0, 40), st.floats(allow_nan=True)),
)
def test_whatever_the_clock_the_newest_stay_and_one_goes_only_where_no_rule_keeps_it(
    ages: dict[int, float], keep: int, hours: float | None, best: int, losses: dict[int, float]
) -> None:
    steps = sorted(ages)
    found = left(ages, keep=keep, keep_hours=hours, keep_best=best, losses=losses)
    assert set(steps[-keep:]) <= set(found)
    by_age = left(ages, keep=keep, keep_hours=hours)
    assert by_age == steps[len(steps) - len(by_age) :]  # no gap: order is by step
    assert len(found) <= len(by_age) + best


def test_saving_keeps_by_the_rules_of_the_config_and_by_the_losses_that_are_recorded(
    tmp_path: Path,
) -> None:
    evals = tmp_path / "evals.jsonl"
    evals.write_text('{"step": 2, "loss": 9, "averaged_loss": 1}\nnot JSON\n{"step": 3, "loss": 2}\n{"step": "4", "loss": 0}\n{"step": 5}\n{"st')  # fmt: skip
    losses = held_out_losses(evals)
    assert losses == {2: 1, 3: 2}
    rules = CheckpointConfig(keep=2, keep_best=1, keep_hours=1)
    root, tensors = tmp_path / "checkpoints", {name: {"w": torch.zeros(3)} for name in FILES}
    old = time.time() - 2 * HOUR
    for step in range(1, 9):
        saved = store.save(root, step, tensors=tensors, state={}, keep=rules, losses=losses)
        if step < 6:
            os.utime(saved.path / "manifest.json", (old, old))
    assert store.steps(root) == (2, 6, 7, 8)
    assert held_out_losses(tmp_path / "none") == {}


def test_both_checkpoints_of_one_step_stay_while_the_step_does() -> None:
    entries = [Entry(name, step, "whole", saved_at=NOW) for name, step in (("a", 1), ("b", 2), ("c", 2), ("d", 3))]  # fmt: skip
    rules = CheckpointConfig(keep=2)
    gone = retired(entries, rules, newest="d", now=NOW, losses={})
    assert [each.name for each in gone] == ["a"]
