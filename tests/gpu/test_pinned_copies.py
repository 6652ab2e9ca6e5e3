"""Run with `pytest tests/gpu -m gpu` on a machine that has one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.core.child import APPLIED_FILE, FIXES, FIXES_SETTINGS
from hotloop.trial import bootstrap

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCRIPT = """
import json, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(512, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(512, 512)), batch_size=32, shuffle=True)
losses, pinned = [], []
for epoch in range(2):
    for (x,) in loader:
        pinned.append(x.is_pinned())
        x = x.to("cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
print(json.dumps([losses, pinned]))
"""


def run(tmp_path: Path, fixes: dict[str, Any]) -> tuple[Any, list[str]]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    source = str(Path(bootstrap.__file__).parents[3])
    own = [str(Path(bootstrap.__file__).parent), source]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own)}
    if fixes:
        environment |= {FIXES: str(tmp_path), FIXES_SETTINGS: json.dumps(fixes)}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    told = tmp_path / APPLIED_FILE
    lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    return json.loads(done.stdout), [line["what"] for line in lines if line["applied"]]


@pytest.mark.parametrize("more", [{}, {"loader_workers": 2}])
def test_pinned_batches_train_the_same(tmp_path: Path, more: dict[str, Any]) -> None:
    (plain, _), _ = run(tmp_path, {})
    (losses, pinned), applied = run(tmp_path, {"pinned_copies": True, **more})
    assert losses == plain
    assert all(pinned)
    assert "batches of TensorDataset are pinned" in applied
    assert "copies to the GPU are not waited for" in applied
