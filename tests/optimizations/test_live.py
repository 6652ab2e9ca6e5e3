"""Techniques in somebody else's process: applied where they can be, refused in words where not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.optimizations.live import APPLIED_FILE, DIRECTORY_VARIABLE, SETTINGS_VARIABLE
from hotloop.trial import bootstrap

SOURCE = str(Path(bootstrap.__file__).parents[3])
MODEL = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
x, y = torch.randn(8, 16), torch.randn(8, 4)
"""


def run(tmp_path: Path, script: str, fixes: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """What the script prints last, as JSON, and what became of the fixes."""
    path = tmp_path / "script.py"
    path.write_text(MODEL + script)
    (tmp_path / APPLIED_FILE).unlink(missing_ok=True)
    own = [str(Path(bootstrap.__file__).parent), SOURCE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own)}
    if fixes:
        environment |= {
            DIRECTORY_VARIABLE: str(tmp_path),
            SETTINGS_VARIABLE: json.dumps(fixes),
        }
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    applied = tmp_path / APPLIED_FILE
    lines = applied.read_text().splitlines() if applied.exists() else []
    return json.loads(done.stdout.splitlines()[-1]), [json.loads(line) for line in lines]


def said(lines: list[dict[str, Any]]) -> list[tuple[bool, str]]:
    return [(line["applied"], line["what"]) for line in lines]


TRAIN = """
optimizer = {made}
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, [bool(group.get("fused")) for group in optimizer.param_groups]]))
"""


@pytest.mark.parametrize(
    "made",
    [
        "torch.optim.AdamW(model.parameters(), lr=1e-2)",
        "torch.optim.AdamW(iter([{'params': p} for p in model.parameters()]), 1e-2, (0.8, 0.9))",
        "torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)",
        "type('Mine', (torch.optim.Adam,), {})(model.parameters(), lr=1e-2)",
    ],
)
def test_optimizer_is_fused_and_learns_the_same(tmp_path: Path, made: str) -> None:
    script = TRAIN.format(made=made)
    (plain, before), _ = run(tmp_path, script, {})
    (losses, fused), lines = run(tmp_path, script, {"fused_optimizer": True})
    assert not any(before)
    assert all(fused)
    assert losses == pytest.approx(plain, rel=1e-5)
    assert [applied for applied, _ in said(lines)] == [True]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("torch.optim.AdamW(model.parameters(), foreach=True)", "the script chose"),
        ("torch.optim.AdamW(model.parameters(), fused=False)", "the script chose"),
        ("torch.optim.AdamW(model.parameters(), differentiable=True)", "differentiable"),
    ],
)
def test_optimizer_that_the_script_chose_stays(tmp_path: Path, made: str, why: str) -> None:
    script = (
        f"optimizer = {made}\nprint(json.dumps([bool(g['fused']) for g in optimizer.param_groups]))"
    )
    fused, lines = run(tmp_path, script, {"fused_optimizer": True})
    assert fused == [False]
    ((applied, what),) = said(lines)
    assert not applied
    assert why in what


def test_optimizer_that_cannot_be_fused_is_made_as_it_was(tmp_path: Path) -> None:
    script = """
weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
optimizer = torch.optim.SGD([weight], lr=0.1)
print(json.dumps([bool(group["fused"]) for group in optimizer.param_groups]))
"""
    fused, lines = run(tmp_path, script, {"fused_optimizer": True})
    (entry,) = said(lines)
    assert entry[0] == fused[0]


def test_model_runs_in_bf16_and_its_loss_in_fp32(tmp_path: Path) -> None:
    script = """
given = model(x)
with torch.no_grad():
    evaluated = model(x)
loss = torch.nn.MSELoss()(given, y)
loss.backward()
exact = evaluated.sub(given).abs().max().item()
print(json.dumps([str(given.dtype), str(loss.dtype), exact]))
"""
    (dtype, loss, difference), lines = run(tmp_path, script, {"precision": "bf16"})
    assert (dtype, loss) == ("torch.float32", "torch.float32")
    assert 0 < difference < 0.05
    assert said(lines) == [(True, "Sequential")]
    (_, _, without), _ = run(tmp_path, script, {})
    assert without == 0


def test_script_that_autocasts_is_left_alone(tmp_path: Path) -> None:
    script = """
with torch.autocast("cpu", torch.bfloat16):
    given = model(x)
print(json.dumps(str(given.dtype)))
"""
    dtype, lines = run(tmp_path, script, {"precision": "bf16"})
    assert dtype == "torch.bfloat16"
    assert said(lines) == [(False, "Sequential: the script autocasts it")]


def test_fp16_without_a_scaler_is_refused(tmp_path: Path) -> None:
    _, lines = run(tmp_path, "print(json.dumps(1))", {"precision": "fp16"})
    ((applied, what),) = said(lines)
    assert not applied
    assert "scaler" in what


def test_model_is_compiled_once_and_learns_the_same(tmp_path: Path) -> None:
    count = """
from torch._dynamo.utils import counters
print(json.dumps([losses, counters["stats"]["unique_graphs"], list(model.state_dict())]))
"""
    script = TRAIN.format(made="torch.optim.SGD(model.parameters(), lr=1e-2)") + count
    (plain, none, names), _ = run(tmp_path, script, {})
    (losses, graphs, compiled_names), lines = run(tmp_path, script, {"compile": True})
    assert none == 0
    assert graphs == 1
    assert compiled_names == names
    assert losses == pytest.approx(plain, rel=1e-5)
    assert said(lines) == [(True, "Sequential")]


def test_technique_without_a_live_form_is_said(tmp_path: Path) -> None:
    _, lines = run(tmp_path, "print(json.dumps(1))", {"clipping": "fused", "no such": 1})
    assert all(not applied for applied, _ in said(lines))
    assert len(lines) == 2
