"""Scripts on the GPU (`gpu_or_cpu`), each in a fresh process: watched by the probe, clocked as in a trial, or with fixes put into them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_or_cpu import DEVICE

from hotloop.core.census import Census
from hotloop.core.child import APPLIED_FILE, DOCTOR, FIXES, FIXES_SETTINGS, STEP_CLOCK
from hotloop.core.files import read_json
from hotloop.core.step import StepRecord, read_steps
from hotloop.trial import bootstrap

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


@dataclass(frozen=True)
class Ran:
    """A script that ended well, and what hotloop wrote of it."""

    output: str
    errors: str
    directory: Path

    @property
    def printed(self) -> Any:
        """Its last line, as JSON."""
        return json.loads(self.output.splitlines()[-1])

    @property
    def steps(self) -> list[StepRecord]:
        return list(read_steps(self.directory / "steps-0.jsonl"))

    @property
    def counted(self) -> list[StepRecord]:
        return [r for r in self.steps if not {"warmup", "compile", "profiled"} & set(r.tags)]

    @property
    def census(self) -> Census:
        return read_json(self.directory / "census-0.json", Census)

    @property
    def complaints(self) -> str:
        """Why some of it was not seen."""
        notes = self.directory / "notes.txt"
        written = notes.read_text() if notes.exists() else ""
        census = self.directory / "census-0.json"
        held = self.census.notes if census.exists() else ()
        return written + "".join(each for each in held if each.startswith(("no ", "not ")))

    @property
    def said(self) -> list[tuple[bool, str]]:
        """Whether a fix was applied, and where or why not."""
        path = self.directory / APPLIED_FILE
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line["applied"], line["what"]) for line in map(json.loads, lines)]

    @property
    def applied(self) -> list[str]:
        return [what for applied, what in self.said if applied]

    @property
    def refused(self) -> list[str]:
        return [what for applied, what in self.said if not applied]


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
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
    own = Path(bootstrap.__file__).parent
    more = [each for each in [os.environ.get("PYTHONPATH")] if each]
    environment["PYTHONPATH"] = os.pathsep.join([str(own), str(own.parents[2]), *more])
    environment |= {DOCTOR: str(directory)} if watched else {}
    environment |= {STEP_CLOCK: str(directory), **clocked} if clocked is not None else {}
    if fixes:
        environment |= {FIXES: str(directory), FIXES_SETTINGS: json.dumps(fixes)}
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
    return Ran(done.stdout, done.stderr, directory)
