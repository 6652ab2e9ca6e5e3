"""Runs small scripts in fresh processes, as the doctor does: through the environment alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hotloop
import warm_python
from hotloop.core.census import Census
from hotloop.core.files import read_json
from hotloop.core.step import StepRecord, read_steps

PACKAGES = Path(hotloop.__file__).parents[1]
BOOTSTRAP = Path(hotloop.__file__).parent / "trial" / "bootstrap"

MODEL = """
import json, os, sys, time, torch
torch.set_num_threads(1)
def build(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)
def loss_of(model):
    return (model(torch.ones(4, 8)) - 3).square().mean()
def train(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""


@dataclass(frozen=True, slots=True)
class Ended:
    returncode: int
    out: str
    err: str
    directory: Path

    @property
    def steps(self) -> list[StepRecord]:
        return list(read_steps(self.directory / "steps-0.jsonl"))

    @property
    def counted(self) -> list[StepRecord]:
        return [r for r in self.steps if not {"warmup", "compile", "profiled"} & set(r.tags)]

    @property
    def census(self) -> Census:
        return read_json(self.directory / "census-0.json", Census)

    @property
    def clock(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "clock-0.json").read_text()))

    @property
    def notes(self) -> str:
        path = self.directory / "notes.txt"
        return path.read_text() if path.exists() else ""

    @property
    def last(self) -> Any:
        """What it printed last, as JSON."""
        return json.loads(self.out.splitlines()[-1])


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(source)`: after MODEL, as `python script.py`, in a directory of its own."""
    numbers = iter(range(100))

    def run(
        source: str,
        *,
        watched: bool = True,
        code: int = 0,
        env: dict[str, str] | None = None,
        model: str = MODEL,
        fresh: bool = False,
    ) -> Ended:
        number = next(numbers)
        directory, work = tmp_path / f"run-{number}", tmp_path / f"work-{number}"
        directory.mkdir()
        work.mkdir()
        script = work / "train.py"
        script.write_text(model + source)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
        # Without the probe, too: it is the probe that must change nothing, not the path.
        more = [p for p in [os.environ.get("PYTHONPATH")] if p]  # fixture `without_compiler`
        environment["PYTHONPATH"] = os.pathsep.join([str(BOOTSTRAP), str(PACKAGES), *more])
        environment["OMP_NUM_THREADS"] = "1"
        if watched:
            environment["HOTLOOP_DOCTOR"] = str(directory)
        done = warm_python.run(
            ["train.py"], timeout=120, cwd=work, env=environment | (env or {}), fresh=fresh
        )
        assert done.returncode == code, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr, directory)

    return run
