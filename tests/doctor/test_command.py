"""Which commands are refused and why, what they are called, and what is added to their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.doctor.command import attached_environment, refuse_unexaminable, script_name

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    "flags",
    ["-I", "-E", "-S", "-uE", "-W error -I", "-Xdev -sS", "-B -X importtime -I"],
)
def test_a_python_that_cannot_be_reached_is_refused_with_the_flag(flags: str) -> None:
    with pytest.raises(UsageError, match="no step could be seen"):
        refuse_unexaminable([sys.executable, *flags.split(), "train.py"], ENVIRONMENT)


@pytest.mark.parametrize(
    "arguments",
    [
        "train.py -I",
        "-m pkg -S",
        "-u train.py --E -E",
        "-c pass -I",
        "-W ISE train.py",
        "-WISE x.py",
    ],
)
def test_flags_of_the_script_are_its_own(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "x.py"):
        (tmp_path / name).touch()
    assert complaint([sys.executable, *arguments.split()]) == ""
    assert "`-I`" in complaint([sys.executable, "-I", *arguments.split()])


def complaint(command: list[str], environment: Mapping[str, str] = ENVIRONMENT) -> str:
    """What is said of a command that is refused; empty for one that may be examined."""
    try:
        refuse_unexaminable(command, environment)
    except UsageError as error:
        return str(error)
    return ""


def test_a_python_behind_another_program_is_seen() -> None:
    with pytest.raises(UsageError, match="`-I`"):
        refuse_unexaminable(["env", "A=1", sys.executable, "-I", "train.py"], ENVIRONMENT)


def test_a_program_whose_first_line_isolates_python_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "launch"
    program.write_text(f"#!{sys.executable} -I\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="`-I`") as caught:
        refuse_unexaminable([str(program)], ENVIRONMENT)
    assert caught.value.where == f"{program}:1"


@pytest.mark.parametrize("script", ["train.py", "src/train.py"])
def test_a_bare_script_is_told_what_to_write(script: str) -> None:
    with pytest.raises(UsageError, match="is a script, not a program") as caught:
        refuse_unexaminable([script, "--lr", "1"], ENVIRONMENT)
    assert f"hotloop doctor --no-try -- python {script} --lr 1" in str(caught.value)


def test_a_script_that_may_be_executed_is_a_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("#!/usr/bin/env python3\n")
    assert "is a script, not a program" in complaint([str(script)])
    script.chmod(0o755)
    assert complaint([str(script)]) == ""


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot run `pyhton`"):
        refuse_unexaminable(["pyhton", "train.py"], ENVIRONMENT)
    with pytest.raises(UsageError, match="no command was given"):
        refuse_unexaminable([], ENVIRONMENT)


def test_a_doctor_inside_a_doctor_is_refused() -> None:
    with pytest.raises(UsageError, match="inside another"):
        refuse_unexaminable([sys.executable, "x.py"], {**ENVIRONMENT, "HOTLOOP_DOCTOR": "/runs/x"})


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --model x.pt", "train"),
        ("python -u projects/adder/adder.py", "adder"),
        ("torchrun --nproc-per-node 2 train_gpt.py", "train_gpt"),
        ("python -m torch.distributed.run --nproc-per-node 2 x/fit.py", "fit"),
        ("python -m pkg.train --epochs 3", "pkg.train"),
        ("accelerate launch -m pkg.fit", "pkg.fit"),
        ("bash run.sh", "bash"),
        ("jupyter nbconvert --to notebook --execute work/adder.ipynb", "adder"),
        ("python -c import\ttorch", "python"),
    ],
)
def test_it_is_named_after_what_it_runs(command: str, name: str) -> None:
    assert script_name(command.split(" ")) == name


def test_only_three_variables_differ_and_theirs_come_last(tmp_path: Path) -> None:
    own = {"PYTHONPATH": "/theirs", "OTHER": "1"}
    found = attached_environment(own, tmp_path, steps=60)
    assert {k: v for k, v in found.items() if own.get(k) != v} == {
        "PYTHONPATH": found["PYTHONPATH"],
        "HOTLOOP_DOCTOR": str(tmp_path),
        "HOTLOOP_DOCTOR_STOP": "60",
    }
    assert found["PYTHONPATH"].split(os.pathsep)[-1] == "/theirs"
    (tmp_path / "b").mkdir()
    assert "HOTLOOP_DOCTOR_STOP" not in attached_environment({}, tmp_path / "b")
    (tmp_path / "c").mkdir()
    bounded = attached_environment({}, tmp_path / "c", seconds=60.0)
    assert bounded["HOTLOOP_DOCTOR_STOP"] == "60s"


def test_nothing_of_ours_but_hotloop_can_be_imported_by_it(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    environment = attached_environment({}, tmp_path / "b", steps=None)
    entries = environment["PYTHONPATH"].split(os.pathsep)
    names = {each.name for entry in entries for each in Path(entry).iterdir()}
    assert names - {"__pycache__", "__init__.py"} == {"sitecustomize.py", "hotloop"}
    done = subprocess.run(
        [sys.executable, "-c", "import hotloop, sys; print(hotloop.__file__)"],
        env={**os.environ, **environment, "HOTLOOP_DOCTOR": str(tmp_path / "b")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith(str(tmp_path / "b" / "path" / "hotloop")), done.stderr


@pytest.mark.parametrize("before", [[], ["env", "A=1"], ["A=1"], ["nohup"]])
def test_script_that_does_not_exist_is_refused_before_anything_is_made(
    before: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "A=1").touch(mode=0o755)
    with pytest.raises(UsageError, match=r"no such script `nothere\.py`") as caught:
        refuse_unexaminable([*before, sys.executable, "-u", "nothere.py", "-x"], os.environ)
    assert caught.value.where == str(tmp_path)


@pytest.mark.parametrize(
    "command", ["ssh host python {}", "docker exec c python {}", "{} -m nothere"]
)
def test_script_of_another_machine_is_not_looked_for(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ssh", "docker"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = command.format(sys.executable if "-m" in command else "nothere.py").split()
    assert complaint(words, os.environ) == ""
    here = [sys.executable, *words[words.index("python") + 1 :]] if "python" in words else words
    assert ("no such script" in complaint(here, os.environ)) == (here is not words)
