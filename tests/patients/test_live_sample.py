"""A sample of the live patients; all of them are `live.py`, in `make proof`.

Those that one CPU is enough for: their shares are the same whatever the others do. A wrong verdict is
excused only where other programs were measured to have taken that CPU.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import CASES, Case
from live import robbed, run_examined, what_is_wrong

from hotloop.core.judgement import Diagnosis
from hotloop.core.measurement import Measurement

STEPS = ("--steps", "45")
"""Half of what they make by themselves: enough to measure."""
SAMPLE = ("logging_per_step", "frequent_checkpoint", "garbage_collection")


@pytest.fixture(autouse=True)
def _one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Test processes side by side would take the CPU from each other."""
    with (tmp_path_factory.getbasetemp().parent / "live.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wrong_here(
    diagnosis: Diagnosis, measurement: Measurement, case: Case, *, healthy: bool
) -> str | None:
    """What is wrong about the verdict; skips where others had the CPU."""
    wrong = what_is_wrong(diagnosis, case, healthy=healthy)
    if wrong and (why := robbed(measurement, case)):
        pytest.skip(f"{wrong}; {why}")
    return wrong


@pytest.mark.at_once(1)
@pytest.mark.parametrize("name", SAMPLE)
def test_live_patient_is_named(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name != "garbage_collection":  # which goes through all that torch keeps alive
        request.getfixturevalue("without_compiler")
    case = next(case for case in CASES if case.name == name)
    _, measurement, diagnosis = run_examined(case, tmp_path / "run", *STEPS, healthy=False)
    assert wrong_here(diagnosis, measurement, case, healthy=False) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_live_twin_is_promised_nothing(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    _, measurement, diagnosis = run_examined(case, tmp_path / "run", healthy=True)
    assert wrong_here(diagnosis, measurement, case, healthy=True) is None
