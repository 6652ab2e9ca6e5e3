from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.step import StepRecord, read_steps
from hotloop.probe.recorder import keep_steps_before


def record(step: int) -> bytes:
    made = StepRecord(step=step, wall_s=1.0, host={}, tokens=1, samples=1, learning_rate=1.0, peak_bytes=None, clock_reads=1, tags=())  # fmt: skip
    return made.to_json().encode() + b"\n"


def test_hole_that_a_loss_of_power_left_behind_the_last_flush_does_not_stop_a_run(
    tmp_path: Path,
) -> None:
    file = tmp_path / "steps.jsonl"
    hole = bytes(300) + b"\n"
    file.write_bytes(record(0) + record(1) + hole + record(3))
    keep_steps_before(file, 2)
    assert [each.step for each in read_steps(file)] == [0, 1]
    file.write_bytes(hole + record(1))
    keep_steps_before(file, 0)
    assert file.read_bytes() == b""
    file.write_bytes(record(0) + hole + record(2) + record(3))
    with pytest.raises(UsageError, match="damaged step record"):  # of steps that are kept
        keep_steps_before(file, 3)
