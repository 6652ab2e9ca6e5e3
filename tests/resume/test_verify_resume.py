"""Kills real trainings: exact resume is proven, and resume that was broken on purpose is found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from forked_trainings import FAULT, HELD, PAST, Forked, launch

from hotloop.cli.main import run
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json
from hotloop.core.settings import load_settings
from hotloop.resume import compare, kills
from hotloop.resume.program import Resumed, verify_resume
from hotloop.resume.short_run import Aim, aims, short_settings

STEPS = 24


@pytest.fixture
def config(tiny_config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With dropout, so that random states matter, and evaluations between saves."""
    text = tiny_config.read_text().replace("  context: 16\n", "  context: 16\n  dropout: 0.1\n")
    tiny_config.write_text(text)
    monkeypatch.chdir(tiny_config.parent)
    monkeypatch.setattr(kills, "launch", launch)
    monkeypatch.setattr(kills.Session, "run", partialmethod(run_held, kills.Session.run))
    return tiny_config


def run_held(
    session: kills.Session,
    run: Any,
    command: Sequence[str],
    aim: Aim | None = None,
    pace: kills.Pace | None = None,
) -> Any:
    """As `Session.run`. A training that is to be killed waits for that: its end may come before who kills it gets a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if aim is not None:
            config = load_settings(Path(command[command.index("train") + 1])).config
            held_at = min(aim.latest_step + PAST, config.train.steps - 1)
            patch.setenv(HELD, str(held_at))
        return run(session, command, aim, pace)


def verified(config: Path, kills: int = 4, **options: object) -> Resumed:
    return verify_resume(config, kills=kills, steps=STEPS, **options)  # type: ignore[arg-type]


@pytest.mark.at_once(1)
@pytest.mark.parametrize("background", ["false", "true"])
def test_after_kills_in_saves_and_steps_everything_is_the_same(
    config: Path, background: str
) -> None:
    found = verified(config, overrides=(f"checkpoint.background={background}",))
    assert found.differences == ()
    assert found.bit_identical
    assert found.kills == sum(found.kills_by_moment.values()) == 4
    assert found.steps_lost_max <= found.every_steps
    assert found.compared["samples"] >= STEPS * 4
    assert not list(Path("runs").iterdir()), "nothing is left behind"


@pytest.mark.at_once(3)
@pytest.mark.parametrize("fault", ["random", "optimizer", "samples", "model"])
def test_what_is_not_restored_is_found_at_the_first_step_that_differs(
    config: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv(FAULT, fault)
    found = verified(config, kills=2, seed=3, keep=True)
    assert not found.bit_identical
    assert found.reproducible is True
    first = found.differences[0]
    assert first.what == ("samples" if fault == "samples" else "loss")
    assert first.step is not None
    assert found.kept is not None
    taken = compare.taken_by(Path(found.kept) / "killed")
    resumed = next(each.first_step for each in taken if each.first_step)
    assert first.step in range(resumed, resumed + 3)
    assert "model" in {each.what for each in found.differences}


def test_a_run_that_cannot_be_continued_is_no_exact_resume(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(command: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
        continues = Path(command[command.index("--out") + 1], "steps.jsonl").exists()
        return launch([*command, *["data.seed=7"] * continues], env, log)

    monkeypatch.setattr(kills, "launch", refused)
    found = verified(config, kills=1)
    assert not found.bit_identical
    assert found.differences[0].what == "continuing"
    assert "with `data.seed: 0`, not 7" in found.differences[0].detail


def test_a_run_is_verified_without_being_touched(config: Path) -> None:
    assert run(["train", str(config), "--out", "mine"]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("mine").rglob("*")}
    asked = ["verify-resume", "mine", "--kills", "1", "--steps", "12", "--json", "found.json"]
    assert run([*asked, "--keep"]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in Path("mine").rglob("*")}
    found = json.loads(Path("found.json").read_bytes())
    assert (found["kills"], found["bit_identical"]) == (1, True)
    assert found["steps_lost_max"] <= found["every_steps"] == 1
    kept = read_json(Path(found["kept"]) / "resumed.json", Resumed)
    assert kept.bit_identical


def test_a_run_that_ends_before_its_first_kill_is_begun_again(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def ends_first(command: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
        nonlocal calls
        calls += 1
        ends = {name: value for name, value in env.items() if name != HELD}
        process = launch(command, ends if calls == 2 else env, log)
        if calls == 2:  # as on a machine where whoever would kill it gets no CPU
            assert process.wait() == 0
        return process

    monkeypatch.setattr(kills, "launch", ends_first)
    found = verified(config, kills=1)
    assert (found.kills, found.bit_identical) == (1, True)


def test_interrupted_it_goes_on_with_the_kill_that_was_next(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def interrupts(command: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return launch(command, env, log)

    monkeypatch.setattr(kills, "launch", interrupts)
    with pytest.raises(KeyboardInterrupt):
        verified(config, kills=2)
    found = verified(config, kills=2)
    assert found.bit_identical
    assert calls == 5, "the reference and the first kill were not made again"


def test_another_verification_in_its_directory_is_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="holds something else"):
        verified(config, out=tmp_path / "there")
    assert (tmp_path / "there" / "mine.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "no such config file"),
        (["."], "it has no config.yaml"),
        (["tiny.yaml", "--ranks", "3"], "cannot be shared evenly by 3"),
        (["tiny.yaml", "train.stepz=3"], "unknown key"),
    ],
)
def test_what_cannot_be_verified_is_refused(
    config: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify-resume", *arguments]) == 2
    assert why in capsys.readouterr().err
    assert not Path("runs").exists()


def test_nothing_of_the_short_run_leaves_the_machine(config: Path) -> None:
    told = ("checkpoint.upload=s3://bucket/mine", "logging.wandb=true", "logging.mlflow=true")
    short = short_settings(config, told, steps=12).config
    assert short.checkpoint.upload is None
    assert not any((short.logging.wandb, short.logging.mlflow, short.logging.tensorboard))


def test_kills_are_spread_over_the_run_and_its_moments() -> None:
    planned = aims(20, steps=60, every=5, seed=1)
    assert [aim.step for aim in planned] == sorted(aim.step for aim in planned)
    assert {aim.moment for aim in planned} == {"start", "step", "save"}
    assert planned == aims(20, steps=60, every=5, seed=1) != aims(20, steps=60, every=5, seed=2)


def test_where_no_save_can_be_seen_it_is_killed_all_the_same(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saves may be shorter than the looks at them are apart."""
    monkeypatch.setattr(kills.Session, "_uncommitted", lambda _: set())
    found = verified(config, kills=3)
    assert found.bit_identical
    assert (found.kills, found.kills_by_moment.get("save")) == (3, None)
