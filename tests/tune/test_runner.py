"""What values of a script's options take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from loader_uses import loader_use

from hotloop.core.census import Census
from hotloop.core.judgement import Diagnosis, Steps
from hotloop.doctor import batch_memory
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import Costs
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan
from hotloop.tune.options import options_of
from hotloop.tune.runner import OptionRunner, value_of

MB = 1_000_000
GIVEN = ("--num-workers=2", "--prefetch-factor=2", "--batch-size=32", "--accum-steps=32")


def reason(directory: Path, *varied: str, seen: dict[str, Any] | None = None) -> str | None:
    """Of all these values together, for batches of 10 MB."""
    runner, fixes = tried(directory, *varied, seen=seen)
    return runner.reason_too_large(fixes)


def tried(
    directory: Path, *varied: str, seen: dict[str, Any] | None = None, device: str = "cpu"
) -> tuple[OptionRunner, list[Fix]]:
    """All these values, and what runs them."""
    loader = {"num_workers": 2, "prefetch_factor": 2, "batch_size": 32, "batch_bytes": 10 * MB}
    census = Census(device, loaders=(loader_use("train.py:3", **loader | (seen or {})),))
    command = (sys.executable, "train.py", *GIVEN, "--tokenize-workers=2")
    options = options_of(varied, (), (), command)
    runner = OptionRunner(
        Arm("baseline", command, "step_clock"),
        TrialPlan(3, 20, timeout_s=120, aa_pairs=0),
        Costs(2.0, 0.01),
        directory,
        20,
        100,
        census=census,
        options=options,
    )
    diagnosis = Diagnosis("balanced", Steps(9, 1, 0.1))
    return runner, [value_of(o, o.values[0], diagnosis, census) for o in options]


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for the command as given."""
    monkeypatch.setattr(batch_memory, "shared_memory_left_bytes", lambda: 64 << 20)
    monkeypatch.setattr(batch_memory, "memory_left_bytes", lambda: None)


@pytest.mark.parametrize(
    ("varied", "said"),
    [
        (["--num-workers=8"], "170 MB of /dev/shm (8 workers x 2 batches of 10 MB"),
        (["--prefetch-factor=8"], "170 MB of /dev/shm (2 workers x 8 batches of 10 MB"),
        (["--batch-size=64"], "100 MB of /dev/shm (2 workers x 2 batches of 20 MB"),
        (["--num-workers=3", "--batch-size=64"], "140 MB of /dev/shm (3 workers x 2 batches"),
        (["--num-workers=1", "--batch-size=128"], "120 MB of /dev/shm (1 worker x 2 batches"),
    ],
)
def test_values_whose_batches_do_not_fit_are_told(
    varied: list[str], said: str, tmp_path: Path
) -> None:
    why = reason(tmp_path, *varied)
    assert why is not None
    assert said in why


@pytest.mark.parametrize(
    "varied",
    [
        ["--num-workers=0", "--batch-size=64"],
        ["--num-workers=3"],
        ["--batch-size=16"],
        ["--accum-steps=64"],
        ["--tokenize-workers=8"],
        ["--eval-batch-size=64"],
        ["OMP_NUM_THREADS=8"],
    ],
)
def test_values_that_fit_or_are_of_something_else_are_not(
    varied: list[str], tmp_path: Path
) -> None:
    assert reason(tmp_path, *varied) is None


def test_an_option_that_the_loader_was_not_seen_to_follow_tells_nothing(tmp_path: Path) -> None:
    assert reason(tmp_path, "--num-workers=8", seen={"num_workers": 1}) is None
    assert reason(tmp_path, "--batch-size=64", seen={"batch_size": 8}) is None


@pytest.mark.parametrize(
    ("varied", "device", "bounded"),
    [
        (["--batch-size=64"], "cpu", True),
        (["--num-workers=0", "--batch-size=64"], "cpu", True),
        (["--micro-batch-size=8"], "cpu", True),  # nobody knows what it is
        (["--batch-size=16"], "cpu", False),
        (["--accum-steps=64"], "cpu", False),
        (["--num-workers=8"], "cpu", False),
        (["--batch-size=64"], "cuda:0", False),
    ],
)
def test_larger_batches_are_bounded_by_the_memory_that_is_free(
    varied: list[str], device: str, bounded: bool, tmp_path: Path
) -> None:
    runner, fixes = tried(tmp_path, *varied, device=device)
    assert runner.with_fixes("a", fixes).bounded is bounded
    assert runner.with_fixes("a", []).bounded is False
