"""In which order `hotloop bench effectiveness CONFIG` measures values, and what it does with a budget that ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.bench.each_alone import EachAlone
from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Diagnosis, Outcome, Parity, Steps, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.doctor.budget import BudgetTooSmall
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import Costs
from hotloop.doctor.trial_runner import OutOfBudget
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import SessionResult
from hotloop.tune.options import AUTO, Known
from hotloop.tune.runner import arm_name, value_of
from hotloop.tune.settings import Words

DECIDED: dict[float, Outcome] = {2.0: "improved", 0.5: "regressed"}
"""Any other ratio is never decided."""


FAILS, HANGS = 0.0, -1.0
"""In place of a ratio."""


def as_it_is(*args: Any, **how: Any) -> TriedFix:
    return next(each for each in args if isinstance(each, TriedFix))


class Runner:
    """Stands for the trials: a value multiplies the speed by its number in `speeds`; each pair takes a second."""

    must_confirm = False
    loss_steps = 20
    costs = Costs(0.5, 0.0)
    warned: list[str]
    total_steps = None
    budget_s: float | None = None

    def __init__(self, speeds: dict[str, float], place: Path, *, left_s: float, most: int | None):
        self.speeds, self.directory, self.left_s, self.most_pairs = speeds, place, left_s, most
        self.budget_s = left_s
        self.warned, self.learnt = [], list[list[str]]()
        self.warn = self.warned.append
        self.made: dict[str, int] = {}
        self.compared: list[tuple[str, int]] = []
        """A value, and the pairs that it has after that."""

    def with_fixes(self, name: str, fixes: list[Fix]) -> Arm:
        command: tuple[str, ...] = ("train", "c.yaml")
        for option, text in (fix.value for fix in fixes):
            command, _ = option.applied(command, {}, text)
        return Arm(arm_name(name), command, "step_clock")

    def timed(
        self, stacked: list[Fix], fixes: list[Fix], parity: Parity, **how: Any
    ) -> SessionResult:
        assert stacked == []
        (fix,) = fixes
        assert fix in how["group"]
        num = self._measured(fix, how["pairs_now"], how["others"])
        ratio = self.speeds[fix.name]
        self.compared.append((fix.name, num))
        outcome = DECIDED.get(ratio, "inconclusive") if num >= 4 else "inconclusive"
        found = Verdict(
            outcome, ratio, 0.9 * ratio, 1.1 * ratio, 0.95, parity, "a", "b", num_pairs=num,
            pair_ratios=(ratio,) * num,
        )  # fmt: skip
        run: Any = SimpleNamespace(
            records=[], census=None, plan=SimpleNamespace(warmup_steps=3, steps=10)
        )
        return SessionResult(found, ((run, run),), (), self.directory)

    def _measured(self, fix: Fix, pairs_now: int, others: list[Fix]) -> int:
        """A round takes half a second for each of its processes."""
        if (ratio := self.speeds[fix.name]) <= 0.0:
            self.left_s -= 10_000 * (ratio == HANGS)
            failure = OutOfBudget if ratio == HANGS else CommandFailed
            raise failure("`x` failed", returncode=1, arm=fix.name)
        while (num := self.made.get(fix.name, 0)) < pairs_now:
            beside = (each for each in others if self.made.get(each.name, 0) <= num)
            together = [fix, *(each for each in beside if self.speeds[each.name] > 0.0)]
            if (1 + len(together)) / 2 > self.left_s:
                break
            self.left_s -= (1 + len(together)) / 2
            self.made |= {each.name: num + 1 for each in together}
        return num

    def learn(self, fixes: Sequence[Fix]) -> Parity:
        """A run for losses takes half a second."""
        names = [each.name for each in fixes]
        if names not in self.learnt:
            self.left_s -= 0.5
            self.learnt.append(names)
        return Parity("same", "bitwise", reason="so it is")

    def plan_for(self, fixes: list[Fix]) -> TrialPlan:
        return TrialPlan(3, 10, 60.0)

    def needed_s(self, pairs: float, *, losses: float = 0, place: str = "", **how: Any) -> float:
        return losses + pairs - self.made.get(place.partition("-?")[0].replace("-", "="), 0)

    def place_of(self, name: str) -> Path:
        return self.directory / name

    def pays_for(self, seconds: float) -> bool:
        return seconds <= self.left_s

    def report(self, **changes: Any) -> None:
        pass

    def ledger(self, fixes: Any, kept: Any, together: Any, **rest: Any) -> Ledger:
        whole = together and together.verdict
        return Ledger(("train",), tuple(fixes), tuple(kept), whole, 3, 10, 1.0, None, **rest)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(
        speeds: dict[str, float], *, left_s: float = 1000.0, most: int | None = None, **before: Any
    ) -> tuple[Runner, Ledger]:
        runner = Runner(speeds, tmp_path, left_s=left_s, most=most)
        for name, value in before.items():
            setattr(runner, name, value)
        monkeypatch.setattr(EachAlone, "_parity", lambda self, asked: runner.learn(asked))
        monkeypatch.setattr(
            "hotloop.bench.each_alone.unfinished_runs",
            lambda runner, arm, fixes: int([f.name for f in fixes] not in runner.learnt),
        )
        monkeypatch.setattr("hotloop.bench.each_alone.with_costs", as_it_is)
        nothing_found = Diagnosis("balanced", Steps(9, 1, 0.1))

        def value(name: str) -> Fix:
            text = "a=1 b=1" if name == AUTO else name
            as_given = dict.fromkeys("abc", "0")
            option = Words(name.partition("=")[0], (text,), Known(""), "bitwise", as_given=as_given)
            return value_of(option, text, nothing_found, None)

        rounds = [[value(name) for name in speeds if (name == AUTO) == first] for first in (1, 0)]
        campaign = EachAlone(runner, rounds, lambda budget: f"again {budget}")  # type: ignore[arg-type]
        return runner, campaign.all()

    return call


def test_all_come_to_the_first_look_and_those_that_decided_nothing_go_on(measured: Any) -> None:
    runner, ledger = measured({AUTO: 2.0, "a=1": 0.5, "b=1": 1.1, "c=1": 0.9})
    # What looks slower ends at six, as more would only say how much.
    assert runner.compared == [
        (AUTO, 4), ("a=1", 4), ("b=1", 4), ("c=1", 4), ("b=1", 6), ("c=1", 6), ("b=1", 10),
    ]  # fmt: skip
    found = {each.name: each for each in ledger.fixes}
    assert found["a=1"].verdict.num_pairs == 4  # not stopped for being slow
    assert found["a=1"].why == "slower"
    assert found["b=1"].verdict.num_pairs == 10
    assert (ledger.kept, ledger.together) == ((AUTO,), found[AUTO].verdict)
    assert ledger.continue_with is None


def test_a_budget_that_ends_says_what_it_left_out(measured: Any) -> None:
    # Losses and rounds of all four would take 12 s up to the first look, of three 9.5 s.
    runner, ledger = measured({AUTO: 1.1, "a=1": 2.0, "b=1": 2.0, "c=1": 2.0}, left_s=10.5)
    assert runner.compared == [(AUTO, 4), ("a=1", 4), ("b=1", 4), (AUTO, 5)]
    found = {each.name: each for each in ledger.fixes}
    assert found["c=1"].status == "not_tried"
    assert found["c=1"].why == "open: out of budget before its first pair"
    # At most 5 of auto, then losses and 4 of c=1, each with a fifth of a process of the command: 5.9 s, and a quarter more.
    assert ledger.continue_with == "again 8s"


def test_what_four_pairs_of_each_take_is_said_before_anything_is_measured(measured: Any) -> None:
    runner, _ = measured({AUTO: 2.0, "a=1": 2.0})
    (said,) = runner.warned
    assert said.startswith("4 pairs of each take about 7s more: auto 4s, a=1 4s; what they do not")


def test_values_share_the_processes_of_the_command_as_given(measured: Any) -> None:
    runner, _ = measured(dict.fromkeys((AUTO, "a=1", "b=1", "c=1"), 2.0))
    # Losses of each; four rounds of five processes, where pairs of their own would be eight.
    assert runner.learnt == [[AUTO], ["a=1"], ["b=1"], ["c=1"]]
    assert runner.budget_s - runner.left_s == 4 * 0.5 + 4 * 5 * 0.5


def test_what_an_earlier_call_finished_stays_in_the_table_however_small_the_budget(
    measured: Any,
) -> None:
    made, learnt = {"b=1": 4}, [["a=1"], ["b=1"]]
    runner, ledger = measured(
        {AUTO: 1.1, "a=1": 1.1, "b=1": 2.0}, left_s=3, made=made, learnt=learnt
    )
    assert ("b=1", 4) in runner.compared
    assert [each.status for each in ledger.fixes] == ["stopped", "not_tried", "kept"]


def test_pairs_may_be_capped(measured: Any) -> None:
    runner, ledger = measured({AUTO: 1.1, "a=1": 1.1}, most=4)
    assert runner.compared == [(AUTO, 4), ("a=1", 4)]
    assert ledger.continue_with is None  # it was no budget that left them out


def test_what_fails_is_in_the_table_and_is_not_tried_again(measured: Any) -> None:
    runner, ledger = measured({AUTO: 2.0, "a=1": FAILS})
    assert runner.compared == [(AUTO, 4)]
    assert [each.status for each in ledger.fixes] == ["kept", "failed"]
    assert ledger.continue_with is None


def test_what_the_end_of_the_budget_cut_off_is_gone_on_with(measured: Any) -> None:
    _, ledger = measured({AUTO: HANGS, "a=1": 2.0})
    assert [each.why for each in ledger.fixes] == ["open: out of budget before its first pair"] * 2
    assert ledger.continue_with is not None


def test_a_budget_that_holds_no_pair_is_refused_with_one_that_does(measured: Any) -> None:
    with pytest.raises(
        BudgetTooSmall, match="a pair of runs with those for its losses takes about 3 s"
    ) as refused:
        measured({AUTO: 2.0}, left_s=2.5)
    assert "again 6s" in str(refused.value)
