from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.command_run import COMMAND_RUN_FILE
from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement, Plan
from hotloop.trial import isolation
from hotloop.trial.arm import Arm
from hotloop.trial.isolation import SESSION_MARK, copy_workdir, in_copy, list_workdir
from hotloop.trial.measure import measure


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A working directory as users have them."""
    root = tmp_path / "user"
    (root / "data" / "raw").mkdir(parents=True)
    (root / "train.py").write_text("original")
    (root / "data" / "raw" / "x.bin").write_bytes(b"0" * 1000)
    (root / "latest").symlink_to("data/raw")
    (root / "absolute").symlink_to(root / "data")
    (root / "outside").symlink_to("../elsewhere")
    for left_out in (".git", "runs", "examined"):
        (root / left_out).mkdir()
        (root / left_out / "file").write_text("x")
    (root / "runs" / SESSION_MARK).touch()
    (root / "examined" / COMMAND_RUN_FILE).touch()
    (root / ".venv").mkdir()
    (root / ".venv" / "pyvenv.cfg").touch()
    os.mkfifo(root / "pipe")
    return root


def run(arm: Arm, directory: Path) -> Measurement:
    assert arm.workdir is not None
    listing = list_workdir(arm.workdir, without=directory)
    return measure(
        arm, directory=directory, plan=Plan(0, 1, 300), seed="0",
        cache=directory.parent / "cache", workdir=listing,
    )  # fmt: skip


def test_what_a_command_writes_where_it_runs_never_reaches_the_users_directory(
    user: Path, tmp_path: Path, python: Callable[..., Arm]
) -> None:
    source = """
import os, pathlib, shutil, sys, tempfile
pathlib.Path("train.py").write_text("overwritten")
pathlib.Path("new").write_text("made")
pathlib.Path("latest/x.bin").write_bytes(b"through an inner link")
pathlib.Path("absolute/new").write_bytes(b"through an absolute inner link")
pathlib.Path(sys.argv[1]).write_text("by its absolute path")
shutil.rmtree("data")
print(os.getcwd(), tempfile.gettempdir())
"""
    before = {p: p.read_bytes() for p in user.rglob("*") if p.is_file()}
    run(python(source, str(user / "train.py"), workdir=user), tmp_path / "trial")
    assert {p: p.read_bytes() for p in user.rglob("*") if p.is_file()} == before
    assert str(user) not in (tmp_path / "trial" / "log.txt").read_text()
    assert not (tmp_path / "trial" / "work").exists()  # twenty copies would fill a disk


def test_edited_files_are_seen_by_the_trial_alone(tmp_path: Path) -> None:
    root = tmp_path / "user"
    (root / "package").mkdir(parents=True)
    (root / "package" / "__init__.py").write_text("VALUE = 'as it is'\n")
    (root / "linked.py").symlink_to("package/__init__.py")
    command = (sys.executable, "-c", "import package, linked; print(package.VALUE, linked.VALUE)")
    edited = {"package/__init__.py": b"VALUE = 'edited'\n"}
    arm = Arm("edited", command, "none", workdir=root, edited=edited)
    run(arm, tmp_path / "trial")
    assert (tmp_path / "trial" / "log.txt").read_text() == "edited edited\n"
    assert (root / "package" / "__init__.py").read_text() == "VALUE = 'as it is'\n"
    plain = Arm("edited", command, "none", workdir=root)
    other = Arm("edited", command, "none", workdir=root, edited={"linked.py": b""})
    assert arm.to_mapping() != plain.to_mapping()
    assert arm.to_mapping() != other.to_mapping()


def test_edited_files_are_refused_where_the_command_runs_in_its_own_directory(
    tmp_path: Path,
) -> None:
    arm = Arm("edited", ("true",), "none", workdir=tmp_path, edited={"train.py": b""})
    with pytest.raises(UsageError, match="in the working directory itself none is edited"):
        measure(
            arm, directory=tmp_path / "trial", plan=Plan(0, 1, 60), seed="0",
            cache=tmp_path / "cache", workdir=None,
        )  # fmt: skip
    assert not (tmp_path / "train.py").exists()


def test_copy_leaves_out_history_and_sessions_and_links_environments(
    user: Path, tmp_path: Path
) -> None:
    copy_workdir(list_workdir(user, without=tmp_path), tmp_path / "copy")
    copy = tmp_path / "copy"
    assert sorted(p.name for p in copy.iterdir()) == [
        ".venv", "absolute", "data", "latest", "outside", "train.py",
    ]  # fmt: skip
    assert (copy / ".venv").readlink() == user / ".venv"
    assert (copy / "absolute").resolve() == copy / "data"
    assert (copy / "outside").readlink() == tmp_path / "elsewhere"


def test_session_inside_the_working_directory_is_not_copied_into_itself(user: Path) -> None:
    (user / "out").mkdir()
    (user / "out" / "log").write_text("x")
    listing = list_workdir(user, without=user / "out")
    assert not any("out/" in name for name, _ in listing.files)


def test_directory_too_large_to_copy_is_refused_naming_what_is_large(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "MAX_COPY_BYTES", 500)
    with pytest.raises(UsageError, match="most of it is in data"):
        list_workdir(user, without=tmp_path)


def test_digest_changes_with_the_users_files_and_not_with_compiled_modules(
    user: Path, tmp_path: Path
) -> None:
    before = list_workdir(user, without=tmp_path).digest
    (user / "__pycache__").mkdir()
    (user / "__pycache__" / "train.pyc").write_text("x")
    assert list_workdir(user, without=tmp_path).digest == before
    (user / "train.py").write_text("edited")
    assert list_workdir(user, without=tmp_path).digest != before


def test_absolute_paths_into_the_directory_lead_to_the_copy() -> None:
    def turned(text: str) -> str:
        return in_copy(text, Path("/a/b"), Path("/copy"))

    assert turned("/a/b/train.py") == "/copy/train.py"
    assert turned("--out=/a/b") == "--out=/copy"
    assert turned("/a/bc/x") == "/a/bc/x"
    assert turned("/z/a/b/x") == "/z/a/b/x"


def test_trackers_are_offline_unless_the_arm_says_otherwise(
    tmp_path: Path, python: Callable[..., Arm]
) -> None:
    source = "import os; print(*(os.environ[n] for n in ('WANDB_MODE', 'HF_HUB_OFFLINE')))"
    user = tmp_path / "user"
    user.mkdir()
    run(python(source, workdir=user, env={"HF_HUB_OFFLINE": "0"}), tmp_path / "trial")
    assert (tmp_path / "trial" / "log.txt").read_text() == "offline 0\n"


def test_padding_of_the_environment_differs_between_processes(
    tmp_path: Path, python: Callable[..., Arm]
) -> None:
    arm = python("import os; print(len(os.environ['HOTLOOP_PADDING']))")
    sizes = []
    for seed in "12":
        measure(
            arm, directory=tmp_path / seed, plan=Plan(0, 1, 300), seed=seed,
            cache=tmp_path / "cache", workdir=None,
        )  # fmt: skip
        sizes.append((tmp_path / seed / "log.txt").read_text())
    assert sizes[0] != sizes[1]
