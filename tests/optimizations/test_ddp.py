"""Settings of DistributedDataParallel in a running script: what it learns stays the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from script_runs import variables

TRAIN = """
import json, torch
from torch.nn.parallel import DistributedDataParallel
START
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
model = DistributedDataParallel(torch.nn.Sequential(*layers)ARGUMENTS)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(torch.distributed.get_rank())
losses = []
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
if torch.distributed.get_rank() == 0:
    print(json.dumps([losses, model.find_unused_parameters, model.gradient_as_bucket_view]))
torch.distributed.destroy_process_group()
"""
ALONE = (
    'torch.distributed.init_process_group("gloo", init_method="file://STORE", rank=0, world_size=1)'
)
BOTH = {"ddp_unused_search": False, "ddp_bucket_view": True}


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (", find_unused_parameters=True", []),
        (", None, None, 0, True, find_unused_parameters=True", []),
        ("", ["the script has find_unused_parameters=False"]),
        (
            ", find_unused_parameters=True, gradient_as_bucket_view=True",
            ["the script has gradient_as_bucket_view=True"],
        ),
    ],
)
def test_both_are_set_where_the_model_is_wrapped(
    run_foreign: Any, tmp_path: Path, arguments: str, refused: list[str]
) -> None:
    text = TRAIN.replace("START", ALONE).replace("ARGUMENTS", arguments)
    plain = run_foreign(text.replace("STORE", str(tmp_path / "plain"))).printed
    ran = run_foreign(text.replace("STORE", str(tmp_path / "with")), BOTH)
    assert ran.printed == [plain[0], False, True]
    assert ran.refused == refused
    assert len(ran.applied) == 2 - len(refused)


@pytest.mark.slow
def test_two_processes_learn_the_same_to_the_bit(tmp_path: Path) -> None:
    text = TRAIN.replace("START", 'torch.distributed.init_process_group("gloo")')
    script = tmp_path / "train.py"
    script.write_text(text.replace("ARGUMENTS", ", find_unused_parameters=True"))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = []
    for fixes in ({}, BOTH):
        done = subprocess.run(
            [sys.executable, *launcher, str(script)],
            env={**variables(fixes, into=tmp_path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        printed.append(json.loads(done.stdout.splitlines()[-1]))
    assert [each[1:] for each in printed] == [[True, False], [False, True]]
    assert printed[0][0] == printed[1][0]
