"""Commands that write, through the core's own classes, what a probe would: no torch, and over at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_trials import trying

from hotloop.core.measurement import Measurement
from hotloop.doctor import trial_runner
from hotloop.trial import forking
from hotloop.trial.arm import Arm
from hotloop.trial.forking import ForkServer, Imports
from hotloop.trial.measure import server_environment
from hotloop.trial.sandbox.layered import Layered

__all__ = ["trying"]

Recording = Callable[[str], list[str]]

RECORDS = """
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from hotloop.core.census import Census
from hotloop.core.step import StepRecord

directory = Path(os.environ["HOTLOOP_DOCTOR"])
rank = int(os.environ.get("RANK", "0"))

def record(count, *, first=0, warmup=3, wait=0.04, rank=rank):
    with (directory / f"steps-{rank}.jsonl").open("a") as file:
        for step in range(first, first + count):
            host = {"data_wait": wait, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}
            tags = ("warmup",) if step < warmup else ()
            file.write(StepRecord(step, sum(host.values()), host=host, tags=tags).to_json() + "\\n")

def finish(stopped=False, rank=rank):
    census = Census(device="cpu", num_threads=1, optimizer="AdamW(foreach)", clock_read_s=1e-6)
    (directory / f"census-{rank}.json").write_text(json.dumps(asdict(census)))
    clock = {"python": "3.12.1", "torch": "2.12.0", "cuda": None, "finished": True, "stopped": stopped}
    (directory / f"clock-{rank}.json").write_text(json.dumps(clock))
"""


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a user, as the current one."""
    path = tmp_path / "work"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def recording(workdir: Path) -> Recording:
    """Makes a command that records and does what it is given."""

    def make(body: str) -> list[str]:
        path = workdir / "train.py"
        path.write_text(RECORDS + body)
        return [sys.executable, str(path)]

    return make


@pytest.fixture(scope="session")
def torch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    place = tmp_path_factory.mktemp("torch-server")
    arm = Arm("any", (sys.executable, "train.py"), "step_clock", workdir=place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "without_compiler"))
        program = Path(__file__).with_name("torch_server.py")
        patch.setattr(forking, "fork_server", SimpleNamespace(__file__=str(program)))
        environment = server_environment(arm, place, cache=place / "cache")
        imports = Imports({"torch": "", "numpy": ""}, {})
        server = ForkServer.started(arm, imports, environment, place)
    yield server
    server.close()


@pytest.fixture
def forked_losses(torch_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes whose losses are compared are forks, too, and not fresh ones: twelve in some tests, two seconds each."""
    real = trial_runner.trial

    def trial(arm: Arm, place: Path, **rest: Any) -> Measurement:
        layered = isinstance(rest["workdir"], Layered)
        return real(arm, place, server=torch_server if layered else None, **rest)

    monkeypatch.setattr(trial_runner, "trial", trial)
