"""What memory a fix takes, on a machine that is made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_trials import Machine, Trying, product

from hotloop.core.ledger import TriedFix
from hotloop.core.measurement import Measurement
from hotloop.report.ledger import render_ledger

LIMIT = 16 * 10**9


class Hungry(Machine):
    """A process of the command takes 2 GB, and so much more with `a`."""

    def __init__(self, more_bytes: int, **gains: float) -> None:
        super().__init__(product(**gains))
        self.more_bytes = more_bytes

    def __call__(self, arm: Any, place: Path, **rest: Any) -> Measurement:
        made = super().__call__(arm, place, **rest)
        assert made.census is not None
        has_it = "a" in arm.fixes or b"a" in b"".join(arm.edited.values())
        taken = 2 * 10**9 + len(self.places) * 10**6 + (self.more_bytes if has_it else 0)
        made = replace(
            made,
            census=replace(made.census, tree_bytes=taken),
            environment=replace(made.environment, memory_limit_bytes=LIMIT),
        )
        self.finished[place] = made
        return made


def tried(trying: Trying, more_bytes: int, **gains: float) -> tuple[TriedFix, str]:
    ledger = trying(Hungry(more_bytes, **gains), sorted(gains))
    return ledger.fixes[0], render_ledger(ledger)


def test_memory_that_a_kept_fix_takes_is_said(trying: Trying) -> None:
    entry, said = tried(trying, 3 * 10**9, a=1.25)
    assert entry.status == "kept"
    assert entry.memory_bytes == pytest.approx(3e9, rel=0.01)
    assert "takes 3.0 GB more memory" in said


def test_what_processes_differ_by_is_not_said(trying: Trying) -> None:
    entry, said = tried(trying, 20 * 10**6, a=1.25)
    assert (entry.status, entry.memory_bytes) == ("kept", 0)
    assert "memory" not in said


def test_fix_that_leaves_nearly_no_memory_is_not_kept(trying: Trying) -> None:
    entry, _ = tried(trying, 13 * 10**9, a=1.25)
    assert entry.status == "rejected"
    assert "takes 15 GB of memory (2.01 GB without), and 16 GB are all" in entry.why


def test_one_process_that_took_far_more_decides_nothing(trying: Trying) -> None:
    class Once(Hungry):
        def __call__(self, arm: Any, place: Path, **rest: Any) -> Measurement:
            made = super().__call__(arm, place, **rest)
            if place.name.startswith("pair-02-"):
                assert made.census is not None
                assert made.census.tree_bytes is not None
                burst = made.census.tree_bytes + 13 * 10**9
                made = replace(made, census=replace(made.census, tree_bytes=burst))
            self.finished[place] = made
            return made

    ledger = trying(Once(3 * 10**9, a=1.25), ["a"])
    assert ledger.fixes[0].status == "kept"
    assert ledger.fixes[0].memory_bytes == pytest.approx(3e9, rel=0.01)


def test_on_top_of_others_it_is_looked_at_too(trying: Trying) -> None:
    ledger = trying(Hungry(13 * 10**9, a=1.2, b=1.5), ["a", "b"])
    assert {fix.name: fix.status for fix in ledger.fixes} == {"a": "rejected", "b": "kept"}
