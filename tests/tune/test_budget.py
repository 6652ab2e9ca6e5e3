"""What `hotloop tune` does with a budget, on a machine that is made up: its clock is handed in."""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import simulated_trials
from simulated_trials import process, storage_below

from hotloop.core.child import IMPORTS_FILE, ROUNDING_NOISE
from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.judgement import Diagnosis, Finding, Steps
from hotloop.core.ledger import Ledger
from hotloop.core.measurement import Measurement, Plan
from hotloop.doctor import starting_point, trial_runner
from hotloop.doctor.trial_costs import LATE_S, budget_of
from hotloop.judge.looks import LOOKS
from hotloop.report.ledger import ledger_answer
from hotloop.trial import session
from hotloop.trial.arm import Arm
from hotloop.trial.measure import MEASUREMENT_FILE, store_measurement
from hotloop.trial.process import TIMED_OUT
from hotloop.tune import program
from hotloop.tune.campaign import Campaign
from hotloop.tune.options import options_of

STEP_S, START_S, SEEN_STEPS = 0.9, 6.0, 34
"""Examined for 30 s."""


class Machine:
    """Deals processes that take so many `times` what the examination lets expect, in turn; `--fast=1` steps 1.9 times as fast.

    Its losses differ by rounding, as those of the command with rounding noise do, so that runs with such noise decide.
    """

    def __init__(self, times: Sequence[float] = (1.0,)) -> None:
        self.now = 0.0
        self.times = itertools.cycle(times)
        self.random = random.Random(1)
        self.finished: dict[Path, Measurement] = {}
        self.begun: list[str] = []
        self.speeds = {"1": 1.9}
        self.confirming: Sequence[float] = ()
        """Times as fast as else are the first of the pairs that confirm."""
        self.choosing: Sequence[float] = ()
        """The same of the other pairs."""
        self.fails: Callable[[Arm, Path], str] = lambda arm, place: ""
        """What a process says that ends at once; nothing of one that runs."""

    def __call__(self, arm: Arm, place: Path, *, plan: Plan, **rest: Any) -> Measurement:
        if place in self.finished:
            return self.finished[place]
        if said := self.fails(arm, place):
            what = f"`{arm.name}` ended with exit code 1"
            raise CommandFailed(what, do=said, returncode=1, arm=arm.name)
        value, is_noisy = arm.command[-1].removeprefix("--fast="), ROUNDING_NOISE in arm.env
        is_fast, speed = value != "0", self.speeds.get(value, 1.0)
        is_fresh = place.parent.name.startswith("together-")
        uneven = self.confirming if is_fresh else self.choosing
        if is_fast and place.name.startswith("pair-"):
            speed *= dict(enumerate(uneven, 1)).get(int(place.name[5:7]), 1.0)
        step_s = self.random.gauss(1.0, 0.003) * STEP_S / speed
        wrong = 1 + 1e-4 * is_fast + 2e-4 * is_noisy
        measured = process(step_s, plan, arm.name, wrong)
        takes_s = next(self.times) * (START_S + step_s * len(measured.records))
        if takes_s > plan.timeout_s:
            self.now += plan.timeout_s
            raise CommandFailed(f"`{arm.name}` was ended", returncode=TIMED_OUT, arm=arm.name)
        self.now += takes_s
        self.begun.append(str(place))
        place.mkdir(parents=True, exist_ok=True)
        (place / MEASUREMENT_FILE).write_text("{}")
        self.finished[place] = replace(measured, process_s=takes_s)
        return self.finished[place]


Tuning = Callable[..., Ledger]


@pytest.fixture
def tuning(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Tuning:
    storage = storage_below(tmp_path_factory.getbasetemp())
    monkeypatch.setattr(starting_point, "storage_for", lambda *directories: storage)
    monkeypatch.setattr(simulated_trials, "START_S", START_S)
    # Of the directory, which is another one each time: two uneven pairs may count otherwise in one order of a hundred.
    monkeypatch.setattr(trial_runner, "crc32", lambda place: 1)
    work, directory = tmp_path / "work", tmp_path / "run"
    work.mkdir()
    directory.mkdir()
    seen = process(STEP_S, Plan(3, SEEN_STEPS - 3, 60.0), "script")
    store_measurement(directory / MEASUREMENT_FILE, seen)

    def run(
        machine: Machine,
        budget_s: float,
        values: str = "1",
        said: list[str] | None = None,
        vary: Sequence[str] = (),
        findings: Sequence[Finding] = (),
        **rest: Any,
    ) -> Ledger:
        monkeypatch.setattr(session, "trial", machine)
        monkeypatch.setattr(trial_runner, "trial", machine)
        clock = SimpleNamespace(monotonic=lambda: machine.now)
        monkeypatch.setattr(trial_runner, "time", clock)
        command = (sys.executable, "train.py", "--fast=0")
        vary = [f"--fast={values}", *vary]
        options = options_of(vary, ["fast=reduction_order"], [], command)
        examined = SimpleNamespace(
            directory=directory,
            run=SimpleNamespace(command=command, workdir=str(work)),
            diagnosis=Diagnosis("balanced", Steps(9, 1, 0.1), findings=tuple(findings)),
        )
        again = "hotloop tune --budget {}".format
        warn = [].append if said is None else said.append
        how = {"budget_s": budget_s, "warn": warn, **rest}
        return program.tune(examined, [options], again, **how)  # type: ignore[arg-type]

    return run


def seconds_of(command: str | None) -> float:
    found = re.search(r"--budget (\w+)", command or "")
    assert found is not None
    return budget_of(found[1])


@pytest.mark.parametrize("budget_s", [120.0, 180.0, 230.0, 300.0, 540.0])
@pytest.mark.parametrize("times", [(1.0,), (1.3, 0.9), (1.0, 1.0, 1.0, 2.5), (2.0, 4.0, 1.0)])
def test_no_process_outlasts_the_budget_and_none_that_it_ended_is_a_reason(
    tuning: Tuning, budget_s: float, times: Sequence[float]
) -> None:
    machine = Machine(times)
    (fix,) = tuning(machine, budget_s).fixes
    assert machine.now <= budget_s + LATE_S
    assert fix.status in ("kept", "stopped", "undecided", "not_tried")


def test_what_is_twice_as_fast_is_proven_within_the_five_minutes_of_a_user(tuning: Tuning) -> None:
    """70 s of them went into the examination."""
    machine = Machine()
    ledger = tuning(machine, 230.0)
    assert ledger.kept == ("--fast=1",)
    assert ledger.together is not None
    assert ledger.together.parity.result == "within_noise"
    assert ledger.continue_with is None


def test_what_a_budget_leaves_open_is_told_before_and_after_and_the_command_proves_it(
    tuning: Tuning,
) -> None:
    machine = Machine()
    said: list[str] = []
    ledger = tuning(machine, 120.0, said=said)
    assert ledger.kept == ()
    assert any("may not be enough to prove `--fast=1`" in text for text in said)
    (fix,) = ledger.fixes
    assert fix.status == "stopped"
    told = r"2 pairs showed 1\.\d+x and 1\.\d+x, and whether it learns the same is not known yet"
    assert re.search(told, fix.why)
    assert any("/losses-" in place for place in machine.begun)  # what was left was used
    begun = machine.now
    budget_s = seconds_of(ledger.continue_with)
    ledger = tuning(machine, budget_s)
    assert ledger.kept == ("--fast=1",)
    assert machine.now - begun <= budget_s
    assert len(machine.begun) == len(set(machine.begun))
    assert math.isclose(ledger.wall_s, machine.now - begun)


UNEVEN = (1.0, 0.55)
"""One pair in which the gain is gone, whatever the order of its arms: four pairs decide nothing, six do."""


def test_a_confirmation_that_the_budget_ended_is_said_to_be_open_and_taken_up_again(
    tuning: Tuning,
) -> None:
    machine = Machine()
    machine.confirming = UNEVEN
    ledger = tuning(machine, 360.0, "1,2")
    (fix, _) = ledger.fixes
    assert ledger.kept == ()
    assert ledger.together is not None
    assert ledger.together.num_pairs in (4, 5)
    told = r"but not confirmed yet: out of budget \([45] pairs showed [\d.]+x to [\d.]+x\)$"
    assert fix.status == "stopped"
    assert re.search(told, fix.why)
    assert ledger_answer(ledger) == "No value is proven yet: the budget ended first."
    begun, made, budget_s = machine.now, len(machine.begun), seconds_of(ledger.continue_with)
    last = tuning(machine, budget_s, "1,2")
    assert (last.kept, last.continue_with) == (("--fast=1",), None)
    assert machine.now - begun <= budget_s
    assert len(machine.begun) == len(set(machine.begun))
    missing = LOOKS[1] - ledger.together.num_pairs
    assert sum("/together-" in place for place in machine.begun[made:]) == 2 * missing
    made = len(machine.begun)
    assert tuning(machine, 1.0, "1,2").kept == ("--fast=1",)  # what is proven needs no time
    assert len(machine.begun) == made


@pytest.mark.parametrize("is_given", [True, False])
def test_a_failure_of_the_command_as_given_says_nothing_of_what_it_confirms(
    tuning: Tuning, is_given: bool
) -> None:
    machine = Machine()
    failed: list[str] = []

    def fails(arm: Arm, place: Path) -> str:
        if not place.parent.name.startswith("together-") or failed:
            return ""
        if (arm.name == "baseline") != is_given:
            return ""
        failed.append(arm.name)
        return "RuntimeError: its port is in use"

    machine.fails = fails
    ledger = tuning(machine, 3000.0, "1,2")
    fix = ledger.fixes[0]
    assert failed
    assert (ledger.kept, ledger.together) == ((), None)
    assert fix.status == ("stopped" if is_given else "rejected")
    why = "ended with exit code 1: RuntimeError: its port is in use"
    beside = f"not confirmed yet: the command as given failed beside it: {why}"
    assert fix.why.endswith(beside if is_given else f"together it failed: {why}")
    assert ledger_answer(ledger) == "2 values tested, none proven faster."
    assert tuning(machine, 3000.0, "1,2").kept == ("--fast=1",)


def test_a_confirmation_with_all_its_pairs_that_shows_nothing_is_no_matter_of_time(
    tuning: Tuning,
) -> None:
    machine = Machine()
    ratios = [8.0 if number in (2, 8) else 1.03 for number in range(1, LOOKS[-1] + 1)]
    machine.confirming = [each / machine.speeds["1"] for each in ratios]
    ledger = tuning(machine, 3000.0, "1,2")
    (fix, _) = ledger.fixes
    assert ledger.together is not None
    assert ledger.together.num_pairs == LOOKS[-1]
    assert fix.status == "undecided"
    assert "fresh pairs do not confirm it: inconclusive" in fix.why
    assert (ledger.kept, ledger.continue_with) == ((), None)
    assert ledger_answer(ledger) == "2 values tested, none proven faster."


def test_pairs_that_the_budget_ended_before_their_last_look_are_gone_on_with(
    tuning: Tuning,
) -> None:
    """Of the only value: its own pairs are its proof."""
    machine = Machine()
    machine.choosing = UNEVEN
    ledger = tuning(machine, 240.0)
    (fix,) = ledger.fixes
    assert fix.verdict is not None
    assert LOOKS[0] <= fix.verdict.num_pairs < LOOKS[1]
    assert fix.status == "stopped"
    assert re.match(r"out of budget: inconclusive .*; so far [45] pairs showed ", fix.why)
    begun, budget_s = machine.now, seconds_of(ledger.continue_with)
    last = tuning(machine, budget_s)
    assert (last.kept, last.continue_with) == (("--fast=1",), None)
    assert machine.now - begun <= budget_s


def test_a_value_that_waits_for_the_proof_of_another_is_told_why(tuning: Tuning) -> None:
    ledger = tuning(Machine(), 400.0, "1,2")
    (_, fix) = ledger.fixes
    assert fix.status == "not_tried"
    found = re.fullmatch(
        r"out of budget: its first pairs and those that prove --fast=1 take about (\d+) s, and (\d+) s were left",
        fix.why,
    )
    assert found is not None
    assert int(found[1]) > int(found[2]) > 100
    assert seconds_of(ledger.continue_with) >= int(found[1])


@pytest.mark.parametrize(
    ("compiling", "feeding", "order"),
    [
        (1.4, 1.3, ["--num-workers=2", "--compile on"]),  # which takes 30 s more for its trial
        (1.6, 1.3, ["--compile on", "--num-workers=2"]),
        (1.0, 1.1, ["--num-workers=2"]),
    ],
)
def test_what_promises_most_for_the_time_of_its_trial_comes_first(
    tuning: Tuning, compiling: float, feeding: float, order: list[str]
) -> None:
    found = [
        Finding(code, code, gain)
        for code, gain in (("HL302", compiling), ("HL101", feeding))
        if gain > 1
    ]
    vary = ["--compile", "--pin-memory", "--num-workers=2"]
    orders = []

    class First(Campaign):
        def all(self) -> Ledger:
            orders.append([each.name for each in self.values])
            raise InterruptedError

    for _ in range(2):  # its steps are known by then
        with pytest.raises(InterruptedError):
            tuning(Machine(), 900.0, vary=vary, findings=found, campaign=First)
    first, again = orders
    assert first[: len(order)] == order
    # What nothing asks for stays as it was given.
    rest = [each for each in ("--fast=1", "--compile on", "--pin-memory on") if each not in order]
    assert first[len(order) :] == rest
    assert again == first


def test_a_call_that_is_refused_leaves_what_the_one_that_measures_forks_from(
    tuning: Tuning, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    (directory / IMPORTS_FILE).write_text('{"modules": {"torch": "/x"}, "variables": {}}')
    place = directory / "trials" / "fork-servers" / "of-the-first"
    place.mkdir(parents=True)
    with (
        session.alone_in(directory),
        pytest.raises(UsageError, match="another hotloop is measuring"),
    ):
        tuning(Machine(), 300.0)
    assert place.is_dir()
