"""`hotloop doctor` on a script with a planted problem on a GPU: found, its fix tried in fresh processes, and kept.

`pytest tests/gpu -m gpu`; with `HOTLOOP_TEST_DEVICE=cpu` on a CPU, with another problem.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_or_cpu import DEVICE, ON_A_GPU, ON_GPU
from hotloop.core.command_run import CommandRun
from hotloop.core.files import read_json
from hotloop.core.measurement import Measurement

pytestmark = ON_A_GPU

SCRIPT = f"""
import torch
from torch import nn
device = "{DEVICE}"
torch.manual_seed(0)
torch.set_num_threads(1)
if device == "cpu":
    torch.autograd.set_detect_anomaly(True)
width = 4096 if device == "cuda" else 128
layers = [each for _ in range(3) for each in (nn.Linear(width, width), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(width, 16)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(2 * width, width, device=device), torch.randn(2 * width, 16, device=device)
for step in range(3000):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
"""
FINDING, FIX, VALUE = ("HL301", "precision", "bf16") if ON_GPU else ("HL807", "anomaly_mode", False)
RATIO = 1.5 if ON_GPU else 1.05


@pytest.mark.slow  # starting a process with CUDA takes 10 s, and it takes a dozen
def test_the_doctor_finds_a_planted_problem_and_keeps_what_cures_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    told = json.dumps(VALUE).strip('"')
    options = ["--budget", "4m", "--steps", "60", "--only", f"{FIX}={told}"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hotloop", "doctor", *options),
            *("--json", "found.json", "--out", "run", "--", sys.executable, "train.py"),
        ],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    everything = json.dumps(found["ledger"], indent=1)[-4000:] + done.stderr[-2000:]
    assert found["schema"] == "hotloop.diagnosis/1"
    assert found["doctor"]["ended"] == "enough_steps"
    assert sum(found["breakdown"].values()) == pytest.approx(1.0, abs=0.01)
    assert FINDING in [each["code"] for each in found["findings"]]
    (tried,) = found["ledger"]["fixes"]
    assert (tried["name"], tried["value"]) == (FIX, VALUE)
    assert tried["status"] == "kept", everything
    assert tried["verdict"]["outcome"] == "improved"
    assert tried["verdict"]["ratio"] > RATIO, everything
    assert tried["verdict"]["parity"]["result"] in ("same", "within_noise")
    assert FIX in done.stderr
    assert read_json(tmp_path / "run/doctor.json", CommandRun).ended == "enough_steps"
    measured = read_json(tmp_path / "run/measurement.json", Measurement)
    if ON_GPU:
        assert found["device"] is not None
        assert sum(found["device"].values()) == pytest.approx(1.0)
        assert found["device"]["compute"] > 0.8
        assert measured.environment.cuda is not None
        assert "float32" in measured.census.matmul_dtypes
