"""What is asked for is enough, what is left is used, and nothing is run twice: on a machine that is made up."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import simulated_trials
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from simulated_trials import START_S, STEP_S, Machine, Trying, product

from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.judgement import Parity
from hotloop.core.ledger import Ledger
from hotloop.core.measurement import Measurement, Plan
from hotloop.doctor.budget import by_gain_per_second, needed_s
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparison
from hotloop.doctor.trial_costs import LATE_S, Costs, budget_of
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.judge.looks import LOOKS
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.report.ledger import render_ledger
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.process import TIMED_OUT

NUMBER = itertools.count()
ANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[
        Phase.explicit,
        Phase.generate,
    ],  # a smaller example takes minutes to find, and says no more
)


def again(budget: str) -> str:
    return f"hotloop doctor --out RUN --budget {budget} -- python train.py"


def seconds_of(command: str) -> float:
    """The budget that a command names."""
    found = re.search(r"--budget (\d+)([smh])", command)
    assert found is not None
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


class Slower(Machine):
    """Each process takes so many times what the diagnosing run lets expect; one past its time is ended."""

    def __init__(self, times: Sequence[float], **gains: float) -> None:
        super().__init__(product(**gains))
        self.scatter = 0.0
        self.times = itertools.cycle(times)
        self.factor = 1.0
        single = self.gain
        self.gain = lambda fixes, session: single(fixes, session) / self.factor

    def __call__(self, arm: Arm, place: Path, *, plan: Plan, **rest: Any) -> Measurement:
        if place in self.finished:
            return self.finished[place]
        self.factor = next(self.times)
        begun = self.now
        measured = super().__call__(arm, place, plan=plan, **rest)
        starting = (self.factor - 1) * START_S
        self.now += starting
        if self.now - begun > plan.timeout_s:
            self.now = begun + plan.timeout_s
            self.places.pop()
            del self.finished[place]
            shutil.rmtree(place)
            raise CommandFailed(
                f"`{arm.name}` ran past its {plan.timeout_s:.0f} s",
                returncode=TIMED_OUT,
                arm=arm.name,
            )
        self.finished[place] = replace(measured, process_s=(measured.process_s or 0.0) + starting)
        return self.finished[place]


def refused(trying: Trying, machine: Machine, names: list[str], **more: Any) -> float:
    """The sum that is asked for where a second is given."""
    with pytest.raises(UsageError, match="testing one fix here needs about") as error:
        trying(machine, names, budget_s=1.0, again=again, **more)
    assert machine.places == []
    assert error.value.do is not None
    assert again("").split("--budget")[0] in error.value.do
    return seconds_of(error.value.do)


def decided(ledger: Ledger, name: str) -> bool:
    """Whether a fix was timed to its first look; and confirmed, where it was faster."""
    entry = next(fix for fix in ledger.fixes if fix.name == name)
    if entry.why.startswith("not tried further: 2 pairs showed"):
        return True  # screened
    if entry.status in ("not_tried", "stopped"):
        verdict = entry.verdict  # that more pairs may decide
        is_timed = verdict is not None and verdict.num_pairs >= LOOKS[0]
        return is_timed and verdict is not None and verdict.outcome == "inconclusive"
    return entry.status != "kept" or ledger.together is not None


@ANY
@example(
    times=[1.9, 1.5, 0.8253150262605897, 1.3907709950765859, 0.9978343260268835],
    gain=1.3,
    others=0,
    seen_steps=40,
    toggleable=True,
)
@example(times=[2.0], gain=0.9, others=0, seen_steps=40, toggleable=False)
@given(
    times=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30),
    gain=st.sampled_from([0.9, 1.0, 1.3]),
    others=st.integers(0, 3),
    seen_steps=st.sampled_from([40, 60, 200, 2000]),
    toggleable=st.booleans(),
)
def test_what_is_asked_for_is_enough_for_processes_that_take_up_to_twice_as_long(
    trying: Trying, times: list[float], gain: float, others: int, seen_steps: int, toggleable: bool
) -> None:
    names = ["a", *(f"other_{number}" for number in range(others))]
    gains = {"a": gain, **dict.fromkeys(names[1:], 1.0)}
    # Those with a fix that makes them slower as well: none takes more than twice as long.
    machine = Slower([min(each, 2.0 * gain) for each in times], **gains)
    machine.toggleable = frozenset({"a"}) if toggleable else frozenset()
    more = {"directory": f"run-{next(NUMBER)}", "seen_steps": seen_steps}
    asked = refused(trying, machine, names, **more)
    ledger = trying(machine, names, budget_s=asked, again=again, **more)
    assert any(decided(ledger, name) for name in names)


@ANY
@example(
    times=[5.726749837354402, 4.242293556245304, 4.242293556245304],
    gains=[1.3, 1.3, 1.02],
    first=0.3,
)
@example(
    times=[0.308, 1.5, 3.06, 0.837, 3.68, 0.805, 1.1, 4.71],
    gains=[1.3, 1.3, 1.3, 1.02],
    first=1.4511,
)
@example(
    times=[4.24, 0.412, 2.55, 0.924, 5.30, 1.45, 5.0, 1.09, 2.08, 4.86, 5.14, 5.20],
    gains=[1.3, 1.3],
    first=0.323,
)
@example(
    times=[1.747450644123041, 5.20313211079653, 3.037420852942981, 1.1339853037473433],
    gains=[0.9, 0.9, 0.9, 0.9],
    first=0.6466476494553308,
)
@example(
    times=[5.901824121305303, 4.609755755412319],
    gains=[1.3, 1.02, 1.0, 1.02],
    first=0.7866989618591667,
)
@example(
    times=[5.901871733116622, 4.677739488289812, 5.8385677390272, 5.2404588485275285],
    gains=[1.3, 1.3, 1.0, 1.0],
    first=1.11076849509906,
)
@example(
    times=[5.90188981680291, 5.819432158646566],
    gains=[1.3, 1.02, 0.9, 1.02],
    first=0.9845224681232134,
)
@example(times=[0.3, 4.644876603109221], gains=[0.9], first=0.3)
@given(
    times=st.lists(st.floats(0.3, 6.0), min_size=1, max_size=30),
    gains=st.lists(st.sampled_from([0.9, 1.0, 1.02, 1.3]), min_size=1, max_size=4),
    first=st.floats(0.3, 2.0),
)
def test_each_answer_asks_for_no_more_before_what_it_got_is_used_and_repeats_nothing(
    trying: Trying, times: list[float], gains: list[float], first: float
) -> None:
    """On any machine: calls that follow what is asked come to an end, in which every fix is decided."""
    names = [f"fix_{number}" for number in range(len(gains))]
    machine = Slower(times, **dict(zip(names, gains, strict=True)))
    more = {"directory": f"run-{next(NUMBER)}", "again": again}
    budget_s = first * refused(trying, machine, names, directory=more["directory"])
    for _ in range(12):
        begun, made = machine.now, len(machine.places)
        try:
            ledger = trying(machine, names, budget_s=budget_s, **more)
        except UsageError as error:
            assert machine.now == begun
            asked = seconds_of(error.do or "")
        else:
            if ledger.continue_with is None:
                break
            assert machine.now - begun <= budget_s + LATE_S + 1e-6
            assert not any(fix.status == "failed" for fix in ledger.fixes)
            asked = seconds_of(ledger.continue_with)
            assert len(machine.places) > made or asked > budget_s
            assert not any("pairs were measured" in fix.why for fix in ledger.fixes)
            longest = 6.0 * (START_S + 60 * STEP_S)
            assert asked <= budget_s or machine.now - begun >= budget_s - 2 * longest
        budget_s = asked
    else:
        pytest.fail("it never came to an end")
    assert len(machine.places) == len(set(machine.places))
    loss_runs = [place for place in machine.places if "/losses-" in place]
    assert sum(place.startswith("baseline/") for place in loss_runs) == 1  # all equal
    for fix in ledger.fixes:
        said = ("not tried further", "tries it all the same")
        is_open = fix.status in ("not_tried", "stopped")
        assert not is_open or any(words in fix.why for words in said)


@pytest.mark.parametrize(
    ("name", "losses_s", "more_s"),
    [("prefetch", 2 * 8, 0), ("fused_optimizer", 5 * 8, 0), ("precision", 5 * 8 + 2 * 42, 42)],
)
def test_budget_holds_the_runs_that_calibrate_and_the_longer_ones(
    tmp_path: Path, name: str, losses_s: float, more_s: float
) -> None:
    """more_s: of edited files, whose losses are compared over as many steps."""
    longer, usual = (
        TrialRunner(
            Arm("baseline", ("python",), "step_clock", workdir=tmp_path),
            TrialPlan(3, 20, timeout_s=120.0, in_place=True),
            *(Costs(2.0, 0.1), tmp_path / "doctor", 60, 400),
            learnt_steps=steps,
        )
        for steps in (400, None)
    )
    fix = Fix(CATALOGUE[name], True, ("HL000",), 1.5)
    comparison = LossComparison(Parity("same", None))
    known_s = needed_s(longer, fix, comparison)
    assert needed_s(longer, fix) - known_s == pytest.approx(losses_s)
    assert known_s - needed_s(usual, fix, comparison) == pytest.approx(more_s)


@pytest.mark.parametrize(
    ("start_s", "step_s", "steps"), [(0.5, 0.02, 20), (10.0, 0.02, 250), (10.0, 1.0, 10)]
)
def test_steps_that_take_little_beside_the_start_are_not_cut_further(
    tmp_path: Path, start_s: float, step_s: float, steps: int
) -> None:
    runner = TrialRunner(
        Arm("baseline", ("python",), "step_clock", workdir=tmp_path),
        TrialPlan(3, 1000, timeout_s=120.0, in_place=True),
        *(Costs(start_s, step_s), tmp_path / "doctor", 60, 2000),
        budget_s=60.0,
    )
    runner.fit(lambda: 1000.0)
    assert runner.plan.steps == steps


@pytest.mark.parametrize(
    ("budget_s", "first"), [(250.0, "fused_optimizer"), (2000.0, "item_cache")]
)
def test_what_fits_into_the_budget_comes_before_what_promises_more(
    tmp_path: Path, budget_s: float, first: str
) -> None:
    runner = TrialRunner(
        Arm("baseline", ("python",), "step_clock", workdir=tmp_path),
        TrialPlan(3, 60, timeout_s=120.0, in_place=True),
        *(Costs(2.0, 0.05), tmp_path / "doctor", 60, 3000),
        budget_s=budget_s,
    )
    kept = Fix(CATALOGUE["item_cache"], 1024, ("HL102",), 9.0, warmup_steps=900)
    fused = Fix(CATALOGUE["fused_optimizer"], True, ("HL401",), 1.2)
    plan = runner.plan
    assert by_gain_per_second(runner, [fused, kept])[0].name == first
    assert runner.plan == plan


@pytest.mark.parametrize("share", [0.4, 0.5, 0.55, 0.6])
def test_a_budget_that_is_called_short_is_below_what_is_named(trying: Trying, share: float) -> None:
    machine = Slower([1.0], a=1.3)
    said: list[str] = []
    trying(
        machine,
        ["a"],
        budget_s=share * refused(trying, machine, ["a"]),
        again=again,
        warn=said.append,
    )
    for text in said:
        left, is_short, takes = text.partition(
            " s may not be enough to prove a fix, which takes about "
        )
        assert not is_short or float(left) < budget_of(takes.partition(":")[0])


def test_budget_that_proves_nothing_is_used_and_what_it_measured_counts(trying: Trying) -> None:
    """As long as losses and a pair fit, it is not refused."""
    machine = Slower([1.0], a=1.3)
    machine.scatter = 0.002
    asked = refused(trying, machine, ["a"])
    said: list[str] = []
    ledger = trying(machine, ["a"], budget_s=asked / 3, again=again, warn=said.append)
    assert any("may not be enough to prove a fix" in text for text in said)
    assert ledger.kept == ()
    assert any("/pair-" in place for place in machine.places)
    assert ledger.continue_with is not None
    assert seconds_of(ledger.continue_with) <= asked
    begun = machine.now
    ledger = trying(machine, ["a"], budget_s=seconds_of(ledger.continue_with), again=again)
    assert ledger.kept == ("a",)
    assert machine.now - begun < asked
    assert len(machine.places) == len(set(machine.places))


def test_what_the_budget_left_out_is_said_with_used_left_and_the_command(trying: Trying) -> None:
    machine = Slower([4.0], a=1.3, b=1.0)
    asked = refused(trying, machine, ["a", "b"])
    ledger = trying(machine, ["a", "b"], budget_s=asked, again=again)
    entry = next(fix for fix in ledger.fixes if fix.status in ("not_tried", "stopped"))
    assert re.search(
        rf"out of budget: \d+ s of {asked:.0f} s used; it needs about \d+ s more", entry.why
    )
    assert ledger.continue_with is not None
    assert f"  go on with: {ledger.continue_with}" in render_ledger(ledger)


def test_fix_that_goes_on_and_off_is_begun_with_a_budget_for_one_process_a_pair(
    trying: Trying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_trials, "START_S", 20.0)
    machine = Slower([1.0], a=1.3)
    machine.scatter = 0.002
    machine.toggleable = frozenset({"a"})
    ledger = trying(machine, ["a"], budget_s=450.0, seen_steps=200)
    assert ledger.kept == ("a",)
    assert ledger.together is not None
    assert ledger.together.switched


def test_losses_of_a_fix_that_begins_late_are_not_begun_where_they_do_not_fit(
    trying: Trying,
) -> None:
    machine = Slower([1.0], a=1.0, b=2.0)
    late = {"b": 400}  # two runs of 44 s
    ledger = trying(machine, ["a", "b"], late=late, seen_steps=600, budget_s=120.0, again=again)
    assert any(place.startswith("a/") for place in machine.places)
    assert not any(place.startswith("b/") for place in machine.places)
    assert machine.now <= 120.0
    assert ledger.continue_with is not None
    assert seconds_of(ledger.continue_with) >= 88


@pytest.mark.parametrize(
    ("gain", "edits", "part", "kept"), [(1.1, (), 0.5, ("a",)), (1.0, ("a",), 0.6, ())]
)
def test_what_looks_faster_where_the_budget_ends_is_gone_on_with_until_a_look_decides(
    trying: Trying, gain: float, edits: tuple[str, ...], part: float, kept: tuple[str, ...]
) -> None:
    machine = Slower([1.0, 1.0, 1.0, 1.05], a=gain)
    asked = refused(trying, machine, ["a"], edits=edits)
    first = trying(machine, ["a"], budget_s=part * asked, again=again, edits=edits)
    (entry,) = first.fixes
    assert entry.verdict is not None
    assert entry.status == "stopped"
    assert re.match(r"out of budget: inconclusive .*; so far \d pairs showed ", entry.why)
    assert LOOKS[0] <= entry.verdict.num_pairs < LOOKS[1]
    assert first.continue_with is not None
    made, budget_s = len(machine.places), seconds_of(first.continue_with)
    last = trying(machine, ["a"], budget_s=budget_s, again=again, edits=edits)
    assert len(machine.places) > made
    assert (last.kept, last.continue_with) == (kept, None)


def test_gain_that_was_proven_stands_in_a_later_call_that_has_no_time(trying: Trying) -> None:
    machine = Machine(product(a=1.5))
    more = {"directory": f"run-{next(NUMBER)}", "again": again}
    first = trying(machine, ["a"], **more)
    assert first.kept == ("a",)
    begun, made = machine.now, len(machine.places)
    later = trying(machine, ["a"], budget_s=0.5, **more)
    assert (later.kept, later.fixes[0].verdict) == (("a",), first.fixes[0].verdict)
    assert (machine.now, len(machine.places)) == (begun, made)
