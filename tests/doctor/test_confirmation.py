"""Fixes that are something else once they are written into the source: found by running the patched copy."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.census import Census, LoaderUse
from hotloop.doctor.confirmation import Confirmed, confirmed
from hotloop.doctor.deciding import tried_fix
from hotloop.doctor.fixes import Fix
from hotloop.doctor.learning import Learning
from hotloop.doctor.trial_costs import Costs
from hotloop.doctor.workbench import AS_IT_IS, Workbench
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan

HEAD = """
import random
import torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)

class Points(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(4, generator=g), torch.randn(1, generator=g)
"""
TRAINS = """
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SHUFFLES_IN_ITER = """
class ByLength:
    def __init__(self):
        self.batches = [list(range(k, k + 4)) for k in range(0, 64, 4)]
    def __iter__(self):
        random.shuffle(self.batches)
        return iter(self.batches)
    def __len__(self):
        return len(self.batches)

loader = DataLoader(Points(), batch_sampler=ByLength())
"""
SPAWNS = """
import torch.multiprocessing
torch.multiprocessing.set_start_method("spawn")
loader = DataLoader(Points(), 4, collate_fn=lambda items: tuple(map(torch.stack, zip(*items))))
"""
SEEDS_ITS_WORKERS = """
class Noisy(Points):
    scale = 0.0
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + self.scale, y

def begin(worker):
    torch.utils.data.get_worker_info().dataset.scale = 1.0

loader = DataLoader(Noisy(), 4, worker_init_fn=begin)
"""
HARMLESS = "loader = DataLoader(Points(), 4, shuffle=True)"
STEPS = 40


def _confirmed(place: Path, script: str, name: str, value: Any) -> Confirmed:
    """What the confirmation finds of one fix that was kept alone."""
    work = place / "work"
    work.mkdir()
    (work / "train.py").write_text(script)
    lines = script.split("\n")
    site = next((n for n, line in enumerate(lines, 1) if line.startswith("loader = ")), 1)
    use: dict[str, Any] = dict.fromkeys(LoaderUse.__dataclass_fields__)
    loader = LoaderUse(**(use | {"site": f"train.py:{site}", "trains": True, "num_epochs": 3}))
    bench = Workbench(
        Arm(AS_IT_IS, (sys.executable, "train.py"), "step_clock", workdir=work, fenced=True),
        TrialPlan(3, 20, timeout_s=120, aa_pairs=0),
        Costs(2.0, 0.01),
        place / "doctor",
        STEPS,
        STEPS,
        census=Census(loaders=(loader,)),
    )
    learning = Learning(bench)
    fix = Fix(CATALOGUE[name], value, ("HL000",), 1.5)
    learned = learning.of(name, [fix])
    assert learned.parity.result in ("same", "within_noise"), learned.parity.reason
    entry = tried_fix(fix, "kept", "faster, and learns the same")
    tried = {name: replace(entry, directory=f"trials/{name}")}
    return confirmed(bench, learning, [fix], tried)


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (SHUFFLES_IN_ITER, "does not train as before: losses part by"),
        (SPAWNS, "fails: "),
        (SEEDS_ITS_WORKERS, "does not train as before: losses part by"),
    ],
    ids=["sampler_shuffles_in_iter", "spawn", "worker_init_fn"],
)
def test_loader_that_is_another_with_workers_of_its_own_is_not_patched(
    tmp_path: Path, loader: str, why: str
) -> None:
    found = _confirmed(tmp_path, HEAD + loader + TRAINS, "loader_workers", 2)
    assert found.fixes == ()
    assert found.verdict is None
    assert found.dropped["loader_workers"].startswith(why)
