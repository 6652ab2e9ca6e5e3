"""A doctor that was killed while it tried fixes goes on, in the directory that it is given."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotloop.core.command_run import CommandRun
from hotloop.core.errors import UsageError
from hotloop.core.files import write_json
from hotloop.doctor.directory import (
    begun_options,
    begun_run,
    refuse_other_values,
    set_interrupted_aside,
    store_options,
)
from hotloop.doctor.fixes import Fix
from hotloop.hardware.environment import read_host, runs_on
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.plan import TrialPlan

pytestmark = pytest.mark.usefixtures("without_compiler")

SCRIPT = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(12)])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(60):
    loss = model(torch.randn(4, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("ended by itself")
"""


def doctor(workdir: Path) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "hotloop", "doctor", "--out", "run", "--only", "fused_optimizer"),
        *("--budget", "20m", "--json", "found.json", "--", sys.executable, "train.py"),
    ]
    return subprocess.Popen(
        command, cwd=workdir, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finished(workdir: Path) -> dict[str, float]:
    trials = (workdir / "run" / "trials").glob("*/*/measurement.json")
    return {str(path.relative_to(workdir)): path.stat().st_mtime for path in trials}


def ended_after(
    num_trials: int, process: subprocess.Popen[str], workdir: Path, how: int, of: str = ""
) -> tuple[str, str]:
    """What it printed: it is sent `how` once so many trials are done, of those with `of` in their path."""
    deadline = time.monotonic() + 300
    while process.poll() is None and sum(of in each for each in finished(workdir)) < num_trials:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(how)
    return process.communicate(timeout=120)


def test_interrupted_trying_says_how_to_continue_and_keeps_what_was_finished(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    first = doctor(tmp_path)
    printed, said = ended_after(1, first, tmp_path, signal.SIGINT)
    assert first.returncode == 75, said
    assert "ended by itself" in printed
    assert "the same command with `--out run` continues" in said
    assert json.loads((tmp_path / "found.json").read_text())["ledger"] is None
    before = finished(tmp_path)
    printed, said = ended_after(1, doctor(tmp_path), tmp_path, signal.SIGKILL, of="/pair-")
    assert "continuing in run" in said
    assert "ended by itself" not in printed  # the command itself is not run again
    after = finished(tmp_path)
    assert len(after) > len(before)
    assert {place: after[place] for place in before} == before
    # Between comparisons too: the file that was written is one of the working directory's.
    _, said = ended_after(len(after) + 1, doctor(tmp_path), tmp_path, signal.SIGKILL)
    assert "another comparison" not in said
    assert len(finished(tmp_path)) > len(after)


def run(directory: Path, **changes: object) -> Path:
    """A directory as a doctor leaves it that was killed while it tried fixes."""
    (directory / "trials").mkdir(parents=True)
    stored = CommandRun(("python", "a.py"), str(Path.cwd()), 0.0, _version(), ended="by_itself")
    write_json(directory / "doctor.json", {**_plain(stored), **changes})
    return directory


def test_run_that_was_refused_before_its_first_trial_is_continued(tmp_path: Path) -> None:
    directory = run(tmp_path / "refused")
    (directory / "trials").rmdir()
    assert begun_run(directory, ("python", "a.py"), steps=None) is None
    (directory / "measurement.json").write_text("{}")
    assert begun_run(directory, ("python", "a.py"), steps=None) is not None


def test_run_of_other_variables_is_not_continued_and_its_line_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    directory = run(tmp_path / "typed", variables=read_host().variables)
    begun = begun_run(directory, ("python", "a.py"), steps=None)
    assert begun is not None
    assert begun.again(["hotloop", "doctor", "--", "a b"]).startswith(
        "OMP_NUM_THREADS=1 hotloop doctor -- 'a b'"
    )
    for other in ("2", None):
        monkeypatch.setenv("OMP_NUM_THREADS", other) if other else monkeypatch.delenv(
            "OMP_NUM_THREADS"
        )
        with pytest.raises(UsageError, match="another value of OMP_NUM_THREADS"):
            begun_run(directory, ("python", "a.py"), steps=None)
    before = run(tmp_path / "of an older version")
    assert begun_run(before, ("python", "a.py"), steps=None) is not None


def test_run_on_another_torch_python_or_gpu_is_not_continued(tmp_path: Path) -> None:
    installed, command = str(torch.__version__), ("python", "a.py")

    def begun(name: str, version: str, file: str, **other: str) -> CommandRun | None:
        directory = run(tmp_path / name, runs_on=runs_on("python") | other)
        environment = {**_plain(read_host()), "torch": version, **other}
        write_json(directory / "environment.json", environment)
        write_json(directory / "imports.json", {"modules": {"torch": file}})
        return begun_run(directory, command, steps=None)

    assert begun("same", installed, torch.__file__) is not None
    with pytest.raises(UsageError, match=re.escape(f"torch (2.0.0 then, {installed} now)")):
        begun("upgraded", "2.0.0", torch.__file__)
    with pytest.raises(UsageError, match=re.escape(f"torch ({installed} then, none now)")):
        begun("removed", installed, str(tmp_path / "torch" / "__init__.py"))
    for name in ("program", "Python", "NVIDIA driver", "GPU", "cpu_model", "memory_limit_bytes"):
        with pytest.raises(UsageError, match=f"another {name.replace('_', ' ')} .other then, "):
            begun(name, installed, torch.__file__, **{name: "other"})
    assert begun_run(run(tmp_path / "of an older version"), command, steps=None) is not None


def test_interrupted_examination_of_the_same_command_is_set_aside_whole(tmp_path: Path) -> None:
    for number in (1, 2):
        directory = run(tmp_path / "stopped", ended="interrupted")
        (directory / "trials").rmdir()
        (directory / "notes of mine").write_text(str(number))
        for other in (("python", "b.py"), ("python", "a.py", "--more")):
            assert set_interrupted_aside(directory, other) is None
        aside = set_interrupted_aside(directory, ("python", "a.py"))
        assert aside == tmp_path / f"stopped-interrupted-{number}"
        assert (aside / "notes of mine").read_text() == str(number)
        assert not directory.exists()
    for ended in ("by_itself", "failed", None):
        (other_run := run(tmp_path / f"ended {ended}", ended=ended)).joinpath("trials").rmdir()
        assert set_interrupted_aside(other_run, ("python", "a.py")) is None


def test_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    """Whatever its names: nothing of a user's is moved or removed."""
    (tmp_path / "users" / "before").mkdir(parents=True)
    assert set_interrupted_aside(tmp_path / "users", ("python", "a.py")) is None
    assert (tmp_path / "users" / "before").is_dir()


def test_value_that_does_not_go_with_what_was_begun_is_named(tmp_path: Path) -> None:
    fix = Fix(CATALOGUE["threads"], 4, (), None)
    place = tmp_path / "trials" / "threads"
    place.mkdir(parents=True)
    refuse_other_values(tmp_path, [fix])
    (place / "plan.json").write_text(json.dumps({"candidate": {"fixes": {"threads": 2}}}))
    with pytest.raises(UsageError, match="another --only: `threads` was begun with 2, not 4"):
        refuse_other_values(tmp_path, [fix])
    refuse_other_values(tmp_path, [replace(fix, value=2)])


def test_steps_stay_as_they_were_once_trials_of_them_were_begun(tmp_path: Path) -> None:
    plan = TrialPlan(3, 20, 60.0)
    store_options(tmp_path, plan, 40)
    assert begun_options(tmp_path, in_place=True) == {}
    trials = tmp_path / "trials"
    (trials / "baseline" / "losses-1234-1").mkdir(parents=True)
    (trials / "baseline" / "losses-1234-1" / "measurement.json").write_text("{}")
    assert begun_options(tmp_path, in_place=True) == {"loss_steps": 40}
    (trials / "threads").mkdir()
    (trials / "threads" / "plan.json").write_text("{}")
    assert begun_options(tmp_path, in_place=False) == {
        **{"loss_steps": 40, "steps": 20, "at_once": False}
    }
    with pytest.raises(UsageError, match="another --in-place: its trials were begun without it"):
        begun_options(tmp_path, in_place=True)


def _version() -> str:
    import hotloop

    return hotloop.__version__


def _plain(stored: object) -> dict[str, object]:
    from hotloop.core.files import to_plain

    plain: dict[str, object] = json.loads(json.dumps(to_plain(stored)))
    return plain


def test_only_a_run_that_was_examined_is_continued(tmp_path: Path) -> None:
    command = ("python", "a.py")
    assert begun_run(tmp_path, command, steps=None) is None
    assert begun_run(run(tmp_path / "killed"), command, steps=None) is not None
    ended = run(tmp_path / "failed", ended="failed")
    assert begun_run(ended, command, steps=None) is None
    block = run(tmp_path / "block", of_a_block=True)
    assert begun_run(block, command, steps=None) is None  # seen by `hotloop.watch`
    done = run(tmp_path / "done")
    (done / "ledger.json").write_text("{}")
    assert begun_run(done, command, steps=None) is not None  # to write its patch, say


def test_run_that_was_ended_is_not_continued_as_a_whole_one(tmp_path: Path) -> None:
    directory = run(tmp_path / "killed")
    assert begun_run(directory, ("python", "a.py"), steps=None, to_end=True) is not None
    stored = json.loads((directory / "doctor.json").read_text())
    ended = {**stored, "ended": "enough_steps", "seconds": 60.0}
    (directory / "doctor.json").write_text(json.dumps(ended))
    assert begun_run(directory, ("python", "a.py"), steps=None) is not None
    with pytest.raises(UsageError, match="another --to-end"):
        begun_run(directory, ("python", "a.py"), steps=None, to_end=True)


@pytest.mark.parametrize(
    ("command", "steps", "what"),
    [
        (("python", "b.py"), None, "another command"),
        (("python", "a.py"), 30, "another --steps"),
    ],
)
def test_run_of_something_else_is_not_continued(
    tmp_path: Path, command: tuple[str, ...], steps: int | None, what: str
) -> None:
    directory = run(tmp_path / "killed")
    with pytest.raises(UsageError, match=what):
        begun_run(directory, command, steps=steps)
