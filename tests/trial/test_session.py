from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import CommandFailed, EnvironmentFailed, UsageError
from hotloop.core.files import read_json
from hotloop.core.judgement import Parity, Verdict
from hotloop.core.measurement import Measurement
from hotloop.core.progress import PairProgress
from hotloop.trial import session as trial_session
from hotloop.trial.arm import Arm
from hotloop.trial.isolation import list_workdir
from hotloop.trial.measure import MEASUREMENT_FILE, is_finished, store_measurement, trial
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import Beside, SessionResult, compare_arms

PLAN = TrialPlan(warmup_steps=0, steps=1, timeout_s=300, looks=(4,), aa_pairs=1, seed=1)

# hotloop itself, as a process that can be interrupted or killed in the middle of a session.
PARENT = """
import sys
from pathlib import Path
from hotloop.core.errors import HotloopError
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import compare_arms
def arm(name):
    return Arm(name, (sys.executable, "-S", sys.argv[2]), "none")
plan = TrialPlan(warmup_steps=0, steps=1, timeout_s=300, looks=(4,), aa_pairs=1, seed=1)
try:
    compare_arms(arm("plain"), arm("other"), directory=Path(sys.argv[1]), plan=plan,
                 parity_class="bitwise")
except HotloopError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def sleeper(name: str, seconds: float) -> Arm:
    source = "import sys, time; time.sleep(float(sys.argv[1]))"
    return Arm(name, (sys.executable, "-S", "-c", source, str(seconds)), "none")


@pytest.fixture
def only_sleep_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleeper took what it slept, and a little for its start, whatever other programs took from it beside that."""

    def slept(arm: Arm, place: Path, **rest: Any) -> Measurement:
        known = is_finished(place)
        measured = trial(arm, place, **rest)
        if not known:
            seconds = float(arm.command[-1])
            (sample,) = measured.samples
            assert sample.value > seconds
            took_s = random.Random(place.name).uniform(0.99, 1.01) * (0.02 + seconds)
            measured = replace(measured, samples=(replace(sample, value=took_s),))
            store_measurement(place / MEASUREMENT_FILE, measured)
        return measured

    monkeypatch.setattr(trial_session, "trial", slept)


def session(directory: Path, baseline: Arm, candidate: Arm, **rest: Any) -> SessionResult:
    return compare_arms(
        baseline, candidate, directory=directory, parity_class="bitwise", **{"plan": PLAN, **rest}
    )


def finished(directory: Path) -> dict[str, float]:
    """Name of each finished trial and when its process started."""
    return {
        path.parent.name: json.loads(path.read_text())["started_at"]
        for path in directory.glob("*/measurement.json")
    }


def wait_until_finished(directory: Path, number: int) -> None:
    deadline = time.monotonic() + 120
    while len(finished(directory)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("baseline_s", "candidate_s", "outcome"), [(0.1, 0.25, "regressed"), (0.25, 0.1, "improved")]
)
@pytest.mark.usefixtures("only_sleep_counts")
def test_planted_difference_is_found_with_its_sign(
    tmp_path: Path, baseline_s: float, candidate_s: float, outcome: str
) -> None:
    seen: list[tuple[str, float, float | None]] = []
    pairs: list[PairProgress] = []
    result = session(
        tmp_path / "session",
        sleeper("plain", baseline_s),
        sleeper("other", candidate_s),
        progress=lambda what, done, total, note: seen.append((what, done, total)),
        on_pair=pairs.append,
    )
    assert result.verdict.outcome == outcome
    assert result.verdict.num_pairs == 4
    assert [(a.arm, b.arm) for a, b in result.pairs] == [("plain", "other")] * 4
    assert [(a.arm, b.arm) for a, b in result.aa_pairs] == [("plain", "plain")]
    firsts = [a.plan.position for a, _ in result.pairs]
    assert 0 < sum(firsts) < 4
    for baseline, candidate in result.pairs:  # the directory's letter is the order in time
        early, late = sorted((baseline, candidate), key=lambda m: m.started_at or 0)
        assert (early.plan.position, late.plan.position) == (0, 1)
    assert read_json(tmp_path / "session" / "verdict.json", Verdict) == result.verdict
    assert seen[0] == ("A/A pair 1 of 1: plain", 0, 10)
    so_far = [what for what, _, _ in seen if what.startswith("pair 3 of up to 4: other (so far ")]
    ratio = float(so_far[0].removesuffix("x)").split()[-1])
    assert (ratio > 1) == (outcome == "improved")
    assert [(pair.number, pair.up_to) for pair in pairs] == [(n, 4) for n in (1, 2, 3, 4)]
    interim = [pair.interim.pair_ratios for pair in pairs if pair.interim is not None]
    assert interim == [result.verdict.pair_ratios[:n] for n in (1, 2, 3)]
    assert {f"aa-01-{letter}-plain" for letter in "ab"} < set(finished(tmp_path / "session"))


WAITS = """
import glob, time
while True:  # until this may be one of the trials that end
    try:
        if len(glob.glob("DIRECTORY/*/measurement.json")) < int(open("DIRECTORY/may-end").read()):
            break
    except ValueError:  # it is only being written
        pass
    time.sleep(0.01)
"""


def test_session_killed_in_the_middle_continues_with_what_it_had(tmp_path: Path) -> None:
    script, may_end = tmp_path / "waits.py", tmp_path / "may-end"
    script.write_text(WAITS.replace("DIRECTORY", str(tmp_path)))
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(script)]
    may_end.write_text("3")
    parent = subprocess.Popen(command)
    wait_until_finished(tmp_path, 3)
    parent.kill()
    parent.wait()
    before = finished(tmp_path)
    assert len(before) == 3

    may_end.write_text("4")
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until_finished(tmp_path, len(before) + 1)
    parent.send_signal(signal.SIGINT)
    output, _ = parent.communicate(timeout=120)
    assert parent.returncode == 75, output
    assert "run the same command again: it continues" in output
    interrupted = finished(tmp_path)
    assert before.items() < interrupted.items()

    may_end.write_text("10")
    arms = [Arm(name, (sys.executable, "-S", str(script)), "none") for name in ("plain", "other")]
    result = session(tmp_path, *arms)
    assert interrupted.items() < finished(tmp_path).items()
    assert len(finished(tmp_path)) == 10
    assert result.verdict.num_pairs == 4
    assert not list(tmp_path.glob("*/tmp"))  # nor what it links to
    again = session(tmp_path, *arms)
    assert again == result


def test_directory_of_another_comparison_is_refused(tmp_path: Path) -> None:
    arms = sleeper("plain", 0.0), sleeper("other", 0.0)
    session(tmp_path, *arms)
    session(tmp_path, *arms, plan=replace(PLAN, timeout_s=600))  # more time is no other comparison
    with pytest.raises(UsageError, match=r"holds another comparison \(other plan"):
        session(tmp_path, *arms, plan=replace(PLAN, seed=2))
    with pytest.raises(UsageError, match="other candidate"):
        session(tmp_path, arms[0], sleeper("other", 0.01))


def test_pairs_with_other_variables_are_another_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = sleeper("plain", 0.0), sleeper("other", 0.0)
    how: dict[str, Any] = {"plan": replace(PLAN, aa_pairs=0), "pairs_now": 1}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    session(tmp_path, *arms, **how)
    session(tmp_path, *arms, **how)
    for change in (
        lambda: monkeypatch.setenv("OMP_NUM_THREADS", "2"),
        lambda: monkeypatch.delenv("OMP_NUM_THREADS"),
    ):
        change()
        with pytest.raises(UsageError, match=r"comparison \(other value of OMP_NUM_THREADS\)"):
            session(tmp_path, *arms, **how)
    stored = json.loads((tmp_path / "plan.json").read_text())
    del stored["variables"]  # as an earlier version left it
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    session(tmp_path, *arms, **how)


def test_edited_script_is_another_comparison(tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "script.py").write_text("pass")
    arms = [
        Arm(name, (sys.executable, "-S", "script.py"), "none", workdir=user) for name in ("a", "b")
    ]
    out = user / "out"  # inside the very directory that is copied
    session(out, *arms, workdir=list_workdir(user, without=out))
    assert len(finished(out)) == 10
    session(out, *arms, workdir=list_workdir(user, without=out))
    (user / "script.py").write_text("print()")
    with pytest.raises(UsageError, match="files of the working directory"):
        session(out, *arms, workdir=list_workdir(user, without=out))


def test_failing_arm_keeps_what_was_finished_and_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "fixed"
    source = f"import pathlib, sys; sys.exit(0 if pathlib.Path({str(flag)!r}).exists() else 'ouch')"
    failing = Arm("other", (sys.executable, "-S", "-c", source), "none")
    with pytest.raises(CommandFailed, match=r"pair 1 of up to 4: other: `other` ended") as caught:
        session(tmp_path / "out", sleeper("plain", 0.0), failing)
    assert "ouch" in str(caught.value)
    assert caught.value.arm == "other"
    kept = finished(tmp_path / "out")
    assert len(kept) >= 2
    flag.touch()
    session(tmp_path / "out", sleeper("plain", 0.0), failing)
    assert kept.items() < finished(tmp_path / "out").items()


def test_two_sessions_in_one_directory_are_refused(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / ".hotloop-session").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another hotloop is measuring"):
            session(tmp_path, sleeper("a", 0), sleeper("b", 0))


def test_arms_that_make_no_comparison_are_refused_before_anything_runs(
    tmp_path: Path, training: Callable[..., Arm]
) -> None:
    with pytest.raises(UsageError, match="both arms are named"):
        session(tmp_path / "out", sleeper("a", 0), sleeper("a", 1))
    with pytest.raises(UsageError, match="at least 1 warm-up step"):
        session(tmp_path / "out", training(name="a"), training(name="b"))
    with pytest.raises(UsageError, match="measure both in the same way"):
        session(tmp_path / "out", training(name="a"), sleeper("b", 0))
    with pytest.raises(UsageError, match="no-such-program"):
        session(tmp_path / "out", sleeper("a", 0), Arm("b", ("no-such-program",), "none"))
    assert not (tmp_path / "out").exists()


def test_directory_that_cannot_be_made_is_a_failed_environment(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match="cannot make the directory"):
        session(tmp_path / "file" / "out", sleeper("a", 0), sleeper("b", 0))


def test_comparison_that_is_begun_goes_on_where_it_was(
    python: Callable[..., Arm], tmp_path: Path
) -> None:
    arms = python("pass", name="plain"), python("pass", name="other")
    plan = TrialPlan(0, 1, timeout_s=60.0, looks=(2, 3), aa_pairs=0)

    def compared(**rest: Any) -> SessionResult:
        return compare_arms(
            *arms, directory=tmp_path / "session", plan=plan, parity_class="bitwise", **rest
        )

    begun = compared(pairs_now=1)
    assert len(begun.pairs) == 1
    assert begun.verdict.outcome == "inconclusive"
    assert begun.verdict.ratio_low is None
    known = Parity("within_noise", "bitwise", reason="known from elsewhere")
    ended = compared(goes_on=lambda verdict: False, parity=known)
    assert ended.pairs[0] == begun.pairs[0]
    assert len(ended.pairs) == 2
    assert ended.verdict.parity == known


def test_finished_pairs_are_no_reason_to_end_a_comparison(
    python: Callable[..., Arm], tmp_path: Path
) -> None:
    arms = python("pass", name="plain"), python("pass", name="other")
    plan = TrialPlan(0, 1, timeout_s=60.0, looks=(2, 4), aa_pairs=0)
    asked = list[str]()

    def stop_now(verdict: Verdict, num_new: int) -> bool:
        asked.append(f"{num_new} of {verdict.num_pairs}")
        return False

    def goes_on(verdict: Verdict) -> bool:
        asked.append(f"look at {verdict.num_pairs}")
        return True

    for pairs_now, then_asked in ((3, ["1 of 1", "2 of 2", "look at 2"]), (None, ["0 of 3"])):
        asked.clear()
        compare_arms(
            *arms,
            directory=tmp_path / "session",
            plan=plan,
            parity_class="bitwise",
            alpha=(1e-9, 0.04),  # the first look decides nothing
            pairs_now=pairs_now,
            goes_on=goes_on,
            stop_now=stop_now,
        )
        assert asked == then_asked


def test_a_pair_with_other_programs_beside_one_process_alone_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of each process in turn: the second and the fourth pair are uneven, both of the third are disturbed.
    shares = [0.0, 0.0, 0.02, 0.6, 0.0, 0.0, 0.5, 0.6, 0.3, 0.05, 0.3, 0.05, 0.3, 0.05]
    made = list[Path]()

    def beside_others(arm: Arm, place: Path, **rest: Any) -> Measurement:
        known = is_finished(place)
        measured = trial(arm, place, **rest)
        if not known:
            measured = replace(measured, other_programs=shares[len(made)])
            store_measurement(place / MEASUREMENT_FILE, measured)
            made.append(place)
        return measured

    monkeypatch.setattr(trial_session, "trial", beside_others)
    directory, plan = tmp_path / "session", replace(PLAN, aa_pairs=0)
    arms = sleeper("plain", 0.02), sleeper("other", 0.02)
    found = session(directory, *arms, plan=plan)
    assert [each.plan.pair for _, each in found.pairs] == [1, 2, 3, 4]
    assert len(made) == 12  # MOST_UNEVEN times, then a pair is taken as it is
    aside = sorted(each.name for each in directory.glob("uneven-*"))
    assert [name[:16] for name in aside] == [f"uneven-{n}-pair-0{2 * n}" for n in (1, 1, 2, 2)]
    said = [each for each in found.verdict.reasons if "was measured again" in each]
    assert [each[:6] for each in said] == ["Pair 2", "Pair 4"]
    assert "took 2 % beside" in said[0]
    assert "and 60 % beside" in said[0]
    again = session(directory, *arms, plan=plan)
    assert len(made) == 12
    assert again.verdict == found.verdict

    made.clear()
    shares[:2] = [0.0, 0.6]
    ended = session(tmp_path / "short", *arms, plan=plan, stop_now=lambda *_: True)
    assert len(made) == 2
    assert len(ended.pairs) == 1  # no time for another


def in_rounds(
    directory: Path, baseline: Arm, arms: Sequence[Arm], number: int
) -> list[SessionResult]:
    """Up to so many pairs of each, with the results in the order of `arms`."""
    plan, names = replace(PLAN, aa_pairs=0), tuple(arm.name for arm in arms)
    results = []
    for place, arm in enumerate(arms):
        others = tuple((directory / each.name, each, plan) for each in arms[place + 1 :])
        how = {"plan": plan, "pairs_now": number, "beside": Beside(names, others)}
        results.append(session(directory / arm.name, baseline, arm, **how))
    return results


@pytest.mark.usefixtures("only_sleep_counts")
def test_comparisons_in_rounds_share_the_process_of_the_baseline(tmp_path: Path) -> None:
    plain, arms = sleeper("plain", 0.3), [sleeper(name, 0.0) for name in "xyz"]
    results = in_rounds(tmp_path, plain, arms, 4)
    by_round = zip(*(result.pairs for result in results), strict=True)
    started = []
    for pairs in by_round:
        (shared,) = {baseline.started_at for baseline, _ in pairs}
        own = [candidate.started_at or 0.0 for _, candidate in pairs]
        # The order in a pair is that in time, and it is another one in each round.
        for (baseline, candidate), at in zip(pairs, own, strict=True):
            assert baseline.plan.position == 1 - candidate.plan.position
            assert (candidate.plan.position == 0) == (at < (shared or 0.0))
        started += [shared, *own]
    assert len(set(started)) == 4 * 4
    assert {tuple(c.plan.position for _, c in r.pairs) for r in results} != {(0, 0, 0, 0)}
    assert [result.verdict.outcome for result in results] == ["improved"] * 3
    assert in_rounds(tmp_path, plain, arms, 4) == results
    for arm, result in zip(
        arms, results, strict=True
    ):  # nor is a pair made again without the others
        how = {"plan": replace(PLAN, aa_pairs=0), "pairs_now": 4}
        assert session(tmp_path / arm.name, plain, arm, **how) == result


def test_rounds_that_were_cut_off_continue_with_what_they_had(tmp_path: Path) -> None:
    plain, arms = sleeper("plain", 0.0), [sleeper(name, 0.0) for name in "xyz"]
    in_rounds(tmp_path, plain, arms, 2)
    # As a kill leaves it: some of a round, and of one that ran not even its file.
    for lost in ("y/pair-02-*-y", "z/pair-02-*-plain", "z/pair-02-*-z", "x/pair-02-*-plain"):
        (place,) = tmp_path.glob(lost)
        shutil.rmtree(place)
    before = {each.name: finished(tmp_path / each.name) for each in arms}
    results = in_rounds(tmp_path, plain, arms, 4)
    for arm, result in zip(arms, results, strict=True):
        assert before[arm.name].items() < finished(tmp_path / arm.name).items()
        assert len(finished(tmp_path / arm.name)) == 8
        assert all(b.plan.position == 1 - c.plan.position for b, c in result.pairs)


@pytest.mark.parametrize("is_old", [True, False])
def test_pair_of_which_half_was_made_long_ago_is_made_anew(tmp_path: Path, is_old: bool) -> None:
    plain, arms = sleeper("plain", 0.0), [sleeper(name, 0.0) for name in "xyz"]
    in_rounds(tmp_path, plain, arms, 2)
    # As a kill leaves it: one without its process of the baseline, one without its own, and a whole one.
    for lost in ("x/pair-02-*-x", "y/pair-02-*-plain"):
        (place,) = tmp_path.glob(lost)
        shutil.rmtree(place)
    for made in tmp_path.glob("*/*/measurement.json") if is_old else ():
        os.utime(made, (0, 0))
    before = {name: finished(tmp_path / name) for name in "xyz"}
    in_rounds(tmp_path, plain, arms, 2)
    after = {name: finished(tmp_path / name) for name in "xyz"}
    kept = {name: dict(before[name].items() & after[name].items()) for name in "xyz"}
    assert {name: len(each) for name, each in after.items()} == {"x": 4, "y": 4, "z": 4}
    assert {name: len(each) for name, each in kept.items()} == (
        {"x": 2, "y": 2, "z": 4} if is_old else {"x": 3, "y": 3, "z": 4}
    )


def test_a_comparison_that_fails_in_a_round_leaves_the_others_and_fails_by_itself(
    tmp_path: Path,
) -> None:
    broken = Arm("y", (sys.executable, "-c", "raise SystemExit(3)"), "none")
    plain, arms = sleeper("plain", 0.0), [sleeper("x", 0.0), broken, sleeper("z", 0.0)]
    with pytest.raises(CommandFailed) as failed:
        in_rounds(tmp_path, plain, arms, 4)
    assert failed.value.arm == "y"
    assert [len(finished(tmp_path / name)) for name in "xz"] == [8, 8]
