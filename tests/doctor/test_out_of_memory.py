"""Scripts that really run out of memory: the doctor says so, where it went, and of a kill only what was counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.core.errors import ExitCode
from hotloop.runs.stored_run import StoredRun, read_run
from hotloop.trial.memory_group import memory_group

pytestmark = pytest.mark.usefixtures("without_compiler")

SCRIPT = """
import glob, json, os, time
import torch
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, number):
        if number == 400 and {worker}:
            self.held = torch.ones(200_000_000)
        return torch.randn(64)
if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 512)
    optimizer = torch.optim.Adam(model.parameters())
    held = []
    loader = torch.utils.data.DataLoader(Items(), batch_size=8, num_workers=int({worker}))
    for step, x in enumerate(loader):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 30:
            {does}
"""
LEAKS = """
            held.append(torch.ones(2_500_000))
            # The limit is reached within a second, in which a busy machine may not let the watch look.
            (note,) = glob.glob(os.environ["HOTLOOP_DOCTOR"] + "/memory-*.json")
            if len(held) == 1: before, until = json.load(open(note))["peak_bytes"], time.monotonic() + 60
            while len(held) == 15 and json.load(open(note))["peak_bytes"] < before + 110e6 and time.monotonic() < until:
                time.sleep(0.01)
"""
ASKS = "model(x[:1].expand(10**11, 64))"
RAISES = "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 MiB.')"
KILLS_ITSELF = "os.kill(os.getpid(), 9)"


def examined(workdir: Path, does: str, *, worker: bool = False, megabytes: int = 0) -> StoredRun:
    """The run of `hotloop doctor` on it, in a control group of so many MB."""
    (workdir / "train.py").write_text(SCRIPT.format(does=does, worker=worker))
    command = [sys.executable, "-m", "hotloop", "doctor", "--no-try", "--out", "run", "--", sys.executable, "train.py"]  # fmt: skip
    with memory_group((megabytes or 4000) << 20) as group:
        if megabytes and group is None:
            pytest.skip("no memory control group can be made here")
        if megabytes and group is not None:
            command = group.command(command)
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == ExitCode.COMMAND_FAILED, done.stderr
    return read_run(workdir / "run")


def test_what_the_kernel_killed_is_told_from_what_it_last_wrote(workdir: Path) -> None:
    ended = examined(workdir, LEAKS, megabytes=600).out_of_memory
    assert ended is not None
    assert ended.certainty == "killed"
    assert ended.limit_bytes == 600 << 20
    assert ended.used_bytes is not None
    assert ended.profile is not None
    parts = ended.profile.parts
    assert parts["optimizer"] >= 2 * parts["weights"] == 2 * 4 * (64 * 512 + 512)
    assert parts["activations and the rest"] > 100e6


def test_a_kill_that_was_not_for_memory_is_not_called_one(workdir: Path) -> None:
    found = examined(workdir, KILLS_ITSELF, megabytes=1000)
    assert found.out_of_memory is None
    assert found.command_run is not None
    assert found.command_run.killed_for_memory == "no"


@pytest.mark.parametrize(
    ("does", "said", "where"),
    [
        (ASKS, "can't allocate memory", "forward of step 31, train.py:23"),
        (RAISES, "Tried to allocate 20.00 MiB", "step 31, train.py:23"),
    ],
)
def test_what_an_allocator_refused_is_told_with_its_line(
    does: str, said: str, where: str, workdir: Path
) -> None:
    ended = examined(workdir, does).out_of_memory
    assert ended is not None
    assert ended.certainty == "said"
    assert said in (ended.said or "")
    assert ended.where == where
    assert ended.profile is not None
    assert ended.profile.parts["gradients"] == ended.profile.parts["weights"]


def test_a_worker_that_was_killed_is_told_as_one(workdir: Path) -> None:
    ended = examined(workdir, "pass", worker=True, megabytes=700).out_of_memory
    assert ended is not None
    assert "is killed by signal" in (ended.said or "")
    assert ended.where.startswith("data wait of step")
    assert any("num_workers" in each for each in ended.ways[:2])
