"""What a sandbox costs: the same script in the working directory itself and in a layer over it, in turns.

    python benchmarks/sandbox_cost.py --pairs 8 --json benchmarks/results/sandbox_cost.json

Ratios are inside over outside, of the CPU seconds of a training loop, which other programs hardly change; the interval is over pairs. `start_s`: of a command that does nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path

from hotloop.core.measurement import Measurement, Plan
from hotloop.judge import student_t
from hotloop.trial.arm import Arm
from hotloop.trial.measure import measure
from hotloop.trial.sandbox.layered import Layered, storage_for
from hotloop.trial.snapshot import take_snapshot

SCRIPT = """
import time, torch
torch.manual_seed(0); torch.set_num_threads(1)
class Files(torch.utils.data.Dataset):
    def __len__(self): return 16384
    def __getitem__(self, index):
        with open(f"data/{index % 64}.bin", "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
begun = time.process_time()
for batch in torch.utils.data.DataLoader(Files(), batch_size=32):
    loss = model(batch).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print(time.process_time() - begun)
"""
"""Every sample is read from a file."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measured(Path(name), given.pairs)
    print(json.dumps(found, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(place: Path, pairs: int) -> dict[str, object]:
    """Ratios of steps, and seconds of processes."""
    work, doctors = place / "work", place / "doctor"
    (work / "data").mkdir(parents=True)
    doctors.mkdir()
    for number in range(64):
        (work / "data" / f"{number}.bin").write_bytes(bytes(1024))
    (work / "train.py").write_text(SCRIPT)
    storage = storage_for(doctors, work)
    assert storage is not None, "this kernel gives no layers"
    layered = Layered(take_snapshot(work, doctors / "before"), doctors.resolve(), storage)
    steps = Arm("steps", (sys.executable, "train.py"), "none", workdir=work)
    nothing = Arm("nothing", (sys.executable, "-S", "-c", "pass"), "none", workdir=work)
    logs, start_s = [], {"inside": [], "outside": []}  # type: ignore[var-annotated]
    draw = random.Random(0)
    for pair in range(pairs):
        took = {}
        for where in draw.sample(("inside", "outside"), 2):
            start = layered if where == "inside" else None
            place = doctors / f"{pair}-{where}"
            _run(steps, place / "steps", start)
            took[where] = float((place / "steps" / "log.txt").read_text())
            started = _run(nothing, place / "nothing", start)
            start_s[where].append(started.process_s)
        logs.append(math.log(took["inside"] / took["outside"]))
    middle = statistics.fmean(logs)
    half = student_t.quantile(0.975, pairs - 1) * statistics.stdev(logs) / math.sqrt(pairs)
    return {
        "pairs": pairs,
        "storage": storage,
        "cpu_ratio": [math.exp(each) for each in (middle, middle - half, middle + half)],
        "start_s": {where: statistics.median(each) for where, each in start_s.items()},
    }


def _run(arm: Arm, directory: Path, start: Layered | None) -> Measurement:
    plan = Plan(0, 1, 300.0)
    return measure(
        arm, directory=directory, plan=plan, seed="0", cache=directory / "cache", workdir=start
    )  # fmt: skip


if __name__ == "__main__":
    main()
