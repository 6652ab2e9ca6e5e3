"""In which order `hotloop bench effectiveness CONFIG` measures values, and what it does with a budget that ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.bench.each_alone import EachAlone
from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Diagnosis, Outcome, Parity, Steps, Verdict
from hotloop.core.ledger import Ledger
from hotloop.doctor.budget import BudgetTooSmall
from hotloop.doctor.fixes import Fix
from hotloop.trial.arm import Arm
from hotloop.trial.session import SessionResult
from hotloop.tune.options import AUTO, Known
from hotloop.tune.runner import value_of
from hotloop.tune.settings import Words

DECIDED: dict[float, Outcome] = {2.0: "improved", 0.5: "regressed"}
"""Any other ratio is never decided."""


FAILS, HANGS = 0.0, -1.0
"""In place of a ratio."""


class Runner:
    """Stands for the trials: a value multiplies the speed by its number in `speeds`; each pair takes a second."""

    must_confirm = False
    plan = None
    budget_s: float | None = None

    def __init__(self, speeds: dict[str, float], place: Path, *, left_s: float, most: int | None):
        self.speeds, self.directory, self.left_s, self.most_pairs = speeds, place, left_s, most
        self.budget_s = left_s
        self.made: dict[str, int] = {}
        self.compared: list[tuple[str, int]] = []
        """A value, and the pairs that it has after that."""

    def with_fixes(self, name: str, fixes: list[Fix]) -> Arm:
        command: tuple[str, ...] = ("train", "c.yaml")
        for option, text in (fix.value for fix in fixes):
            command, _ = option.applied(command, {}, text)
        return Arm(name, command, "step_clock")

    def timed(
        self, stacked: list[Fix], fixes: list[Fix], parity: Parity, **how: Any
    ) -> SessionResult:
        assert stacked == []
        (fix,) = fixes
        if (ratio := self.speeds[fix.name]) <= 0.0:
            self.left_s -= 10_000 * (ratio == HANGS)
            raise CommandFailed("`x` failed", returncode=1, arm=fix.name)
        before = self.made.get(fix.name, 0)
        num = min(how["pairs_now"], before + int(self.left_s))
        self.left_s -= num - before
        self.made[fix.name] = num
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

    def needed_s(self, pairs: float, *, losses: float = 0, place: str = "", **how: Any) -> float:
        return losses + pairs - self.made.get(place.partition("-")[0], 0)

    def place_of(self, name: str) -> Path:
        return self.directory / name

    def pays_for(self, seconds: float) -> bool:
        return seconds <= self.left_s

    def was_cut_off(self, error: CommandFailed) -> bool:
        return self.left_s <= 0

    def report(self, **changes: Any) -> None:
        pass

    def ledger(self, fixes: Any, kept: Any, together: Any, **rest: Any) -> Ledger:
        whole = together and together.verdict
        return Ledger(("train",), tuple(fixes), tuple(kept), whole, 3, 10, 1.0, None, **rest)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(
        speeds: dict[str, float], *, left_s: float = 1000.0, most: int | None = None
    ) -> tuple[Runner, Ledger]:
        same = Parity("same", "bitwise")
        monkeypatch.setattr(EachAlone, "_parity", lambda self, asked: same)
        monkeypatch.setattr(
            "hotloop.bench.each_alone.with_costs", lambda runner, value, entry, result: entry
        )
        runner = Runner(speeds, tmp_path, left_s=left_s, most=most)
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
    runner, ledger = measured({AUTO: 2.0, "a=1": 0.5, "b=1": 1.1, "c=1": 0.9, "a=0": 1.2})
    # What the config has already, a=0, is not tried; what looks slower ends at six, as more would only say how much.
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
    runner, ledger = measured({AUTO: 1.1, "a=1": 2.0, "b=1": 2.0, "c=1": 2.0}, left_s=11)
    assert runner.compared == [(AUTO, 4), ("a=1", 4), ("b=1", 3)]
    found = {each.name: each for each in ledger.fixes}
    assert (found["b=1"].status, found["c=1"].status) == ("stopped", "not_tried")
    assert found["b=1"].why == "out of budget: 3 pairs showed 2.00x and 2.00x and 2.00x"
    assert found["c=1"].why == "out of budget before its first pair"
    # At most 6 of auto and 7 of b=1, then 4 and the losses of c=1: 18 s, and a quarter more.
    assert ledger.continue_with == "again 23s"


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
    assert [each.why for each in ledger.fixes] == ["out of budget before its first pair"] * 2
    assert ledger.continue_with is not None


def test_a_budget_that_holds_no_pair_is_refused_with_one_that_does(measured: Any) -> None:
    with pytest.raises(
        BudgetTooSmall, match="a pair of runs with those for its losses takes about 3 s"
    ) as refused:
        measured({AUTO: 2.0}, left_s=2.5)
    assert "again 6s" in str(refused.value)
