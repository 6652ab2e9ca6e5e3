"""`hotloop.watch` and the callbacks of frameworks around trainings on a GPU (`gpu_or_cpu`).

Each in a process of its own: a watch hooks torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpu_or_cpu import DEVICE, ON_A_GPU

pytestmark = ON_A_GPU
ROOT = Path(__file__).parents[2]
HEAD = f"""
import json, sys, time
import torch
import hotloop
from planted_training import BATCH, Model, Rows, entries
DEVICE = {DEVICE!r}
CPU = DEVICE == "cpu"
"""


def found_by(body: str, directory: Path, *, code: int = 0) -> tuple[dict[str, Any], str]:
    """What the last line that a script printed says, and its errors."""
    (directory / "script.py").write_text(HEAD + body)
    paths = [str(ROOT / "src"), str(ROOT / "tests/integrations")]
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_loop_is_examined_and_computes_what_it_would_without(tmp_path: Path) -> None:
    """A loop that asks for its loss in every step, and copies each batch from memory that is not pinned."""
    found, said = found_by(
        """
def train(steps):
    torch.manual_seed(0)
    width = 32 if CPU else 1024
    model = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, width).to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
before = entries()
with hotloop.watch(steps=40, out="watched") as seen:
    watched = train(100)
same = entries() == before
seen.save("seen.html")
with hotloop.watch() as again:
    train(30)
print(json.dumps({
    "same": same, "losses": [watched, train(100)], "breakdown": seen.diagnosis.breakdown, "codes": [e.code for e in seen.findings],
    "cost": seen.diagnosis.probe_overhead_fraction, "steps": seen.diagnosis.steps.measured, "shown": str(seen),
    "device": seen.to_dict(), "again": again.diagnosis.steps.measured,
}))
""",
        tmp_path,
    )
    assert found["same"]
    assert found["losses"][0] == found["losses"][1]
    assert sum(found["breakdown"].values()) == pytest.approx(1, abs=0.01)
    assert found["breakdown"]["forward"] > 0
    assert found["breakdown"]["backward"] > 0
    assert found["steps"] >= 20
    assert found["again"] > 0
    assert 0 < found["cost"] < 1
    assert "watching took" in said
    assert found["shown"] in said
    assert "Traceback" not in said
    assert (tmp_path / "seen.html").stat().st_size > 10_000
    if DEVICE == "cuda":
        assert "cuda" in json.dumps(found["device"]).lower()


def test_a_loop_that_fails_on_the_gpu_keeps_its_error(tmp_path: Path) -> None:
    found, _ = found_by(
        """
before = entries()
said = ""
try:
    with hotloop.watch(show=False) as seen:
        model = torch.nn.Linear(8, 8).to(DEVICE)
        for step in range(20):
            model(torch.randn(4, 8 if step < 15 else 9, device=DEVICE)).sum().backward()
except RuntimeError as error:
    said = str(error)
print(json.dumps({"said": said, "same": entries() == before, "ended": seen.to_dict()["doctor"]["ended"]}))
""",
        tmp_path,
    )
    assert "mat1 and mat2" in found["said"]
    assert found["same"]
    assert found["ended"] == "failed"


def test_steps_are_left_out_so_that_watching_costs_less_than_2_percent(tmp_path: Path) -> None:
    """Steps of 13 ms, 9 of which the device computes; the loop waits for it each time. All shares are held against what the script saw
    of all steps; the loop that is watched against the same one without, in turns, is `benchmarks/watch_cost.py`."""
    found, said = found_by(
        """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first, waited = 200, 0.0  # few are left out before
def computes():
    time.sleep(0.009) if CPU else torch.cuda._sleep(cycles)
if not CPU:  # what 9 ms are depends on the clock that the device runs at
    torch.cuda._sleep(50_000_000)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    torch.cuda.synchronize()
    cycles = round(50_000_000 * 9 / begin.elapsed_time(end))
with hotloop.watch() as seen:
    for step in range(800):
        if step == first:
            began = time.perf_counter()
        x = torch.randn(64, 64).to(DEVICE)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        computes()
        optimizer.step()
        loss.item()
        start = time.perf_counter()
        time.sleep(0.003 if step % 2 else 0.005)
        waited += time.perf_counter() - start if step >= first else 0.0
    step_s, slept = (time.perf_counter() - began) / (800 - first), waited / (time.perf_counter() - began)
diagnosis = seen.diagnosis
print(json.dumps({
    "cost": diagnosis.probe_overhead_fraction, "left_out": diagnosis.steps.left_out, "measured": diagnosis.steps.measured,
    "seen_s": sum(e["wall_s"] for e in map(json.loads, (seen.directory / "steps-0.jsonl").read_text().splitlines()[100:])) ,
    "records": len((seen.directory / "steps-0.jsonl").read_text().splitlines()[100:]),
    "step_s": step_s, "computes": 0.009 / step_s, "slept": slept, "own": diagnosis.breakdown["unattributed"], "device": diagnosis.device,
}))
""",
        tmp_path,
    )
    assert "failed" not in said
    assert found["cost"] < 0.02
    assert found["measured"] > 80
    assert found["seen_s"] / found["records"] == pytest.approx(found["step_s"], rel=0.1)
    assert found["own"] >= found["slept"] - 0.05
    if DEVICE == "cuda":
        assert found["left_out"] > 0
        assert sum(found["device"].values()) == pytest.approx(1)
        # It idles while the script sleeps, and between kernels as small as these.
        assert found["slept"] - 0.03 < found["device"]["idle"] < 1 - found["computes"] + 0.03


TRAINER = """
import transformers
from hotloop.integrations import TransformersWatch
def made(name, *callbacks, precision):
    arguments = transformers.TrainingArguments(
        output_dir=name, max_steps=60, per_device_train_batch_size=BATCH, logging_steps=10, save_strategy="no", disable_tqdm=True,
        report_to=[], use_cpu=CPU, bf16=precision == "bf16",
    )
    return transformers.Trainer(model=Model(), args=arguments, train_dataset=Rows(10_000), callbacks=[*callbacks])
def losses(trainer): return [e["loss"] for e in trainer.state.log_history if "loss" in e]
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trainer_is_watched_and_trains_the_same(tmp_path: Path, precision: str) -> None:
    for each in ("transformers", "accelerate"):
        pytest.importorskip(each)
    found, said = found_by(
        TRAINER
        + f"PRECISION = {precision!r}"
        + """
before, watch = entries(), TransformersWatch(steps=None)
trainer = made("watched", watch, precision=PRECISION)
trainer.train()
same = entries() == before
plain = made("plain", precision=PRECISION)
plain.train()
print(json.dumps({
    "same": same, "losses": [losses(trainer), losses(plain)], "codes": [e.code for e in watch.findings],
    "breakdown": watch.seen.diagnosis.breakdown, "device": str(next(trainer.model.parameters()).device),
    "logged": [e for e in trainer.state.log_history if "hotloop/step_s" in e],
    "cost": [e["hotloop/watch_cost_fraction"] for e in trainer.state.log_history if "hotloop/watch_cost_fraction" in e],
}))
""",
        tmp_path,
    )
    assert found["same"]
    assert found["device"].startswith(DEVICE)
    assert found["losses"][0] == found["losses"][1]
    assert "HL106" in found["codes"]
    assert sum(found["breakdown"].values()) == pytest.approx(1, abs=0.01)
    assert len(found["logged"]) >= 2
    assert len(found["cost"]) == 1
    assert said.count("watching took") == 1


def test_lightning_is_watched_and_trains_the_same(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    found, said = found_by(
        """
import csv, pathlib, warnings
warnings.simplefilter("ignore")
import lightning.pytorch as lightning
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from hotloop.integrations import LightningWatch
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, number):
        loss = self.model(**batch)["loss"]
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)
def fit(name, *callbacks):
    trainer = lightning.Trainer(
        max_steps=60, callbacks=[*callbacks], logger=CSVLogger(name), log_every_n_steps=5, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, accelerator="cpu" if CPU else "gpu", devices=1, precision="bf16-mixed",
    )
    module = Module()
    trainer.fit(module, DataLoader(Rows(10_000), batch_size=BATCH))
    rows = list(csv.DictReader((pathlib.Path(trainer.logger.log_dir) / "metrics.csv").open()))
    return rows, [e["loss"] for e in rows if e["loss"]], trainer.strategy.root_device.type
before, watch = entries(), LightningWatch(steps=None)
rows, losses, device = fit("watched", watch)
same = entries() == before
print(json.dumps({
    "same": same, "losses": [losses, fit("plain")[1]], "device": device, "codes": [e.code for e in watch.findings],
    "breakdown": watch.seen.diagnosis.breakdown, "logged": sum(bool(e["hotloop/step_s"]) for e in rows),
}))
""",
        tmp_path,
    )
    assert found["same"]
    assert found["device"] == DEVICE
    assert found["losses"][0] == found["losses"][1]
    assert "HL106" in found["codes"]
    assert sum(found["breakdown"].values()) == pytest.approx(1, abs=0.01)
    assert found["logged"] >= 2
    assert said.count("watching took") == 1


def test_accelerate_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    found, said = found_by(
        """
import accelerate
from torch.utils.data import DataLoader
from hotloop.integrations import AccelerateWatch
before, watch = entries(), AccelerateWatch(steps=None)
accelerator = accelerate.Accelerator(cpu=CPU, log_with=[watch], mixed_precision="bf16")
accelerator.init_trackers("planted")
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Rows(60 * BATCH), batch_size=BATCH))
logged = []
for step, batch in enumerate(loader):
    loss = model(**batch)["loss"]
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    if step % 10 == 9:
        values = {"loss": loss.item()}
        accelerator.log(values, step=step)
        logged.append("hotloop/step_s" in values)
accelerator.end_training()
print(json.dumps({"same": entries() == before, "device": accelerator.device.type, "codes": [e.code for e in watch.findings], "logged": sum(logged),
                  "breakdown": watch.seen.diagnosis.breakdown}))
""",
        tmp_path,
    )
    assert found["same"]
    assert found["device"] == DEVICE
    assert "HL106" in found["codes"]
    assert sum(found["breakdown"].values()) == pytest.approx(1, abs=0.01)
    assert found["logged"] >= 2
    assert said.count("watching took") == 1


@pytest.mark.parametrize("script", ["hf_training.py", "lightning_training.py"])
def test_a_framework_killed_and_continued_from_hotloops_checkpoints_ends_with_the_same_bits(
    tmp_path: Path, script: str
) -> None:
    needs = "accelerate" if script.startswith("hf") else "lightning"
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")

    def end_of(directory: Path, kill_at: int) -> str:
        words = [str(ROOT / "tests/checkpoint" / script), str(directory), str(kill_at)]
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOTLOOP_TEST_DEVICE": DEVICE},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == (0 if kill_at < 0 else -signal.SIGKILL), done.stderr
        return done.stdout

    whole = end_of(tmp_path / "whole", -1)
    end_of(tmp_path / "killed", 14)
    resumed = end_of(tmp_path / "killed", -1)
    assert "resumed None" in whole
    assert "resumed None" not in resumed
    ends = [said.split("end ")[1] for said in (whole, resumed)]
    if ends[0] != ends[1] and end_of(tmp_path / "again", -1).split("end ")[1] != ends[0]:
        pytest.skip("kernels of this device do not repeat themselves")
    assert ends[0] == ends[1]
