"""Signals at every moment of a training: it ends with 75 within its window, and continues to the same bits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from metadata_server import EC2_ACTION, served
from trainings import losses, train, weights

import warm_python
from hotloop.checkpoint import store
from hotloop.checkpoint.notices import Ec2
from hotloop.core.errors import Interrupted
from hotloop.train import loop

PROGRAM = Path(__file__).with_name("interrupted_program.py")
SETTINGS = ("model.dropout=0.1", "averaging.name=ema", "checkpoint.every_steps=5", "checkpoint.keep=9")  # fmt: skip


def interrupted(
    config: Path, run: Path, *overrides: str, **job: Any
) -> subprocess.CompletedProcess[str]:
    arguments = ["train", str(config), "--out", str(run), *SETTINGS, *overrides]
    job = {"arguments": arguments, "signals": ["SIGTERM"], **job}
    return warm_python.run(
        [str(PROGRAM), json.dumps(job)], env=os.environ, cwd=run.parent, timeout=120, trainer=True
    )


def evaluations(run: Path) -> list[str]:
    return (run / "evals.jsonl").read_text().splitlines()


def assert_the_same(run: Path, whole: Path) -> None:
    assert losses(run) == losses(whole)
    assert evaluations(run) == evaluations(whole)
    left, right = weights(run, "average"), weights(whole, "average")
    for file in ("model", "optimizer", "average", "random"):
        assert all(torch.equal(value, right[file][name]) for name, value in left[file].items()), file  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Path:
    """The run without an interruption."""
    root = tmp_path_factory.mktemp("whole")
    config = root / "tiny.yaml"
    config.write_text(TINY.format(prepared=prepared))
    train(config, root / "run", *SETTINGS)
    return root / "run"


TINY = """name: tiny
data: {{prepared: {prepared}}}
model: {{layers: 1, width: 16, heads: 2, context: 16}}
train: {{steps: 12, microbatch: 4, compile: false, precision: fp32, num_threads: 1}}
schedule: {{warmup_steps: 4}}
eval: {{every_steps: 6, windows: 12}}
checkpoint: {{every_steps: 4}}
logging: {{tensorboard: false}}
"""

AT_ONCE = "in the first step of this process: nothing was to be saved"
MOMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a step": ({"at": "update", "nth": 8}, "after step 8 of 12; saved at step 8"),
    "the first step": ({"at": "update", "nth": 1}, "after step 1 of 12; saved at step 1"),
    "the last step": ({"at": "update", "nth": 12}, "after step 12 of 12; saved at step 12"),
    "Ctrl-C": ({"at": "update", "nth": 8, "signals": ["SIGINT"]}, "SIGINT: stopped after step 8"),
    "Slurm": ({"at": "update", "nth": 8, "signals": ["SIGUSR1"]}, "SIGUSR1: stopped after step 8"),
    "Slurm twice": (
        {"at": "update", "nth": 8, "signals": ["SIGUSR1", "SIGUSR1", "SIGTERM"]},
        "SIGUSR1: stopped after step 8 of 12; saved at step 8",
    ),
    "passed on": (
        {"at": "update", "nth": 8, "signals": ["SIGTERM", "SIGTERM"]},
        "saved at step 8",
    ),
    "a second Ctrl-C": (
        {"at": "update", "nth": 8, "signals": ["SIGINT", "SIGINT"]},
        "interrupted; run the same command again",
    ),
    "waiting for data": ({"at": "data", "nth": 8, "python_s": 60}, "after step 7 of 12; saved at step 7"),
    "data after a save": ({"at": "data", "nth": 6, "python_s": 60}, "after step 5 of 12; saved at step 5"),
    "the first data": ({"at": "data", "nth": 1, "python_s": 60}, AT_ONCE),
    "an evaluation": ({"at": "eval", "nth": 2}, "after step 6 of 12; saved at step 6"),
    "an evaluation of the mean": ({"at": "eval", "nth": 5}, "after step 6 of 12; saved at step 6"),
    "the last evaluation": ({"at": "eval", "nth": 8}, "after step 12 of 12; saved at step 12"),
    "a save": ({"at": "file", "nth": 3}, "after step 5 of 12; saved at step 5"),
    "compiling": ({"at": "compile", "nth": 1, "python_s": 60}, AT_ONCE),
    "compiling C++": ({"at": "compile", "nth": 1, "c_s": 60}, AT_ONCE),
    "a callback in compiling": ({"at": "compile", "nth": 1, "in_callback": True, "python_s": 60}, AT_ONCE),
    "a long step": (
        {"at": "update", "nth": 8, "c_s": 60, "window": 1.0},
        "SIGTERM: the time that was left is over before a step ended or was saved\n  run the same command again to continue from step 5",
    ),
    "a slow save": (
        {"at": "update", "nth": 8, "save_s": 3.0, "window": 2.0},
        r"stopped after step 8 of 12; saving takes [3-9] s, [012] s are left: continuing will start from step 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_run_stopped_at_any_moment_ends_in_its_window_and_continues_to_the_same_bits(
    tmp_path: Path, whole: Path, moment: str
) -> None:
    job, said = MOMENTS[moment]
    config, run = whole.parent / "tiny.yaml", tmp_path / "run"
    window = f"checkpoint.notice_s={job.get('window', 15)}"
    overrides = (window, "train.compile=true") if job["at"] == "compile" else (window,)
    ended = interrupted(config, run, *overrides, **job)
    assert ended.returncode == 75, ended
    assert re.search(said, ended.stderr)  # a busy machine has less left
    assert "Traceback" not in ended.stderr
    newest, problems = store.latest(run / "checkpoints")
    assert not problems
    assert newest is None or f"step {newest.step}" in ended.stderr or "interrupted;" in said
    if job["at"] == "compile":
        return
    train(config, run, *SETTINGS)
    assert_the_same(run, whole)


def test_notice_of_a_cloud_stops_the_run_and_names_itself(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = whole.parent / "tiny.yaml", tmp_path / "run"
    real, updates = loop.update, 0
    with served() as metadata, monkeypatch.context() as patch:

        def update(*args: Any) -> Any:
            nonlocal updates
            updates += 1
            if updates == 8:
                at = (datetime.now(UTC) + timedelta(seconds=100)).isoformat()
                metadata.say(EC2_ACTION, {"action": "terminate", "time": at})
                seen, until = len(metadata.asked), time.monotonic() + 60
                while len(metadata.asked) < seen + 4 and time.monotonic() < until:
                    if not any(each.name == "hotloop-notices" for each in threading.enumerate()):
                        break
                    time.sleep(0.01)
            return real(*args)

        patch.setattr(loop, "update", update)
        patch.setattr(Ec2, "every_s", 0.02)
        patch.setenv(Ec2.variable, f"http://127.0.0.1:{metadata.port}/")
        with pytest.raises(
            Interrupted,
            match=r"EC2 terminates this machine: stopped after step 8 .* saved at step 8",
        ):
            train(config, run, *SETTINGS)
    train(config, run, *SETTINGS)
    assert_the_same(run, whole)


def test_a_training_that_has_ended_leaves_the_signals_of_forks_alone(tmp_path: Path, whole: Path) -> None:  # fmt: skip
    train(whole.parent / "tiny.yaml", tmp_path / "run", *SETTINGS)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        if (child := os.fork()) == 0:
            os._exit(signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        assert os.waitpid(child, 0)[1] == 0
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_signal_of_a_forked_child_is_not_the_training_s(tmp_path: Path, whole: Path) -> None:
    job = {"at": "update", "nth": 8, "signals": [], "ends_child": True, "python_s": 0.8}
    config, run = whole.parent / "tiny.yaml", tmp_path / "run"
    ended = interrupted(config, run, "checkpoint.notice_s=0.5", **job)
    assert ended.returncode == 0, ended
    assert_the_same(run, whole)
