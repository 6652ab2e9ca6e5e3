"""What a fix costs before its first fast step, on a machine that is made up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_trials import Machine, Trying, process, product
from test_step_queue import LOADER

from hotloop.core.census import Census
from hotloop.core.judgement import Parity, Verdict
from hotloop.core.ledger import TriedFix
from hotloop.core.measurement import Measurement, Plan
from hotloop.doctor.fix_costs import over_epochs, with_epochs, with_start_cost
from hotloop.doctor.fixes import Fix
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.report.ledger import render_ledger
from hotloop.trial.session import SessionResult


class Compiling(Machine):
    """The first process with `a` compiles for so long in its first step; later ones find what it made."""

    def __init__(self, compile_s: float, start_s: float = 0.0, **gains: float) -> None:
        super().__init__(product(**gains))
        self.compile_s, self.start_s = compile_s, start_s

    def __call__(self, arm: Any, place: Path, **rest: Any) -> Measurement:
        if place in self.finished:
            return self.finished[place]
        made = super().__call__(arm, place, **rest)
        if "a" not in arm.fixes:
            return made
        first, *others = made.records
        first = replace(first, wall_s=first.wall_s + self.compile_s, tags=(*first.tags, "compile"))
        took = (made.process_s or 0.0) + self.compile_s + self.start_s
        made = replace(made, records=(first, *others), process_s=took)
        self.compile_s = 0.0
        self.finished[place] = made
        return made


def test_seconds_of_compiling_are_said_with_the_step_that_pays_for_them(trying: Trying) -> None:
    ledger = trying(Compiling(3.0, a=1.25), ["a"])
    (entry,) = ledger.fixes
    assert entry.status == "kept"
    assert entry.start_s == pytest.approx(3.0, rel=0.05)
    assert entry.pays_after_steps == pytest.approx(150, rel=0.1)  # 20 ms a step
    said = render_ledger(ledger)
    assert re.search(
        rf"starting takes [\d.]+ s more, paid after {entry.pays_after_steps} steps", said
    )


def test_process_that_begins_later_with_it_counts_where_every_pair_shows_it(trying: Trying) -> None:
    (entry,) = trying(Compiling(0.0, 1.0, a=1.25), ["a"]).fixes
    assert entry.start_s == pytest.approx(1.0, rel=0.1)
    (entry,) = trying(Compiling(0.0, a=1.25), ["a"], directory="other").fixes
    assert entry.start_s == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("ended", [True, False])
def test_fix_that_does_not_pay_before_the_command_ends_is_not_kept(
    trying: Trying, ended: bool
) -> None:
    code = 0 if ended else None
    ledger = trying(Compiling(40.0, a=2.0), ["a"], returncode=code)
    (entry,) = ledger.fixes
    if ended:
        assert (entry.status, ledger.kept, ledger.together) == ("does_not_pay", (), None)
        assert re.search(
            r"starting takes [34][\d.]+ s more: that pays after [78]\d\d steps", entry.why
        )
        assert entry.why.endswith("and the command makes 60")
        said = render_ledger(ledger)
        assert said.startswith(
            "1 fix tested, none kept: the command ends before a would pay for its start."
        )
        assert "  does not pay a  its steps are faster" in said
    else:  # how many steps it makes is not known
        assert ledger.kept == ("a",)


def test_what_is_no_faster_says_what_its_start_costs_and_pays_for_nothing(trying: Trying) -> None:
    ledger = trying(Compiling(3.0, a=0.8), ["a"])
    (entry,) = ledger.fixes
    assert entry.status == "rejected"
    assert entry.start_s == pytest.approx(3.0, rel=0.05)
    assert entry.pays_after_steps is None
    assert "starting takes" not in render_ledger(ledger)


@pytest.mark.parametrize("has_time", [True, False])
def test_what_the_first_timed_process_compiled_is_a_cost_though_losses_found_it_compiled(
    has_time: bool,
) -> None:
    """`hotloop tune` times two pairs before it compares losses. has_time: of the first step, which on a GPU has none."""
    plan = Plan(5, 55, 60.0)
    without, warm = process(0.1, plan, "baseline"), process(0.05, plan, "compiled")
    first, *others = warm.records
    first_s = first.wall_s + 20.0 if has_time else 0.0
    first = replace(first, wall_s=first_s, tags=(*first.tags, "compile"))
    cold = replace(warm, records=(first, *others), process_s=(warm.process_s or 0.0) + 20.0)
    verdict = Verdict("improved", 2.0, 1.9, 2.1, 0.95, Parity("same", None), "a", "b")
    entry = with_start_cost(
        TriedFix("compiled", True, "kept", "", verdict=verdict),
        pairs=[(without, cold), (without, warm), (without, warm)],
        losses=([without], warm),
        total_steps=None,
    )
    assert entry.start_s == pytest.approx(20.0, abs=0.1)
    assert entry.pays_after_steps == pytest.approx(400, rel=0.01)


@pytest.mark.parametrize(
    ("of_case", "ratio"),
    [
        ({}, 200 / 60),  # 200 steps of 0.1 s against as many of 0.02 s and 2 s for the workers
        ({"value": "8 persistent"}, None),
        ({"per_epoch": 50}, None),  # its starts were among the steps that were timed
        ({"per_epoch": None}, None),
        ({"num_workers": 2}, None),
        ({"later_s": 0.0}, None),
        ({"tags": ("compile",)}, None),
    ],
)
def test_workers_that_start_with_each_epoch_are_counted_over_whole_epochs(
    of_case: dict[str, Any], ratio: float | None
) -> None:
    case = {"value": 8, "per_epoch": 200, "num_workers": 0, "later_s": 2.0, "tags": ()} | of_case
    plan = Plan(5, 55, 60.0)
    without, fast = process(0.1, plan, "baseline"), process(0.02, plan, "workers")
    first, *others = fast.records  # half of it is in the first step, half after the last one
    first = replace(
        first, wall_s=first.wall_s + case["later_s"] / 2, tags=(*first.tags, *case["tags"])
    )
    took = (fast.process_s or 0.0) + case["later_s"]
    fast = replace(fast, records=(first, *others), process_s=took)
    loader = replace(LOADER, per_epoch=case["per_epoch"], num_workers=case["num_workers"])
    verdict = Verdict("improved", 5.0, 4.9, 5.1, 0.99, Parity("same", "bitwise"), "a", "b")
    result = SessionResult(verdict, ((without, fast),) * 4, (), Path())
    fix = Fix(CATALOGUE["loader_workers"], case["value"], (), None)
    found = over_epochs(Census(loaders=(loader,)), [fix], result)
    assert found == (None if ratio is None else pytest.approx(ratio))
    assert over_epochs(Census(loaders=(loader,)), [], None) is None
    kept = TriedFix("workers", 8, "kept", "faster", pays_after_steps=9, verdict=verdict)
    assert with_epochs(kept, found) == replace(kept, pays_after_steps=None if ratio else 9)
    # One pair that shows nothing of it, and nothing is told.
    even = replace(fast, process_s=took - case["later_s"] - 1.0)
    mixed = replace(result, pairs=(*result.pairs[1:], (without, even)))
    assert over_epochs(Census(loaders=(loader,)), [fix], mixed) is None


def test_workers_that_cost_more_with_each_epoch_than_they_bring_are_not_kept() -> None:
    kept = TriedFix("workers", 8, "kept", "faster", pays_after_steps=220)
    found = with_epochs(kept, 0.9)
    assert (found.status, found.pays_after_steps) == ("rejected", None)
    assert found.why.endswith("each epoch starts its workers again: 0.90x over whole epochs")
    assert with_epochs(kept, 1.004).status == "rejected"
    rejected = replace(kept, status="rejected")
    assert with_epochs(rejected, 0.9) == rejected
