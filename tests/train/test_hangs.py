"""A step that does not end is shown with its stacks and ends the process; what is slow, stopped or debugged is let be."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from trainings import losses, train

import warm_python

PROGRAM = Path(__file__).with_name("interrupted_program.py")
RANKS = Path(__file__).with_name("ranks_program.py")


def held_up(config: Path, run: Path, **job: Any) -> subprocess.CompletedProcess[str]:
    arguments = ["train", str(config), "--out", str(run), "train.hang_timeout_s=1"]
    job = {"arguments": arguments, "signals": [], **job}
    return warm_python.run(
        [str(PROGRAM), json.dumps(job)], env=os.environ, cwd=run.parent, timeout=120, trainer=True
    )


HANGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "data": ({"at": "data", "nth": 8, "python_s": 600}, "data_wait of step 7", "in read"),
    "c": ({"at": "update", "nth": 8, "c_s": 600}, "optimizer of step 7", "in held_up_in_c"),
    "evaluation": ({"at": "eval", "nth": 1, "python_s": 600}, "eval of step 5", "in held_out_loss"),
}


@pytest.mark.parametrize("where", HANGS)
def test_hang_ends_with_its_stacks_and_the_run_continues(
    tiny_config: Path, tmp_path: Path, where: str
) -> None:
    job, place, frame = HANGS[where]
    ended = held_up(tiny_config, tmp_path / "run", **job)
    assert ended.returncode == 75, ended
    stacks = tmp_path / "run" / "stacks-rank-0.txt"
    assert f"rank 0 hangs in {place}: no boundary was passed for" in ended.stderr
    assert "run the same command again to continue from step 4" in ended.stderr
    assert place in stacks.read_text()
    assert f"{frame}\n" in stacks.read_text()
    train(tiny_config, tmp_path / "run")
    train(tiny_config, tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


SLOW: dict[str, dict[str, Any]] = {
    "the first step": {"at": "update", "nth": 1, "python_s": 2.5},
    "saves": {"at": "update", "nth": 1, "save_s": 2},
    "an evaluation": {"at": "update", "nth": 1, "eval_s": 0.5},
    "a debugger": {"at": "update", "nth": 8, "pdb_s": 2.5},
    "a stopped process": {"at": "update", "nth": 8, "stopped_s": 2.5, "python_s": 0.5},
}


@pytest.mark.parametrize("what", SLOW)
def test_what_is_slow_for_a_reason_is_no_hang(tiny_config: Path, tmp_path: Path, what: str) -> None:
    text = tiny_config.read_text().replace("every_steps: 4", "every_steps: 6")
    tiny_config.write_text(text.replace("windows: 4", "windows: 12"))
    ended = held_up(tiny_config, tmp_path / "run", **SLOW[what])
    assert ended.returncode == 0, ended
    assert "hangs" not in ended.stderr


def test_hang_of_one_rank_shows_the_stacks_of_all(tiny_config: Path, tmp_path: Path) -> None:
    jobs, run = tmp_path / "jobs.json", tmp_path / "run"
    arguments = ["train", str(tiny_config), "--out", str(run), "train.grad_accum_steps=2"]
    arguments += ["train.hang_timeout_s=2"]
    jobs.write_text(json.dumps([{"arguments": arguments, "sick_rank": 1, "hangs_after": 5}]))
    warm_python.run(
        [str(RANKS), str(jobs)], env=os.environ, cwd=tmp_path, timeout=120, trainer=True
    )
    first_code, second_code = json.loads((tmp_path / "ended.json").read_text())
    assert second_code == 75
    # Where the other one ended a moment before, the lost connection is what ends this one.
    assert first_code == 75 or json.loads((tmp_path / "codes-0.json").read_text()) == [4]
    first, second = ((run / f"stacks-rank-{rank}.txt").read_text() for rank in (0, 1))
    assert "rank 1 hangs in data_wait" in second
    assert "in hangs" in second
    assert "rank 0 hangs in" in first
    assert "data_wait" not in first
