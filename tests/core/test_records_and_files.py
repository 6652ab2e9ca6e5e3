from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from hotloop.core.errors import EnvironmentFailed, ExitCode, UsageError, first_line
from hotloop.core.files import read_json, storage_error, write_atomically, write_json
from hotloop.core.judgement import Parity, Verdict
from hotloop.core.step import StepRecord, read_steps

VERDICT = Verdict(
    outcome="improved",
    ratio=1.5,
    ratio_low=1.4,
    ratio_high=1.6,
    confidence=0.95,
    parity=Parity("same", "bitwise"),
    baseline="plain",
    candidate="fast",
    pair_ratios=(1.4, 1.6),
)


def test_step_record_survives_its_line() -> None:
    import json

    record = StepRecord(3, 0.5, host={"forward": 0.4}, loss=2.0, tags=("gc",), tokens=8)
    assert StepRecord.from_mapping(json.loads(record.to_json())) == record


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_loss_that_is_no_number_survives_as_strict_json(tmp_path: Path, value: float) -> None:
    import json

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    line = StepRecord(0, 0.1, loss=value, grad_norm=value).to_json()
    json.loads(line, parse_constant=refuse)
    (tmp_path / "steps.jsonl").write_text(line + "\n")
    (record,) = read_steps(tmp_path / "steps.jsonl")
    assert str(record.loss) == str(record.grad_norm) == str(value)


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(StepRecord(0, 0.1).to_json() + "\n" + '{"step": 1, "wal')
    assert [r.step for r in read_steps(path)] == [0]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"step": 1}',
        '{"step": 1, "wall_s": -1}',
        '{"step": 1, "wall_s": 1, "x": 2}',
        '{"step": 1, "wall_s": 1, "clock_reads": null}',
    ],
)
def test_damaged_record_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(
        StepRecord(0, 0.1).to_json() + "\n" + line + "\n" + StepRecord(2, 0.1).to_json() + "\n"
    )
    with pytest.raises(UsageError) as caught:
        list(read_steps(path))
    assert caught.value.where == f"{path}:2"


def test_verdict_survives_its_file(tmp_path: Path) -> None:
    write_json(tmp_path / "verdict.json", VERDICT)
    assert read_json(tmp_path / "verdict.json", Verdict) == VERDICT


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "hotloop.verdict/9"}'])
def test_damaged_or_foreign_json_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "verdict.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_json(tmp_path / "verdict.json", Verdict)
    assert caught.value.where == str(tmp_path / "verdict.json")


def test_full_disk_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailed) as caught:
        write_atomically(path, b"new")
    assert "no space left" in caught.value.what
    assert caught.value.exit_code == ExitCode.ENVIRONMENT
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_infinite_numbers_never_reach_a_json_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"ratio": float("nan")})


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EACCES, "another|choose"), (errno.EMFILE, "ulimit"), (errno.EPIPE, "again"), (errno.ENOMEM, "again")],
)  # fmt: skip
def test_another_directory_is_advised_only_where_it_would_help(number: int, remedy: str) -> None:
    error = storage_error(OSError(number, os.strerror(number)), "a/b", "run a trial")
    assert re.search(remedy, error.do or "")
    assert ("directory" in (error.do or "")) is (number == errno.EACCES)


def test_error_that_says_nothing_is_called_by_its_class() -> None:
    assert first_line(NotImplementedError()) == "NotImplementedError"
    assert first_line(ValueError("\nno such layout\nat all")) == "no such layout"
