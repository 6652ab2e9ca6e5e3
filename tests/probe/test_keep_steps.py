from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotloop.core import untrusted
from hotloop.core.errors import UsageError
from hotloop.core.step import StepRecord, read_steps
from hotloop.probe.recorder import keep_steps_before, newest_steps


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


def test_records_of_a_run_are_read_and_cut_however_large_their_file(tmp_path: Path) -> None:
    file, size = tmp_path / "steps.jsonl", 1 << 31
    file.write_bytes(record(0) + record(1))
    os.truncate(file, size)  # a hole, which takes no space
    with file.open("ab") as end:
        end.write(b"\n" + record(7))
    assert next(newest_steps(file)).step == 7
    assert file.stat().st_size > size
    keep_steps_before(file, 2)
    assert file.read_bytes() == record(0) + record(1)


@pytest.mark.parametrize("end", [b"", b'{"st', b"\n\n"])
def test_newest_records_are_those_of_the_file_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_bytes(b"".join(map(record, range(5))) + end)
    for size in (*range(1, 2 * len(record(0))), untrusted.BLOCK_BYTES):
        monkeypatch.setattr(untrusted, "BLOCK_BYTES", size)
        assert [each.step for each in newest_steps(file)] == [4, 3, 2, 1, 0]
