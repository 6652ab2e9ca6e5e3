"""The long proofs of `benchmarks/checkpoint_faults`, each in small: the scripts themselves, with few of their cases."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import warm_python

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "checkpoint_faults"


def result_of(script: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What a script stores; it must have found nothing wrong."""
    file = tmp_path / "result.json"
    done = warm_python.run(
        [str(SCRIPTS / f"{script}.py"), *arguments, "--json", str(file)],
        env=os.environ,
        cwd=tmp_path,
        trainer=True,
    )
    if "strace may not trace here" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, (done.stdout, done.stderr, file.exists() and file.read_text())
    found: dict[str, Any] = json.loads(file.read_text())
    return found


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@needs_strace
@pytest.mark.at_once(2)
@pytest.mark.parametrize("window", ["save beside", "continuing", "last save", "start"])
def test_run_killed_at_a_system_call_continues_to_the_same_end(tmp_path: Path, window: str) -> None:
    found = result_of("kill_at_calls", tmp_path, "--windows", window, "--every", "19")
    assert found["points"] >= 3
    assert found["kills"] == found["points"]


def test_damage_of_each_kind_is_found_and_named_and_the_checkpoint_before_is_used(
    tmp_path: Path,
) -> None:
    found = result_of("damage", tmp_path, "--cases", "66", "--commands", "3")
    assert found["right"] == found["cases"] == 66


@needs_strace
@pytest.mark.at_once(1)
@pytest.mark.parametrize("window", ["save", "from nothing to the first save", "last save"])
def test_what_a_loss_of_power_may_leave_is_continued_from(tmp_path: Path, window: str) -> None:
    most = ("--most", "40", "--commands", "2")
    found = result_of("power_loss", tmp_path, "--windows", window, *most)["windows"][window]
    assert found["examined"] == 40
    assert found["different"] > 100


@needs_strace
def test_disk_that_refuses_ends_training_with_one_error_and_nothing_is_lost(tmp_path: Path) -> None:
    found = result_of("disk_faults", tmp_path, "--windows", "save", "--every", "21")
    assert found["right"] == found["cases"] >= 6


def test_trainings_killed_at_random_moments_end_alike(tmp_path: Path) -> None:
    one = "data.prefetch 2"
    found = result_of("random_kills", tmp_path, "--short", "4", "--kinds", one, "--kills", "3")
    assert found["short"]["reached_the_end"] == 4
    assert (found[one]["kills"], found[one]["bit_equal"]) == (3, True)


@pytest.mark.slow
def test_two_ranks_killed_at_random_moments_end_alike(tmp_path: Path) -> None:
    found = result_of("random_kills", tmp_path, "--short", "0", "--kinds", "two ranks", "--kills", "5")  # fmt: skip
    assert found["two ranks"]["bit_equal"]
