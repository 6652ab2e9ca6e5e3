"""Runs small scripts in fresh processes, as the doctor does: through the environment alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warm_python
from script_runs import ScriptRun, variables

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


class Ended(ScriptRun):
    @property
    def last(self) -> Any:
        """What it printed last, as JSON."""
        return self.printed


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
        # Without the probe, too: it is the probe that must change nothing, not the path.
        environment = variables() | {"OMP_NUM_THREADS": "1"}
        if watched:
            environment["HOTLOOP_DOCTOR"] = str(directory)
        done = warm_python.run(
            ["train.py"], timeout=120, cwd=work, env=environment | (env or {}), fresh=fresh
        )
        assert done.returncode == code, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr, directory, [])

    return run
