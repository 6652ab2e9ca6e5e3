"""In which order `hotloop tune` tries values, against what, and what it says of its choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.core.child import LONGEST_FIRST
from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Diagnosis, Parity, Steps, Verdict
from hotloop.core.settings import load_settings
from hotloop.doctor.fix_stack import ERROR_ON_TOP
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import Costs
from hotloop.doctor.trial_runner import OutOfBudget
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.process import TIMED_OUT
from hotloop.trial.session import SessionResult
from hotloop.tune import settings
from hotloop.tune.campaign import BATCH, DEPEND, Campaign, other_speed
from hotloop.tune.options import Known, options_of
from hotloop.tune.runner import arm_name, value_of
from hotloop.tune.settings import Words, options_for, varied

PLAIN = Path(__file__).parents[2] / "configs/quickstart-plain.yaml"


def verdict(seconds: float | None) -> Verdict:
    return Verdict(
        "inconclusive", 1.0, 0.8, 1.2, 0.95, Parity("not_checked", None), "baseline", "values",
        baseline_s_per_work=seconds,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (0.2, 0.1, "was 2.0 times faster by then"),
        (0.1, 0.25, "was 2.5 times slower by then"),
        (0.1, 0.14, ""),
        (0.14, 0.1, ""),
        (None, 0.1, ""),
        (0.1, None, ""),
    ],
)
def test_a_machine_that_has_become_another_is_told(
    before: float | None, now: float | None, said: str
) -> None:
    found = other_speed(verdict(before), verdict(now))
    assert said in found
    assert bool(found) == bool(said)


class Runner:
    """Stands for the trials: a value multiplies the speed by its number in `speeds`."""

    budget_s = None
    left_s = float("inf")
    must_confirm = False
    unpaid_s = 0.0

    def __init__(self, speeds: dict[str, float], tmp_path: Path) -> None:
        self.speeds, self.directory = speeds, tmp_path
        self.compared: list[tuple[list[str], list[str], int | None]] = []
        self.levels: list[Sequence[float] | None] = []
        self.shown: dict[str, Any] = {}
        self.soaked: list[tuple[tuple[str, ...], int]] = []
        self.soak: CommandFailed | None = None
        """How that ends."""
        self.first_pairs: dict[str, Any] = {}
        """Of the first process that was timed with each value: it compiled."""
        self.costs_of: dict[str, Any] = {}
        """The pair whose start says what each value costs there."""

    def with_fixes(self, name: str, fixes: list[Fix]) -> Arm:
        command: tuple[str, ...] = ("train", "c.yaml")
        for option, text in (fix.value for fix in fixes):
            command, _ = option.applied(command, {}, text)
        return Arm(arm_name(name), command, "step_clock")

    def timed(
        self, stacked: list[Fix], fixes: list[Fix], parity: Parity, **how: Any
    ) -> SessionResult:
        self.compared.append(
            ([f.name for f in stacked], [f.name for f in fixes], how.get("pairs_now"))
        )
        self.levels.append(how.get("alpha"))
        ratio = 1.0
        for fix in fixes[len(stacked) :]:
            ratio *= self.speeds[fix.name]
        num = how.get("pairs_now") or 4
        outcome: Any = "improved" if ratio > 1 else "regressed"
        found = Verdict(
            outcome, ratio, 0.99 * ratio, 1.01 * ratio, 0.95, parity, "a", "b", num_pairs=num,
            pair_ratios=(ratio,) * num,
        )  # fmt: skip
        run = SimpleNamespace(
            records=[], census=None, plan=SimpleNamespace(warmup_steps=3, steps=10)
        )
        pair: Any = (run, run)
        self.first_pairs.setdefault(fixes[-1].name, pair)
        return SessionResult(found, (pair,), (), self.directory)

    def losses_of(self, arm: Arm, steps: int) -> Any:
        self.soaked.append((arm.command, steps))
        assert LONGEST_FIRST in arm.env
        if self.soak is not None:
            raise self.soak

    def needed_s(self, *pairs: Any, **how: Any) -> float:
        return 1.0

    def reason_too_large(self, fixes: list[Fix]) -> str | None:
        return None

    def pays_for(self, seconds: float) -> bool:
        return True

    def report(self, **changes: Any) -> None:
        self.shown |= changes

    def ledger(self, fixes: Any, kept: Any, together: Any, **rest: Any) -> Any:
        together = together and together.verdict
        return SimpleNamespace(fixes=fixes, kept=kept, together=together, **rest)


SAME = Parity("same", "bitwise", reason="")


def tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str, **speeds: float
) -> tuple[Runner, Any]:
    """auto sets a and b; then each of a, b and c alone, both ways. more: other values of c."""
    given = {"a": "0", "b": "0", "c": "0"}

    def values(name: str, *texts: str) -> list[Fix]:
        option = Words(name, texts, Known(""), "bitwise", as_given=given)
        return [
            value_of(option, text, Diagnosis("balanced", Steps(9, 1, 0.1)), None) for text in texts
        ]

    runner = Runner({each.replace("_", "="): speed for each, speed in speeds.items()}, tmp_path)
    rest = [
        *values("a", "a=0", "a=1"),
        *values("b", "b=0", "b=1"),
        *values("c", "c=0", "c=1", *more),
    ]
    return runner, ledger_of(runner, [values("auto", "a=1 b=1"), rest], monkeypatch)


def ledger_of(runner: Runner, rounds: list[list[Fix]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every value learns the same."""
    monkeypatch.setattr(Campaign, "_parity", lambda self, asked: SAME)

    def with_costs(runner: Any, value: Fix, entry: Any, result: SessionResult) -> Any:
        runner.costs_of[value.name] = result.pairs[0]
        return entry

    monkeypatch.setattr("hotloop.tune.value_trials.num_losses", lambda runner, value: 3.0)
    monkeypatch.setattr("hotloop.tune.campaign.with_costs", with_costs)
    monkeypatch.setattr("hotloop.tune.campaign.with_memory", lambda entry, pairs: entry)
    costs = SimpleNamespace(pair_s=lambda plan: 1.0, process_s=lambda steps: 1.0 * steps)
    monkeypatch.setattr(runner, "costs", costs, raising=False)
    monkeypatch.setattr(runner, "plan", None, raising=False)
    return Campaign(runner, rounds, "--budget {}".format).all()  # type: ignore[arg-type]


def test_single_settings_are_tried_on_top_of_what_auto_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"auto": 2.0, "a_0": 0.5, "b_0": 1.1, "c_1": 1.2}
    runner, ledger = tried(tmp_path, monkeypatch, **speeds)
    assert ledger.kept == ["auto", "c=1", "b=0"]  # the fastest on top first
    screened = [(stacked, new[-1]) for stacked, new, now in runner.compared if now == 2]
    # What the command has by then is not tried: a=1, b=1 and c=0.
    assert screened == [([], "auto"), (["auto"], "a=0"), (["auto"], "b=0"), (["auto"], "c=1")]
    # More than what came first alone: the whole is measured anew, against the command as given.
    assert runner.compared[-1] == ([], ["auto", "c=1", "b=0"], None)


def test_what_came_first_and_stays_alone_is_proven_by_its_own_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, ledger = tried(tmp_path, monkeypatch, auto=2.0, a_0=0.5, b_0=0.9, c_1=0.8)
    assert ledger.kept == ["auto"]
    assert ledger.together.ratio == 2.0
    assert runner.costs_of["auto"] is runner.first_pairs["auto"]
    assert [new for stacked, new, now in runner.compared if now is None] == [["auto"]]


def test_what_is_proven_stays_where_the_budget_ends_before_the_whole_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Runner.timed

    def ends(self: Runner, *given: Any, **how: Any) -> SessionResult:
        if how.get("of"):
            raise OutOfBudget("out of budget", returncode=TIMED_OUT, arm="together")
        return timed(self, *given, **how)

    monkeypatch.setattr(Runner, "timed", ends)
    _, ledger = tried(tmp_path, monkeypatch, auto=2.0, a_0=0.5, b_0=0.9, c_1=1.2)
    assert (ledger.kept, ledger.together.ratio) == (["auto"], 2.0)
    auto, _, _, other = ledger.fixes
    assert (auto.status, other.name, other.status) == ("kept", "c=1", "stopped")
    assert other.why.endswith("but not confirmed yet: out of budget")
    assert ledger.continue_with is not None


def test_what_trains_otherwise_is_shown_on_top_of_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(name: str, text: str, parity: Any) -> list[Fix]:
        option = Words(name, (text,), Known(""), parity, as_given={"a": "0", "d": "0"})
        return [value_of(option, text, Diagnosis("balanced", Steps(9, 1, 0.1)), None)]

    runner = Runner({"auto": 2.0, "d=1": 1.1}, tmp_path)
    rounds = [values("auto", "a=1", "bitwise"), values("d", "d=1", "changes_training")]
    ledger = ledger_of(runner, rounds, monkeypatch)
    assert runner.compared[-1] == (["auto"], ["auto", "d=1"], None)
    assert [each.status for each in ledger.fixes] == ["kept", "what_if"]
    assert ledger.fixes[1].why == (
        "changes what is trained; `--vary d=1 --accept d` keeps it if it is proven; measured on top of what is kept"
    )


def test_where_auto_brings_nothing_single_settings_are_tried_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, ledger = tried(tmp_path, monkeypatch, auto=0.9, a_1=1.3, b_1=0.8, c_1=0.8)
    assert ledger.kept == ["a=1"]
    screened = [(stacked, new) for stacked, new, now in runner.compared if now == 2]
    assert screened == [([], ["auto"]), ([], ["a=1"]), ([], ["b=1"]), ([], ["c=1"])]
    assert runner.compared[-1] == ([], ["a=1"], None)


@pytest.mark.parametrize("is_split", [True, False])
@pytest.mark.parametrize(("nearly", "kept"), [(1.49, 4), (1.3, 16)])
def test_of_microbatches_that_look_nearly_as_fast_the_smallest_is_judged_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_split: bool, nearly: float, kept: int
) -> None:
    values = {"train.microbatch": 8, "train.grad_accum_steps": 2}
    given = load_settings(PLAIN).with_values(values, origin="x.yaml:1")
    if is_split:
        (option,) = (each for each in options_for(given, ())[1] if each.name == "split")
        names = {n: f"train.microbatch={n} train.grad_accum_steps={16 // n}" for n in (2, 4, 16)}
    else:
        varied_by = options_of(["train.microbatch=2,4,16"], [], ["train.microbatch"], ("x",))
        option = varied(varied_by[0], given)
        names = {n: f"train.microbatch={n}" for n in (2, 4, 16)}
    nothing_found = Diagnosis("balanced", Steps(9, 1, 0.1))
    fixes = [value_of(option, text, nothing_found, None) for text in option.values]
    assert {each.name for each in fixes} == {*names.values()}
    runner = Runner({names[2]: 1.2, names[4]: nearly, names[16]: 1.5}, tmp_path)
    ledger = ledger_of(runner, [fixes], monkeypatch)
    assert ledger.kept == [names[kept]]
    whys = {each.name: each.why for each in ledger.fixes}
    assert ("its batch is smaller" in whys[names[16]]) == (kept == 4)


@pytest.mark.parametrize(
    ("speeds", "tried", "kept"),
    [
        ([1.1, 1.3, 1.6, 1.9, 1.9, 1.9], 5, 16),  # the knee: twice as much is no faster
        ([1.1, 1.3, 1.31, 1.9, 1.9, 1.9], 3, 4),
        ([0.9, 0.8, 1.01, 1.9, 1.9, 1.9], 3, 8),
    ],
)
def test_larger_microbatches_are_tried_as_long_as_they_bring_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speeds: list[float], tried: int, kept: int
) -> None:
    values = {"train.microbatch": 1, "train.grad_accum_steps": 64}
    given = load_settings(PLAIN).with_values(values, origin="x.yaml:1")
    (option,) = (each for each in options_for(given, ())[1] if each.name == "split")
    nothing_found = Diagnosis("balanced", Steps(9, 1, 0.1))
    fixes = [value_of(option, text, nothing_found, None) for text in option.values]
    names = [
        f"train.microbatch={n} train.grad_accum_steps={64 // n}" for n in (2, 4, 8, 16, 32, 64)
    ]
    runner = Runner(dict(zip(names, speeds, strict=True)), tmp_path)
    ledger = ledger_of(runner, [[], fixes], monkeypatch)
    assert [each.name for each in ledger.fixes] == names[:tried]
    assert ledger.kept[0].startswith(f"train.microbatch={kept} ")


@pytest.mark.parametrize(
    ("compiled", "beside", "kept"),
    [
        (0.95, 1.2, ["train.microbatch=4", "train.compile=true"]),
        (0.95, 0.9, ["train.microbatch=4"]),
        (0.6, 1.2, ["train.microbatch=4"]),  # too far away: not screened again
    ],
)
def test_what_depends_on_a_value_that_was_kept_is_screened_once_more_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: float, beside: float, kept: list[str]
) -> None:
    given = {"train.microbatch": "1", "train.compile": "false", "c": "0"}

    def value(name: str, text: str, *techniques: str) -> Fix:
        known = Known("", techniques=techniques)
        option = Words(name, (text,), known, "bitwise", as_given=given)
        return value_of(option, text, Diagnosis("balanced", Steps(9, 1, 0.1)), None)

    class Depends(Runner):
        def timed(self, stacked: list[Fix], fixes: list[Fix], *how: Any, **more: Any) -> Any:
            self.speeds["train.compile=true"] = beside if stacked else compiled
            return super().timed(stacked, fixes, *how, **more)

    runner = Depends({"train.microbatch=4": 1.5, "c=1": 0.95}, tmp_path)
    fixes = [
        value("train.compile", "train.compile=true", "compile"),
        value("split", "train.microbatch=4"),
        value("c", "c=1", "gelu"),
    ]
    ledger = ledger_of(runner, [[], fixes], monkeypatch)
    assert ledger.kept == kept
    again = [fixes[-1] for stacked, fixes, now in runner.compared if stacked and now == 2]
    assert again == (["train.compile=true"] if compiled == 0.95 else [])


def test_techniques_that_depend_on_each_other_are_in_the_catalogue() -> None:
    assert {each for pair in DEPEND for each in pair} - {BATCH} <= CATALOGUE.keys()


FULL = "train.activation_checkpointing=full"
BUDGET = "train.activation_checkpointing=budget=0.5"
SELECTIVE = "train.activation_checkpointing=selective"
OFF = "train.activation_checkpointing=none"
SPLITS = {n: f"train.microbatch={n} train.grad_accum_steps={16 // n}" for n in (1, 2, 4, 16)}


class Small(Runner):
    """A process with one of `fails` ends, in pairs for which `when` holds."""

    def __init__(self, tmp_path: Path, fails: Sequence[str], said: str) -> None:
        super().__init__(defaultdict(lambda: 1.5), tmp_path)
        self.fails, self.said = fails, said
        self.when = lambda now: True

    def timed(
        self, stacked: list[Fix], fixes: list[Fix], parity: Parity, **how: Any
    ) -> SessionResult:
        name = fixes[-1].name
        if name in self.fails and self.when(how.get("pairs_now")):
            arm, said = arm_name(name), self.said
            raise CommandFailed(f"`{arm}` ended with exit code 4", do=said, returncode=4, arm=arm)
        return super().timed(stacked, fixes, parity, **how)


def of_config(values: dict[str, Any], vary: str, *flags: str) -> list[Fix]:
    """Of a config of two microbatches of eight: other splits, or what is varied."""
    values = {"train.microbatch": 8, "train.grad_accum_steps": 2, **values}
    given = load_settings(PLAIN).with_values(values, origin="x.yaml:1").with_words(flags)
    if vary:
        accepted = ["train.microbatch"] if vary.startswith("train.microbatch") else []
        option = varied(options_of([vary], [], accepted, ("x",))[0], given)
    else:
        (option,) = (each for each in options_for(given, ())[1] if each.name == "split")
    nothing_found = Diagnosis("balanced", Steps(9, 1, 0.1))
    return [value_of(option, text, nothing_found, None) for text in option.values]


@pytest.mark.parametrize(
    ("values", "vary", "flags", "fails", "statuses"),
    [
        (
            {}, "", [], [SPLITS[16], f"{SPLITS[16]} {SELECTIVE}"],
            {SPLITS[16]: "failed", f"{SPLITS[16]} {SELECTIVE}": "failed", f"{SPLITS[16]} {FULL}": "kept"},
        ),
        (
            {"train.compile": "blocks"}, "", [], [SPLITS[16]],
            {SPLITS[16]: "failed", f"{SPLITS[16]} {BUDGET}": "kept"},  # of a compiled block nothing is chosen
        ),
        (
            {"train.activation_checkpointing": "selective"}, "", [], [SPLITS[16]],
            {SPLITS[16]: "failed", f"{SPLITS[16]} {FULL}": "kept"},
        ),
        ({}, "", [OFF], [SPLITS[16]], {SPLITS[16]: "failed"}),  # which stays
        (
            {}, "train.microbatch=16", [], ["train.microbatch=16"],
            {"train.microbatch=16": "failed", f"train.microbatch=16 {SELECTIVE}": "kept"},
        ),
        (
            {"train.activation_checkpointing": "full"}, OFF, [], [OFF, f"{OFF} {SPLITS[4]}"],
            {OFF: "failed", f"{OFF} {SPLITS[4]}": "failed", f"{OFF} {SPLITS[2]}": "kept"},
        ),
        (
            {"train.activation_checkpointing": "full"}, OFF, ["train.grad_accum_steps=2"], [OFF],
            {OFF: "failed"},
        ),
        ({}, "train.compile=true", [], ["train.compile=true"], {"train.compile=true": "failed"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_judged", [True, False])
def test_what_memory_is_too_small_for_is_tried_with_what_saves_some(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    vary: str,
    flags: list[str],
    fails: list[str],
    statuses: dict[str, str],
    is_judged: bool,
) -> None:
    monkeypatch.setattr(
        settings, "machine_for", lambda settings, ranks=1: Machine("cpu", (), None, 4)
    )
    fixes = [each for each in of_config(values, vary, *flags) if vary or each.name == SPLITS[16]]
    runner = Small(tmp_path, fails, "error: out of memory")
    runner.when = lambda now: now != 2 or not is_judged
    ledger = ledger_of(runner, [fixes], monkeypatch)
    assert {each.name: each.status for each in ledger.fixes} == statuses
    assert ledger.kept == [name for name, status in statuses.items() if status == "kept"]
    shown = runner.shown["fixes"] if len(statuses) > 1 else (*statuses,)
    assert shown == (*statuses,)


def test_what_fails_otherwise_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Small(tmp_path, [SPLITS[16]], "ValueError: no such batch")
    ledger = ledger_of(runner, [of_config({}, "")], monkeypatch)
    assert {each.name for each in ledger.fixes} == {SPLITS[2], SPLITS[4], SPLITS[16]}


def test_a_smaller_microbatch_without_checkpointing_may_round_its_sums_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (value,) = of_config({"train.activation_checkpointing": "full"}, OFF)
    option, text = value.value
    assert option.parity_class == "bitwise"
    beside, text = option.saving(text, ("train", "c.yaml", FULL))
    assert (beside.parity_class, text) == ("reduction_order", f"{OFF} {SPLITS[4]}")
    (value,) = of_config({}, "train.microbatch=16")
    beside, text = value.value[0].saving(value.value[1], ("train", "c.yaml", SELECTIVE))
    assert (beside.parity_class, text) == ("changes_training", f"train.microbatch=16 {FULL}")
    assert beside.accepting(text) == "--vary train.microbatch=16 --accept train.microbatch"


def ended(how: str, returncode: int) -> CommandFailed:
    what = f"the losses of `soak`: `soak` {how}"
    return CommandFailed(what, do="error: out of memory", returncode=returncode, arm="soak")


SHORT = {"train.steps": 20, "schedule.warmup_steps": 5}
SOAKED = "40 steps with an evaluation and a save"


@pytest.mark.parametrize(
    ("values", "vary", "name", "said"),
    [
        ({}, "", SPLITS[16], SOAKED),
        ({}, "train.microbatch=16", "train.microbatch=16", SOAKED),
        ({"eval.every_steps": 0, **SHORT}, "", SPLITS[16], "20 steps with a save"),
        ({}, "", SPLITS[4], None),
        ({}, "train.microbatch=4", "train.microbatch=4", None),
        ({"train.activation_checkpointing": "full"}, OFF, OFF, SOAKED),
        ({"train.activation_checkpointing": "full"}, SELECTIVE, SELECTIVE, SOAKED),
        ({"train.activation_checkpointing": "selective"}, FULL, FULL, None),
        ({}, FULL, FULL, None),
        ({}, "train.compile=true", "train.compile=true", None),
    ],
)
def test_what_takes_more_memory_is_soaked_before_it_is_believed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    vary: str,
    name: str,
    said: str | None,
) -> None:
    runner = Small(tmp_path, (), "")
    fixes = [each for each in of_config(values, vary) if each.name == name]
    ledger = ledger_of(runner, [[], fixes], monkeypatch)
    assert (ledger.kept, ledger.soaked) == ([name], said)
    assert ledger.fixes[0].why.endswith(f"; soaked ({said})") == (said is not None)
    ((command, steps),) = runner.soaked or [((), 0)]
    if said is None:
        assert command == ()
    else:
        evaluates = {"eval.every_steps=20"} if "evaluation" in said else set()
        assert steps == int(said.split()[0])
        assert {*command[2:]} == {*name.split(), f"checkpoint.every_steps={steps // 4}", *evaluates}


@pytest.mark.parametrize("returncode", [4, -9, 1])
def test_of_what_fails_its_soak_nothing_is_kept_and_the_rest_is_confirmed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returncode: int
) -> None:
    runner = Small(tmp_path, (), "")
    runner.soak = ended("ended with exit code 4: it ran out of memory", returncode)
    larger = [each for each in of_config({}, "") if each.name == SPLITS[16]]
    compiled = of_config({}, "train.compile=true")
    (pinned,) = of_config({}, "train.num_threads=1")
    ledger = ledger_of(runner, [compiled, [*larger, pinned]], monkeypatch)
    assert ledger.kept == ["train.compile=true", "train.num_threads=1"]
    assert ledger.soaked is None
    why = f"faster, and learns the same, but the soak failed ({SOAKED}): ended with exit code 4: it ran out of memory: error: out of memory"
    failed = next(each for each in ledger.fixes if each.name == SPLITS[16])
    assert (failed.status, failed.why.partition(": ")[2]) == ("rejected", why)
    assert SPLITS[16] in runner.compared[-2][1]
    assert runner.compared[-1][:2] == ([], ledger.kept)  # on pairs of its own


def test_a_soak_that_the_budget_does_not_hold_is_told_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = [each for each in of_config({}, "") if each.name == SPLITS[16]]
    runner = Small(tmp_path, (), "")
    runner.soak = OutOfBudget("out of budget", returncode=TIMED_OUT, arm="soak")
    ledger = ledger_of(runner, [[], larger], monkeypatch)
    assert (ledger.kept, ledger.soaked) == ([SPLITS[16]], None)
    assert ledger.fixes[0].why.endswith(
        f"; not soaked: out of budget, and {SOAKED} take about 40 s"
    )
    assert ledger.continue_with == "--budget 50s"

    runner.soak = ended("was ended: it had not finished after 60 s", TIMED_OUT)
    ledger = ledger_of(runner, [[], larger], monkeypatch)
    assert (ledger.kept, ledger.soaked, ledger.continue_with) == ([SPLITS[16]], None, None)
    assert "; not soaked: was ended: it had not finished after 60 s" in ledger.fixes[0].why


def test_time_for_the_soak_of_what_is_kept_is_left_by_what_is_tried_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    larger = [each for each in of_config({}, "") if each.name == SPLITS[16]]
    runner = Small(tmp_path, (), "")
    monkeypatch.setattr(runner, "pays_for", lambda seconds: asked.append(seconds) or True)
    ledger_of(runner, [larger, of_config({}, "train.num_threads=1")], monkeypatch)
    # The first pairs of each, of the second its losses and pairs as well, and of the whole, after which it comes.
    assert asked == [1.0, 41.0, 41.0, 41.0, 1.0]


class Unseeded(Runner):
    """Each process begins with other weights. A seeded one of the command as given ends with `losses[0]`, of a value with `losses[1]`."""

    def __init__(self, tmp_path: Path, unit: str, losses: tuple[float, float]) -> None:
        super().__init__({"--batch-size=32": 4.0}, tmp_path)
        self.unit, self.losses, self.begun = unit, losses, 0.0
        self.baseline = self.with_fixes("baseline", [])
        self.census = None
        self.costs, self.plan = Costs(1.0, 0.1), TrialPlan(3, 10, 60.0)

    def _losses(self, *losses: float) -> Any:
        return SimpleNamespace(records=[SimpleNamespace(loss=each) for each in losses], census=None)

    def timed(
        self, stacked: list[Fix], fixes: list[Fix], parity: Parity, **how: Any
    ) -> SessionResult:
        result = super().timed(stacked, fixes, parity, **how)
        self.begun += 1.0
        pairs = [(self._losses(self.begun + n, 1.0), self._losses(0.5, n)) for n in (0.1, 0.2)]
        for _, candidate in pairs:
            candidate.plan = SimpleNamespace(warmup_steps=3, steps=10)
        return replace(result, verdict=replace(result.verdict, unit=self.unit), pairs=tuple(pairs))

    def losses_of(self, arm: Arm, steps: int) -> Any:
        return self._losses(1.0, self.losses["--batch-size=32" in arm.command]), Path()


@pytest.mark.parametrize(
    ("unit", "losses", "status", "why"),
    [
        ("sample", (0.5, 0.4), "kept", "faster, and trains otherwise, as accepted"),
        ("sample", (0.5, 0.5), "not_applied", "the script does not use it"),
        ("step", (0.5, 0.4), "stopped", "how much work each of its steps is was not seen"),
    ],
)
def test_more_work_in_a_step_is_believed_where_the_script_uses_it_and_steps_tell_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    losses: tuple[float, float],
    status: str,
    why: str,
) -> None:
    monkeypatch.setattr("hotloop.tune.campaign.with_memory", lambda entry, pairs: entry)
    (option,) = options_of(["--batch-size=32"], [], ["batch-size"], ("train", "c.yaml"))
    value = value_of(option, "32", Diagnosis("balanced", Steps(9, 1, 0.1)), None)
    runner = Unseeded(tmp_path, unit, losses)
    ledger = Campaign(runner, [[value]], lambda budget: "").all()  # type: ignore[arg-type]
    (fix,) = ledger.fixes
    assert fix.status == status
    assert why in fix.why
    assert (fix.verdict is None) == (unit == "step")  # no ratio of what cannot be compared
    assert bool(ledger.kept) == (status == "kept")


@pytest.mark.parametrize(
    ("name", "unit", "is_said"),
    [
        ("--foo", "step", True),
        ("--foo", "sample", True),
        ("--foo", "token", False),
        ("--lr", "step", False),
    ],
)
@pytest.mark.parametrize("is_accepted", [True, False])
def test_what_may_be_less_work_by_a_name_that_nobody_knows_is_said_to_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    unit: str,
    is_said: bool,
    is_accepted: bool,
) -> None:
    monkeypatch.setattr("hotloop.tune.campaign.with_memory", lambda entry, pairs: entry)
    accept = [name] if is_accepted else []
    parity = [f"{name}=changes_training"]
    (option,) = options_of([f"{name}=32"], parity, accept, ("train", "c.yaml"))
    value = value_of(option, "32", Diagnosis("balanced", Steps(9, 1, 0.1)), None)
    runner = Unseeded(tmp_path, unit, (0.5, 0.4))
    runner.speeds = {value.name: 2.0}
    ledger = Campaign(runner, [[value]], lambda budget: "").all()  # type: ignore[arg-type]
    (fix,) = ledger.fixes
    assert fix.status == ("kept" if is_accepted else "what_if")
    said = f"; whether a {unit} is as much work with it was not seen"
    assert fix.why.endswith(said) == is_said
    assert ("not seen" in fix.why) == is_said


def test_all_that_is_screened_on_top_shares_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"auto": 2.0, "a_0": 1.1, "b_0": 1.1, "c_1": 1.2, "c_2": 1.1, "c_3": 1.1}
    runner, _ = tried(tmp_path, monkeypatch, "c=2", "c=3", **speeds)
    shares = [sum(alpha) for alpha in runner.levels if alpha is not None]
    assert len(shares) == 3  # of each option the best of its values, which its pairs chose
    assert shares == pytest.approx([ERROR_ON_TOP / 6] * 3)  # beside `auto`
