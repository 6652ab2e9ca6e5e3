"""Small foreign programs for the tests of the trial."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.trial.arm import Arm

TRAINING = """
import sys, torch
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randn(32, 1)
for step in range(int(sys.argv[1])):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    print("loss", repr(loss.item()))
    optimizer.step()
print("ended by itself")
open(sys.argv[2], "w").write("the script's own ending")
"""


@pytest.fixture
def python() -> Callable[..., Arm]:
    """An arm that runs Python source."""

    def make(source: str, *arguments: str, name: str = "plain", **rest: Any) -> Arm:
        command = (sys.executable, "-c", source, *arguments)
        return Arm(name=name, command=command, **{"records": "none", **rest})

    return make


@pytest.fixture
def training(python: Callable[..., Arm], without_compiler: None) -> Callable[..., Arm]:
    """An arm that trains a very small model, printing each loss, and then writes a file."""

    def make(*, steps: int = 100, ending: Path = Path("saved.pt"), **rest: Any) -> Arm:
        return python(TRAINING, str(steps), str(ending), **{"records": "step_clock", **rest})

    return make
