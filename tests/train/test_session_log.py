"""What processes of a run say of themselves, also those that are killed, and what the report makes of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from forked_trainings import killed_at
from trainings import records, train

from hotloop.cli.main import run as command
from hotloop.core.errors import Interrupted
from hotloop.core.files import SESSIONS_FILE
from hotloop.core.sessions import read_sessions
from hotloop.runs.stored_run import read_run

LONG = ("train.steps=400", "checkpoint.every_steps=100", "checkpoint.background=auto", "eval.every_steps=0")  # fmt: skip


def test_the_time_of_a_run_that_was_killed_twice_is_divided_whole(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_config.write_text(tiny_config.read_text().replace("  windows: 4\n", ""))
    began = time.time()
    killed_at(tiny_config, tmp_path / "run", 130, *LONG)
    made = {record.step: record.wall_s for record in records(tmp_path / "run")}
    killed_at(tiny_config, tmp_path / "run", 250, *LONG)
    time.sleep(0.2)
    train(tiny_config, tmp_path / "run", *LONG)
    sessions, damaged = read_sessions(tmp_path / "run" / SESSIONS_FILE)
    assert damaged == {}
    first, second, third = sessions
    saved = [each.from_step for each in sessions]
    assert saved[0] == 0 < saved[1] < saved[2]
    assert (first.ended_at, second.ended_at, third.why) == (None, None, "finished")
    assert second.lost_steps == max(made) + 1 - saved[1] <= 100
    assert second.lost_s == pytest.approx(sum(s for step, s in made.items() if step >= saved[1]))
    assert third.lost_steps <= 100
    found = read_run(tmp_path / "run").goodput
    assert found is not None
    assert (found.processes, found.killed) == (3, 2)
    assert found.lost_steps == second.lost_steps + third.lost_steps
    assert third.ended_at is not None
    assert found.wall_s == pytest.approx(third.ended_at - first.process_at, abs=1e-6)
    assert min(found.seconds.values()) >= 0
    assert found.seconds["lost_progress"] == pytest.approx(second.lost_s + third.lost_s)
    assert found.seconds["restart"] > 0.2, "the third: this process began long before"
    kept = sum(record.wall_s for record in records(tmp_path / "run"))
    steps = ("productive", "data_wait", "checkpoint", "evaluation")
    assert sum(found.seconds[name] for name in steps) >= kept
    assert first.process_at >= began - 1
    assert command(["report", str(tmp_path / "run"), "--json", str(tmp_path / "out.json")]) == 0
    assert "goodput" in capsys.readouterr().out
    shown = json.loads((tmp_path / "out.json").read_bytes())["goodput"]
    assert shown["seconds"] == pytest.approx(found.seconds)


def test_a_process_says_how_it_ended_and_one_that_measures_says_nothing(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotloop.train.group import Group

    train(tiny_config, tmp_path / "measured", stop_after=3)
    assert not (tmp_path / "measured" / SESSIONS_FILE).exists()
    monkeypatch.setattr(Group, "stops", lambda *_: True)
    with pytest.raises(Interrupted):
        train(tiny_config, tmp_path / "run")
    (session,), _ = read_sessions(tmp_path / "run" / SESSIONS_FILE)
    assert session.why == "Interrupted"
    assert session.host["checkpoint"] > 0, "the save when it was stopped"


def test_damaged_lines_are_named_and_the_rest_counts(tiny_config: Path, tmp_path: Path) -> None:
    train(tiny_config, tmp_path / "run")
    path = tmp_path / "run" / SESSIONS_FILE
    whole = read_run(tmp_path / "run").goodput
    path.write_bytes(b'{"ended_at": 3}\nrubbish' + path.read_bytes() + b'\n{"first_step_at": "x"}')
    found = read_run(tmp_path / "run")
    assert found.goodput == whole
    assert [str(problem.where)[-2:] for problem in found.problems] == [":1", ":2", ":6"]
    path.unlink()
    assert read_run(tmp_path / "run").goodput is None
