"""Somebody's script that resumes: exact resume is proven, and each thing that it does not restore is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_python
from hotloop.cli.main import run
from hotloop.core.child import RESUME_TRACE, SAME_RANDOMNESS
from hotloop.core.errors import CommandFailed, UsageError
from hotloop.resume import foreign, kill_and_resume
from hotloop.resume.foreign import verify_command
from hotloop.resume.result import Resumed

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
SCRIPT = (sys.executable, "foreign_training.py")
RESUME = f"{sys.executable} foreign_training.py --resume"


def forked(command: list[str], env: dict[str, str], place: Path) -> int:
    """As `kill_and_resume._run`, forked from a process that holds torch: which hashes strings as it does."""
    own = {name: value for name, value in env.items() if name != "PYTHONHASHSEED"}
    done = warm_python.run(command[1:], env=own, cwd=Path.cwd())
    (place / "log.txt").write_text(done.stdout + done.stderr)
    return done.returncode


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the script. Its processes are forks, in a copy that is no sandbox."""
    shutil.copy(HERE / "foreign_training.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kill_and_resume, "_run", forked)

    def trial(arm: Any, place: Path, **_: Any) -> None:
        if not (directory := place / "run").exists():
            shutil.copytree(tmp_path, place / "work", ignore=shutil.ignore_patterns("runs"))
            directory.mkdir()
            with monkeypatch.context() as patch:
                patch.chdir(place / "work")
                patch.setattr(sys, "argv", ["", arm.command[-1]])
                patch.setenv(RESUME_TRACE, arm.env[RESUME_TRACE])
                kill_and_resume.main()

    monkeypatch.setattr(foreign, "trial", trial)
    return tmp_path


def verified(monkeypatch: pytest.MonkeyPatch, lack: str = "", **options: Any) -> Resumed:
    monkeypatch.setenv("LACK", lack)
    return verify_command(SCRIPT, options.pop("resume", RESUME), **options)


def test_a_script_that_restores_everything_resumes_exactly(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verified(monkeypatch)
    assert found.differences == ()
    assert found.bit_identical
    assert found.kills_by_moment == {"step": 2, "save": 1}
    assert found.steps_lost_max == found.every_steps == 8
    assert "its end was not looked at" in found.notes[0]
    assert [each.name for each in workdir.iterdir()] == ["foreign_training.py"], (
        "nothing is left behind"
    )


@pytest.mark.parametrize(
    ("lack", "step", "detail"),
    [
        ("optimizer", 8, "it has no exp_avg, exp_avg_sq, step"),
        ("learning rate", 16, "lr 0.01 instead of 0.005"),
        ("samples", 8, "those of step 0: the order starts anew"),
        ("random state", 8, "the random state of torch was not restored"),
        ("weights", 8, "those of no step of the run: rounded on the way"),
        ("buffers", 8, "what the model keeps beside weights (batch"),
        ("loss", 8, " instead of "),
        ("start", 0, "it starts from scratch: from the weights of step 0"),
        ("continuing", None, "killed in the middle of a save, it cannot be continued: "),
        ("steps", 33, "it goes on, and the uninterrupted run ends after step 32"),
    ],
)
def test_what_is_not_restored_is_named_with_the_first_step_that_differs(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, lack: str, step: int | None, detail: str
) -> None:
    found = verified(monkeypatch, lack, steps=40 if lack == "steps" else None)
    assert not found.bit_identical
    causes = [each.what for each in found.differences]
    # Its order is drawn from a random state that is not restored either.
    assert causes[: causes.index(lack)] == (["random state"] if lack == "samples" else [])
    named = found.differences[causes.index(lack)]
    assert named.step == step
    assert detail in named.detail
    assert named.do


def with_lines(workdir: Path, before: str, *lines: str) -> None:
    """The script with these lines of its loop before one that begins so."""
    text = (workdir / SCRIPT[1]).read_text()
    place = text.index(f"    {before}")
    added = "".join(f"    {line}\n" for line in lines)
    (workdir / SCRIPT[1]).write_text(text[:place] + added + text[place:])


def test_a_kill_in_the_second_file_of_a_save_continues_from_the_first(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (workdir / SCRIPT[1]).read_text()
    (workdir / SCRIPT[1]).write_text(text + "    torch.save(model.state_dict(), 'best.pt')\n")
    found = verified(monkeypatch, kills=9)
    assert found.differences == ()
    assert found.kills_by_moment["save"] >= 3


@pytest.mark.parametrize(("made", "is_one"), [("loss.detach()", True), ("loss.item()", False)])
def test_what_only_the_next_save_shows_is_named(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, made: str, is_one: bool
) -> None:
    with_lines(workdir, "state = {", f"best = globals().get('best', 0.0) + {made} + epoch")
    others = "'now': __import__('time').time(), 'names': {'a', 'b', 'c', 'd'}, 'run': str(random.random())"
    with_lines(workdir, 'if lack != "save"', f"state |= {{'best': best, {others}}}")
    found = verified(monkeypatch)
    said = "`best` in last.tmp is not what the uninterrupted run saves"
    assert [each.what for each in found.differences] == (["what it saves"] if is_one else [])
    assert said in (found.differences[0].detail if is_one else " ".join(found.notes))
    assert found.bit_identical != is_one


@pytest.mark.parametrize("traced", [False, True])
def test_workers_that_live_on_draw_as_they_do_where_a_resume_is_proven(
    tmp_path: Path, traced: bool
) -> None:
    """A resume starts workers, and draws a number for them, where the training went on with those that it had."""
    look = "import torch.utils.data.dataloader as d; print(d._BaseDataLoaderIter._reset.__module__)"
    start = "from hotloop.trial.seeding import install_from_environment as seed; seed()"
    (tmp_path / "look.py").write_text(f"{start}\n{look}\n")
    own = {SAME_RANDOMNESS: str(tmp_path), **({RESUME_TRACE: str(tmp_path)} if traced else {})}
    env = {**os.environ, "PYTHONPATH": str(SOURCE), **own}
    done = subprocess.run([sys.executable, tmp_path / "look.py"], env=env, capture_output=True, text=True, check=True)  # fmt: skip
    expected = "torch.utils.data.dataloader" if traced else "hotloop.trial.seeding"
    assert done.stdout.strip() == expected


def test_a_script_without_a_seed_draws_other_numbers_after_a_restart(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verified(monkeypatch, "seed")
    assert found.bit_identical, "it restores its random state"
    text = (workdir / SCRIPT[1]).read_text()
    (workdir / SCRIPT[1]).write_text(text.replace('lack != "seed"', "False"))
    found = verified(monkeypatch, "samples", out=workdir / "runs" / "other")
    details = {each.what: each.detail for each in found.differences}
    assert "no step of the uninterrupted run took" in details["samples"]


def test_what_differs_without_a_kill_is_not_blamed_on_the_resume(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (workdir / SCRIPT[1]).read_text()
    other = text.replace("scale(1.0)), y)", "scale(1.0)), y) + os.getpid() * 1e-6")
    (workdir / SCRIPT[1]).write_text(other)
    found = verified(monkeypatch)
    assert found.reproducible is False
    assert found.differences == ()
    assert not found.bit_identical
    assert "differs without any kill, too: loss" in found.notes[0]


def test_what_cannot_be_seen_is_noted(workdir: Path) -> None:
    (workdir / "plain.py").write_text(
        "import os, torch\n"
        "state = torch.load('w.pt') if os.path.exists('w.pt') else [torch.ones(3), 0]\n"
        "weights, optimizer = state[0].requires_grad_(), None\n"
        "optimizer = torch.optim.SGD([weights], lr=0.1)\n"
        "for step in range(state[1], 20):\n"
        "    (weights * step).sum().backward()\n"
        "    optimizer.step()\n"
        "    if step % 4 == 3:\n"
        "        torch.save([weights.detach(), step + 1], 'w.tmp')\n"
        "        os.replace('w.tmp', 'w.pt')\n"
    )
    found = verify_command((sys.executable, "plain.py"))
    assert [each.what for each in found.differences] == ["loss", "weights"], "gradients were kept"
    assert found.differences[0].step == 5
    assert "what it trains on was not seen" in found.notes[0]


def test_interrupted_it_goes_on_with_the_training_that_was_next(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def interrupts(command: list[str], env: dict[str, str], place: Path) -> int:
        begun.append(str(place.relative_to(place.parents[2])))
        if len(begun) == 2:
            shutil.rmtree(place.parents[1])
            raise KeyboardInterrupt
        return forked(command, env, place)

    monkeypatch.setattr(kill_and_resume, "_run", interrupts)
    with pytest.raises(KeyboardInterrupt):
        verified(monkeypatch, kills=1)
    assert verified(monkeypatch, kills=1).bit_identical
    assert begun == ["uninterrupted/run/0", *["kill-1/run/0"] * 2, "kill-1/run/1"], "one was kept"


@pytest.mark.parametrize(
    ("lack", "error", "why"),
    [
        ("failure", CommandFailed, "EOFError: EOF when reading a line"),
        ("save", UsageError, "it saved nothing in 32 steps"),
    ],
)
def test_what_cannot_be_verified_says_why(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, lack: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        verified(monkeypatch, lack)
    text = (workdir / SCRIPT[1]).read_text()
    (workdir / SCRIPT[1]).write_text(text.replace('os.environ.get("LACK", "")', '""'))
    assert verified(monkeypatch, lack).bit_identical, "it looks at the script again"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["tiny.yaml", "--", *SCRIPT], "give a RUN or CONFIG"),
        ([], "give a RUN or CONFIG"),
        (["tiny.yaml", "--resume-cmd", "python b.py"], "give a RUN or CONFIG"),
        (["--", "python", "nowhere.py"], "no such script `nowhere.py`"),
        (["--resume-cmd", "python nowhere.py", "--", *SCRIPT], "no such script `nowhere.py`"),
        (
            ["--resume-cmd", "python 'a", "--", *SCRIPT],
            "--resume-cmd cannot be split: No closing quo",
        ),
        (["--ranks", "2", "--", *SCRIPT], "give a RUN or CONFIG"),
        (["--out", ".", "--", *SCRIPT], "this directory holds something else"),
    ],
)
def test_bad_input_is_refused(
    workdir: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify-resume", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_the_example_is_killed_in_its_sandbox_and_continues_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(HERE.parents[1] / "examples" / "resumable_loop.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    asked = ["--kills", "1", "--json", "found.json", "--", sys.executable, "resumable_loop.py"]
    assert run(["verify-resume", *asked]) == 0
    assert "Resume is exact: after 1 kill" in capsys.readouterr().out
    found = json.loads(Path("found.json").read_bytes())
    assert (found["kills"], found["bit_identical"]) == (1, True)
    assert found["steps_lost_max"] == 10
    assert not Path("checkpoints").exists()
