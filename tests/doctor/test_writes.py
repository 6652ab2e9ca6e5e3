"""Timed runs of a script that writes outside of its copy only late: kept from it, and said whose it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hotloop.core.errors import CommandFailed, UsageError
from hotloop.doctor.trial_reports import WritesOutside, refuse_writes
from hotloop.trial.arm import Arm
from hotloop.trial.isolation import list_workdir
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import compare_arms

pytestmark = pytest.mark.usefixtures("without_compiler")

SCRIPT = """
import os, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if step == 10:
        torch.save(model.state_dict(), "checkpoints/last.pt")
"""


def test_what_a_timed_run_would_write_through_a_link_stays_as_it_is(tmp_path: Path) -> None:
    real, work = tmp_path / "real", tmp_path / "work"
    real.mkdir()
    work.mkdir()
    (real / "last.pt").write_text("10000 steps of training")
    (work / "checkpoints").symlink_to(real)
    (work / "train.py").write_text(SCRIPT)
    command = (sys.executable, "train.py")
    arms = [
        Arm(name, command, "step_clock", workdir=work, sandboxed=True)
        for name in ("baseline", "fix")
    ]
    with pytest.raises(CommandFailed):
        compare_arms(
            *arms,
            directory=tmp_path / "session",
            workdir=list_workdir(work, without=tmp_path / "session"),
            plan=TrialPlan(2, 15, timeout_s=120.0, looks=(2,), aa_pairs=0),
            parity_class="bitwise",
        )
    assert (real / "last.pt").read_text() == "10000 steps of training"
    with pytest.raises((UsageError, WritesOutside)):
        refuse_writes(tmp_path / "session", "baseline")


@pytest.mark.parametrize(
    ("who", "error"), [("baseline", UsageError), ("fix", WritesOutside), ("nobody", None)]
)
def test_it_is_known_whose_run_wrote(
    who: str, error: type[Exception] | None, tmp_path: Path
) -> None:
    for name in ("pair-01-a-baseline", "pair-01-b-fix"):
        (tmp_path / name / "run").mkdir(parents=True)
        if name.endswith(who):
            line = '{"path": "/data/last.pt"}\n'
            (tmp_path / name / "run" / "outside.jsonl").write_text(line)
    if error is None:
        refuse_writes(tmp_path, "baseline")
        return
    with pytest.raises(error) as raised:
        refuse_writes(tmp_path, "baseline")
    assert "/data/last.pt" in str(getattr(raised.value, "where", None) or raised.value)
