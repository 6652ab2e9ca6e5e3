"""`hotloop doctor --scorecard`"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.files import write_json
from hotloop.core.judgement import Interval, Parity, Verdict
from hotloop.core.ledger import Ledger, TriedFix

Command = Callable[..., tuple[int, str, str]]


def store(directory: Path, ratio: float) -> None:
    parity = Parity("same", "bitwise")
    verdict = Verdict("improved", ratio, ratio - 0.01, ratio + 0.01, 0.95, parity, "a", "b")
    fix = TriedFix(
        "fused_optimizer", True, "kept", "", predicted=Interval(1.1, 1.05, 1.15), verdict=verdict
    )
    directory.mkdir(parents=True)
    write_json(
        directory / "ledger.json",
        Ledger(("python", "train.py"), (fix,), (fix.name,), verdict, 3, 20, 1.0, None),
    )


def test_reads_all_runs_below_a_place(hotloop: Command, here: Path) -> None:
    store(here / "runs" / "doctor-one", 1.08)
    store(here / "runs" / "doctor-two", 1.50)
    code, said, _ = hotloop("doctor", "--scorecard", "--json", "card.json")
    assert code == 0
    assert said.startswith("50 % of 2 kept fixes came out inside the interval")
    assert "predictions are 0.10 wide and the verified gains 0.29" in said
    assert "inside   fused_optimizer  kept         predicted 1.05 to 1.15, verified 1.08x" in said
    card = json.loads((here / "card.json").read_text())
    assert (card["num_kept"], card["coverage"]) == (2, 0.5)
    _, said, _ = hotloop("doctor", "--scorecard", "runs/doctor-one")
    assert said.startswith("100 % of 1 kept fixes")


@pytest.mark.parametrize(
    ("place", "what"), [("nowhere", "no such directory"), (".", "no fixes were tried there")]
)
def test_where_there_is_nothing_it_says_so(
    place: str,
    what: str,
    hotloop: Command,
    here: Path,
) -> None:
    code, _, err = hotloop("doctor", "--scorecard", place)
    assert code == 2
    assert what in err


def test_a_damaged_ledger_is_named(hotloop: Command, here: Path) -> None:
    store(here / "runs" / "doctor-one", 1.08)
    path = here / "runs" / "doctor-one" / "ledger.json"
    path.write_text(path.read_text()[:100])
    code, _, err = hotloop("doctor", "--scorecard")
    assert code == 2
    assert "ledger.json" in err
    assert "Traceback" not in err


def test_a_ledger_that_is_named_twice_counts_once(hotloop: Command, here: Path) -> None:
    store(here / "runs" / "doctor-one", 1.08)
    (here / "linked").symlink_to("runs")
    places = ["runs", "./runs", "runs/doctor-one", "linked", str(here / "runs")]
    _, said, _ = hotloop("doctor", "--scorecard", *places)
    assert "of 1 kept fixes" in said
    assert "1 trials in 1 runs" in said


@pytest.mark.parametrize(
    "option",
    [
        ["--no-try"],
        ["--budget", "5m"],
        ["--only", "compile"],
        ["--out", "there"],
        ["--level", "1.05"],
    ],
)
def test_options_of_a_run_are_refused_beside_it(
    option: list[str],
    hotloop: Command,
    here: Path,
) -> None:
    store(here / "runs" / "doctor-one", 1.08)
    code, _, err = hotloop("doctor", "--scorecard", *option)
    assert code == 2
    assert f"{option[0]} has no effect with --scorecard" in err
