"""Following files that another process writes, cuts, replaces or damages."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hotloop.core.files import process_space
from hotloop.core.step import StepRecord
from hotloop.monitor import follow
from hotloop.monitor.follow import StepFollower, is_alive
from hotloop.train.start import locked


def lines(first: int, last: int) -> str:
    return "".join(
        StepRecord(i, 0.5, tokens=10, loss=3.0).to_json() + "\n" for i in range(first, last)
    )


def steps(follower: StepFollower) -> list[int]:
    follower.poll()
    return [record.step for record in follower.records]


def test_new_lines_are_taken_up_and_a_torn_one_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    follower = StepFollower(path)
    assert steps(follower) == []
    path.write_text(lines(0, 2))
    assert steps(follower) == [0, 1]
    whole = lines(2, 3)
    with path.open("a") as file:
        file.write(whole[:12])
        file.flush()
        assert steps(follower) == [0, 1]
        file.write(whole[12:])
        file.flush()
    assert steps(follower) == [0, 1, 2]
    assert follower.num_damaged == 0


def test_resumed_run_that_writes_steps_again_replaces_them(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(lines(0, 6))
    follower = StepFollower(path)
    assert steps(follower) == list(range(6))
    (tmp_path / "new").write_text(lines(0, 4))
    os.replace(tmp_path / "new", path)  # as the trainer drops the steps after its checkpoint
    assert steps(follower) == [0, 1, 2, 3]
    with path.open("a") as file:
        file.write(lines(2, 5))
    assert steps(follower) == [0, 1, 2, 3, 4]


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    bad = '{"step":1}\n[]\n\xff\x00\n{"step":1,"wall_s":1.0,"tokens":"many"}\n{"step":1,"wall_s":1,"x":1}\n'
    path.write_text(lines(0, 1) + bad + lines(2, 3))
    follower = StepFollower(path)
    assert steps(follower) == [0, 2]
    assert follower.num_damaged == 5


def test_only_the_end_of_a_long_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "TAIL_BYTES", 300)
    path = tmp_path / "steps.jsonl"
    path.write_text(lines(0, 500))
    follower = StepFollower(path)
    found = steps(follower)
    assert found[-1] == 499
    assert 1 < len(found) < 10
    assert follower.num_damaged == 0


def test_life_is_seen_by_the_lock_or_by_fresh_files(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("")
    assert is_alive(tmp_path, ("steps.jsonl",))
    old = time.time() - 60
    os.utime(path, (old, old))
    assert not is_alive(tmp_path, ("steps.jsonl", "absent"))
    fcntl = pytest.importorskip("fcntl")
    if not Path("/proc/locks").exists():
        pytest.skip("locks are listed on Linux only")
    with (tmp_path / ".lock").open("w") as file:
        assert not is_alive(tmp_path, ("steps.jsonl",))
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_alive(tmp_path, ("steps.jsonl",))


def test_run_that_ended_is_not_said_to_live_though_its_files_are_fresh(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    if not process_space():
        pytest.skip("PID namespaces are told on Linux only")
    (tmp_path / "steps.jsonl").write_text("")
    with locked(tmp_path):
        assert is_alive(tmp_path, ("steps.jsonl",))
    assert not is_alive(tmp_path, ("steps.jsonl",))
    (tmp_path / ".lock").write_text("of another container")
    assert is_alive(tmp_path, ("steps.jsonl",))
