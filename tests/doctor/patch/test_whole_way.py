"""From the command to the patch and back: the doctor finds, tries, proves and writes, and sees its own gain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.trial.arm import digest_of

SOURCE = str(Path(__file__).parents[3] / "src")
MANY_WEIGHTS = """\
import torch
from torch import nn


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8)) for _ in range(300)])

    def forward(self, x):
        return (torch.stack(list(self.weights)) @ x).mean()


def main():
    torch.manual_seed(0)
    model = Many()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(60):
        loss = model(torch.randn(8)).square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
"""


def doctor(workdir: Path, out: str, *options: str) -> Any:
    found = workdir.parent / f"{out}.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hotloop", "doctor", "--out", str(workdir.parent / out)),
            *("--json", str(found), *options, "--", sys.executable, "train.py"),
        ],
        cwd=workdir,
        env={"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    census = json.loads((workdir.parent / out / "census-0.json").read_text())
    return json.loads(found.read_text()), census, done


@pytest.mark.slow  # a dozen processes and more, a few seconds each
def test_patch_of_a_doctor_is_its_next_baseline(tmp_path: Path) -> None:
    workdir = tmp_path / "project"
    workdir.mkdir()
    (workdir / "train.py").write_text(MANY_WEIGHTS)
    found, census, done = doctor(
        workdir,
        "first",
        *("--only", "fused_optimizer", "--budget", "20m", "--diff", "fixes.diff"),
    )
    assert found["ledger"]["kept"] == ["fused_optimizer"], done.stderr
    (fix,) = found["ledger"]["fixes"]
    (trial,) = found["trials"]
    assert (trial["optimization"], trial["setting"]) == ("fused_optimizer", {"fused": True})
    assert found["final"]["kept"] == ["fused_optimizer"]
    stored = json.loads((Path(found["run"]) / "diagnosis.json").read_text())
    assert stored["final"] == found["final"]
    assert (fix["patch"], fix["patch_text"]) == ("edited", "train.py:17")
    assert found["ledger"]["diff"] == "fixes.diff"
    assert "Patch: fixes.diff" in done.stderr
    assert census["optimizer"] == "AdamW"
    assert (workdir / "train.py").read_text() == MANY_WEIGHTS
    # What the confirming processes ran is what is written, and nothing was put into them besides.
    trials = workdir.parent / "first" / "trials"
    plan = json.loads((trials / "together-fused_optimizer" / "plan.json").read_text())
    assert plan["candidate"]["edited"] == found["ledger"]["together_patched"]
    assert "fixes" not in plan["candidate"]
    subprocess.run(["git", "apply", "fixes.diff"], cwd=workdir, check=True)
    edited = {"train.py": (workdir / "train.py").read_bytes()}
    assert digest_of(edited) == found["ledger"]["together_patched"]
    _, census, again = doctor(workdir, "second", "--no-try")
    assert census["optimizer"] == "AdamW(fused)"
    assert float(again.stdout) == pytest.approx(float(done.stdout), rel=1e-4)
