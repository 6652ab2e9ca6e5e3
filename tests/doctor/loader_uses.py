"""Loaders as a diagnosed run saw them, and trials of the scripts that make them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.census import Census, LoaderUse
from hotloop.core.child import LOADER
from hotloop.doctor.trial_costs import Costs
from hotloop.doctor.trial_runner import BASELINE, TrialRunner
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan

SHUFFLES_IN_ITER = """
class ByLength:
    def __init__(self):
        self.batches = [list(range(k, k + 4)) for k in range(0, 64, 4)]
    def __iter__(self):
        random.shuffle(self.batches)
        return iter(self.batches)
    def __len__(self):
        return 16
"""


def trains(*layers: str, epochs: int, rate: float = 0.05) -> str:
    """The loop of a script, over `loader`."""
    return f"""
model = torch.nn.Sequential({", ".join(f"torch.nn.{layer}" for layer in layers)})
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
for epoch in range({epochs}):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loader_use(
    site: str, *, epochs: int = 1, trains: bool = True, draws: bool = False, **more: Any
) -> LoaderUse:
    values: dict[str, Any] = dict.fromkeys(LoaderUse.__dataclass_fields__)
    values |= {"site": site, "trains": trains, "num_epochs": epochs, "draws_random": draws}
    values |= {"dataset": "Rows", "iterable": False, "num_workers": 0, "pin_memory": False, "persistent_workers": False}  # fmt: skip
    return LoaderUse(**{**values, "num_batches": 48, "made": (), **more})


def seen_at(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    """Trials are told that the loader that trains is made so."""
    told = {"site": made.partition(" ")[0], "made": [made], "workdir": ""}
    monkeypatch.setenv(LOADER, json.dumps(told))


def runner_of(
    place: Path, script: str, *, epochs: int, loss_steps: int, num_steps: int, **seen: Any
) -> TrialRunner:
    """Of a script whose loader, in the line that begins with `loader = `, was seen so."""
    work = place / "work"
    work.mkdir()
    (work / "train.py").write_text(script)
    lines = enumerate(script.split("\n"), 1)
    site = f"train.py:{next(n for n, line in lines if line.startswith('loader = '))}"
    return TrialRunner(
        Arm(BASELINE, (sys.executable, "train.py"), "step_clock", workdir=work, sandboxed=True),
        TrialPlan(3, 20, timeout_s=120, aa_pairs=0),
        Costs(2.0, 0.01),
        place / "doctor",
        loss_steps,
        num_steps,
        census=Census(loaders=(loader_use(site, epochs=epochs, made=(site,), **seen),)),
    )
