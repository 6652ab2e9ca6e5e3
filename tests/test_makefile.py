"""`make setup` makes the environment that was asked for, with all that the tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def setup(venv: Path, *asked: str) -> subprocess.CompletedProcess[str]:
    """`make setup` with pip as the only package: what is tested is which Python it gets."""
    without = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "MAKEFLAGS", "VENV")}
    command = ["make", "-C", str(REPOSITORY), "setup", f"VENV={venv}", "PACKAGES=pip", *asked]
    return subprocess.run(command, capture_output=True, text=True, env=without, check=False)


def version(python: Path | str) -> str | None:
    asked = [str(python), "-c", "import sys; print(*sys.version_info[:3], sep='.')"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def other_python() -> str | None:
    """A Python of another version than the tests' own, on the path or beside it as pyenv keeps them."""
    beside = sorted(Path(sys.base_prefix).parent.glob("3.1[123]*/bin/python3"))
    named = [shutil.which(f"python3.{minor}") for minor in (11, 12, 13)]
    for python in [*named, *map(str, beside)]:
        if python and (found := version(python)) and found != version(sys.executable):
            return python
    return None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An environment and what was printed while it was created; in place of another one if there are two Pythons."""
    venv = tmp_path_factory.mktemp("made") / "venv"
    if other := other_python():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    done = setup(venv, f"PYTHON={other or sys.executable}")
    assert done.returncode == 0, done.stderr
    return venv, done.stdout


def test_installing_is_not_silent(made: tuple[Path, str]) -> None:
    assert "this can take 10 minutes" in made[1]
    assert "Requirement already satisfied: pip" in made[1]


def test_a_python_that_does_not_start_is_named_and_nothing_is_removed(
    made: tuple[Path, str],
) -> None:
    venv, _ = made
    before = version(venv / "bin/python")
    refused = setup(venv, "PYTHON=python3.99")
    assert refused.returncode == 2
    assert "error: python3.99 is not installed or does not start" in refused.stderr
    assert version(venv / "bin/python") == before


def test_another_python_replaces_the_environment_and_stays(made: tuple[Path, str]) -> None:
    other = other_python()
    if other is None:
        pytest.skip("no second Python here")
    venv, printed = made
    assert f"in place of the one with Python {version(sys.executable)}" in printed
    assert version(venv / "bin/python") == version(other)

    assert "Nothing to be done" in setup(venv).stdout
    assert "Nothing to be done" in setup(venv, f"PYTHON={other}").stdout
    (venv / ".ready").unlink()  # as after an interrupted installation
    again = setup(venv)
    assert f"installing packages into {venv} (Python {version(other)})" in again.stdout
    assert version(venv / "bin/python") == version(other)


def test_the_tests_environment_has_every_extra_but_those_for_gpus_and_for_stores_without_a_local_server() -> (
    None
):
    """A test that needs an extra is skipped without it: `make test` leaves none out."""
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    (own,) = (package for package in extras["dev"] if package.startswith("hotloop["))
    named = set(own.removeprefix("hotloop[").removesuffix("]").split(","))
    assert named == set(extras) - {"dev", "gpu", "gcs", "azure"}
