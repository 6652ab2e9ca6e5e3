"""Scripts on the GPU (`gpu_or_cpu`), each in a fresh process: watched by the probe, clocked as in a trial, or with fixes put into them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_or_cpu import DEVICE
from hotloop.core.child import DOCTOR, STEP_CLOCK
from script_runs import ScriptRun, lines_of, variables

TIMEOUT_S = 150

PRELUDE = f"""
import json, os, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
device = "{DEVICE}"
on_gpu = device == "cuda"
torch.set_num_threads(1)
torch.manual_seed(0)

def build(width=64):
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

def learn(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

def busy(seconds):
    \"\"\"One kernel of about so long; the host does not wait.\"\"\"
    torch.cuda._sleep(int(seconds * 1.7e9)) if on_gpu else time.sleep(seconds)

def synchronize():
    if on_gpu: torch.cuda.synchronize()

class Stopwatch:
    \"\"\"Seconds between marks, by the device's own clock.\"\"\"
    def __init__(self):
        self.marks = []
    def mark(self):
        at = torch.cuda.Event(enable_timing=True) if on_gpu else time.perf_counter()
        if on_gpu: at.record()
        self.marks.append(at)
    def seconds(self):
        synchronize()
        pairs = list(zip(self.marks, self.marks[1:]))
        return [a.elapsed_time(b) / 1000 if on_gpu else b - a for a, b in pairs]

def told(marks):
    \"\"\"Medians of a kernel and of a step, where each step marks the begin and the end of one.\"\"\"
    seconds = marks.seconds()
    kernels, steps = seconds[::2], [a + b for a, b in zip(seconds[::2], seconds[1::2])]
    print(json.dumps([sorted(each)[len(each) // 2] for each in (kernels, steps)]))
"""


class Ran(ScriptRun):
    @property
    def complaints(self) -> str:
        """Why some of it was not seen."""
        census = self.directory / "census-0.json"
        held = self.census.notes if census.exists() else ()
        return self.notes + "".join(each for each in held if each.startswith(("no ", "not ")))


def run_script(
    place: Path,
    source: str,
    *,
    watched: bool = False,
    clocked: dict[str, str] | None = None,
    fixes: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
) -> Ran:
    """Run PRELUDE and `source`. watched: by the probe. clocked: by a trial's clock, with these variables more."""
    number = sum(each.is_dir() for each in place.iterdir())
    directory = place / f"run-{number}"
    directory.mkdir()
    (directory / "train.py").write_text(PRELUDE + source)
    environment = variables(fixes, into=directory)
    environment |= {DOCTOR: str(directory)} if watched else {}
    environment |= {STEP_CLOCK: str(directory), **clocked} if clocked is not None else {}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=directory,
        env=environment | (env or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Ran(0, done.stdout, done.stderr, directory, lines_of(directory))
