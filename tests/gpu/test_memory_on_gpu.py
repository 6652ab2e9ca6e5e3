"""Predicted memory against measured, a training that gets no more, and a tuned config, on a GPU. `pytest tests/gpu -m gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from device_trainings import MARKS

from gpu_or_cpu import DEVICE, ON_GPU
from hotloop.cli.main import run
from hotloop.core.errors import ExitCode
from hotloop.runs.stored_run import read_run

pytestmark = MARKS
MIB = 1 << 20
ROWS = 32 if ON_GPU else 4
WIDE = ("model.width=512", "model.heads=8", "model.layers=4", "model.context=64", "train.steps=3", "schedule.warmup_steps=1")  # fmt: skip
LLAMA = ("model.family=llama", "model.kv_heads=2", "model.vocabulary=8192", "optimizer.name=sgd")


@pytest.mark.parametrize(
    "settings",
    [
        (f"train.microbatch={ROWS}", "model.vocabulary=8192"),
        (*LLAMA, f"train.microbatch={ROWS}", "train.precision=bf16", "train.loss=chunked"),
        pytest.param(
            (f"train.microbatch={ROWS}", "train.precision=bf16", "train.compile=true"),
            marks=pytest.mark.slow,  # three processes that compile
        ),
    ],
    ids=" ".join,
)
def test_predicted_peak_is_within_a_tenth_of_the_measured(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    file = tmp_path / "fit.json"
    words = [str(tiny_config), *WIDE, f"train.device={DEVICE}", *settings]
    assert run(["fit", *words, "--json", str(file)]) == ExitCode.FINE
    found = json.loads(file.read_text())
    print(f"{found['device']}: predicted {found['steps_bytes'] / MIB:,.0f} MiB, measured {found['measured_bytes'] / MIB:,.0f} MiB, {found['error_fraction']:+.1%}; {found['unknown']}")  # fmt: skip
    assert abs(found["error_fraction"]) <= 0.1
    assert sum(found["parts"].values()) == found["whole_bytes"]
    assert (found["device"] == "cpu") != ON_GPU


LIMITED = """
import resource, sys
limit_bytes = int(sys.argv[1])
if ON_GPU:
    import torch
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit_bytes / whole)
else:
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
from hotloop.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("limit_mib", "where"),
    [
        pytest.param(100, "before its first step", marks=pytest.mark.skipif(not ON_GPU, reason="a CPU's process alone takes more")),
        (1000 if ON_GPU else 2400, ""),
    ],
)  # fmt: skip
def test_memory_that_is_refused_is_told_with_its_owners_and_what_to_do(
    tiny_config: Path, tmp_path: Path, limit_mib: int, where: str
) -> None:
    larger = ("model.layers=16", "model.context=256", "train.microbatch=32", "data.order=shuffled", "train.host_memory=default")  # fmt: skip
    words = ["train", str(tiny_config), *WIDE, *larger, f"train.device={DEVICE}"]
    if not where:
        words += ["model.layers=8"]
    code = LIMITED.replace("ON_GPU", str(ON_GPU))
    command = [sys.executable, "-c", code, str(limit_mib * MIB), *words]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == ExitCode.ENVIRONMENT, done.stderr
    assert "error: out of memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert f"hotloop fit {tiny_config}" in done.stderr
    assert "train.grad_accum_steps=2: the same steps in more, smaller products" in done.stderr
    if ON_GPU:
        assert "the memory of the GPU" in done.stderr
        assert "checkpoint.background" not in done.stderr
    found = read_run(tmp_path / "run").out_of_memory if not where else None
    if found is not None:
        assert found.certainty == "said"
        assert found.where.startswith(("forward of step ", "backward of step "))
        assert found.profile is not None
        assert found.profile.parts["weights"] > 0
    else:
        assert where in done.stderr


@pytest.mark.slow
def test_a_config_is_tuned_on_the_device(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"train.device={DEVICE}", "train.compile=false", "train.steps=200", "checkpoint.every_steps=0"]  # fmt: skip
    call = ["tune", str(tiny_config), *words, "--budget", "90s", "--json", "ledger.json"]
    assert run(call) == ExitCode.FINE
    ledger = json.loads(Path("ledger.json").read_text())
    assert ledger["trials"]
