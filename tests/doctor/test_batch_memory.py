"""What is not tried since its batches would not fit, and what is all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loader_uses import loader_use

from hotloop.core.census import Census
from hotloop.core.judgement import Diagnosis, Finding, Steps
from hotloop.core.memory_use import MemoryNote
from hotloop.doctor import batch_memory
from hotloop.doctor.batch_memory import BatchMemory
from hotloop.doctor.fix_status import tried_fix
from hotloop.doctor.fixes import asked_for, fixes_for
from hotloop.hardware.limits import Machine, shared_memory_left_bytes
from hotloop.optimizations.loader_workers import LOADER_WORKERS
from hotloop.optimizations.optimization import BatchesAhead
from hotloop.optimizations.prefetch import PREFETCH

MB = 1_000_000
DOCKER = 64 << 20
"""What a container has in /dev/shm where nobody asked for more."""
SOURCE = Path(__file__).parents[2] / "src"
IN_SMALL_ROOM = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"', "sh"]  # fmt: skip
CAN_MOUNT = (
    sys.platform == "linux"
    and subprocess.run([*IN_SMALL_ROOM, "true"], check=False, capture_output=True).returncode == 0
)

SCRIPT = """
import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", type=int, default=1)
parser.add_argument("--pause", action="store_true")
args = parser.parse_args()


class Images(Dataset):
    def __len__(self):
        return 16 * 40

    def __getitem__(self, index):
        return torch.full((15_600,), float(index % 7))


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(15_600, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for x in DataLoader(Images(), batch_size=16, num_workers=args.num_workers):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(100 * args.pause):  # an evaluation: workers go on until nothing more is asked of them
            if os.statvfs("/dev/shm").f_bavail * 4096 < 1.5e6:  # else two that failed at once left more
                break
            time.sleep(0.1)
"""


def memory(
    directory: Path,
    *,
    shared: int | None = DOCKER,
    left: int | None = None,
    ranks: int | None = None,
    process: int | None = None,
    device: str = "cuda:0",
    **seen: Any,
) -> BatchMemory:
    seen = {"batch_bytes": 75 * MB, "per_epoch": 1000} | seen
    census = Census(
        device=device,
        cpus=16.0,
        num_local_ranks=ranks,
        host_peak_bytes=process,
        loaders=(loader_use("train.py:3", **seen),),
    )
    found = batch_memory.batch_memory(census, directory)
    assert found is not None
    return replace(found, shared_left=shared, left=left)


def reason(found: BatchMemory, workers: int, factor: int = 2) -> str | None:
    return found.reason_too_large(BatchesAhead(workers, workers * factor))


def test_workers_whose_batches_shared_memory_cannot_hold_are_not_tried(tmp_path: Path) -> None:
    assert reason(memory(tmp_path), 8) == (
        "its batches need about 1.3 GB of /dev/shm (8 workers x 2 batches of 75 MB, and the one in use), 67 MB is there: "
        "`docker run --shm-size=2g`, or fewer workers or batches ahead"
    )
    assert reason(memory(tmp_path, shared=1275 * MB), 8) is None
    assert reason(memory(tmp_path, shared=1200 * MB), 8) is None  # not clearly
    assert reason(memory(tmp_path, shared=1100 * MB), 8) is not None
    on_each = reason(memory(tmp_path, shared=1275 * MB, ranks=4), 8)
    assert on_each is not None
    assert "5.1 GB" in on_each
    assert "in each of 4 processes" in on_each


@pytest.mark.parametrize(
    "seen",
    [
        {"shared": None},  # no limit, or no Linux
        {"shared": 160 * MB, "per_epoch": 2},  # no more batches than an epoch has
        {"shared": 160 * MB, "pin_memory": True},  # copied as soon as they come
        {"num_workers": 8, "prefetch_factor": 2},  # the command has as many
        {"num_workers": 4, "prefetch_factor": 2},  # and runs although they should not fit
    ],
)
def test_what_may_fit_is_tried(tmp_path: Path, seen: dict[str, Any]) -> None:
    assert reason(memory(tmp_path, **seen), 8) is None


def test_a_thread_pins_only_where_there_is_an_accelerator(tmp_path: Path) -> None:
    pinned = {"shared": 160 * MB, "pin_memory": True}
    assert reason(memory(tmp_path, **pinned, device="cpu"), 8) is not None
    few = reason(memory(tmp_path, pin_memory=True), 8)
    assert few is not None
    assert "150 MB of /dev/shm (2 batches of 75 MB at a time)" in few


def test_batches_that_nobody_saw_refuse_nothing(tmp_path: Path) -> None:
    for unknown in (None, 0):
        census = Census(loaders=(loader_use("train.py:3", batch_bytes=unknown),))
        assert batch_memory.batch_memory(census, tmp_path) is None
    assert batch_memory.batch_memory(None, tmp_path) is None


def test_workers_and_batches_that_the_free_memory_cannot_hold_are_not_tried(tmp_path: Path) -> None:
    workers = {"num_workers": 2, "prefetch_factor": 2, "shared": None, "process": 1000 * MB}
    note = MemoryNote(pid=1, at=0.0, workers_bytes=1800 * MB)
    (tmp_path / "memory-1.json").write_text(json.dumps(asdict(note)))
    found = memory(tmp_path, **workers, left=8000 * MB)
    assert reason(found, 8) == (
        "with it the command needs about 9.5 GB of memory (900 MB for each worker, 1.3 GB for batches), 8.0 GB is free: "
        "fewer workers or batches ahead"
    )
    assert reason(found, 4) is None
    assert reason(memory(tmp_path, **workers, left=9000 * MB), 8) is None  # not clearly
    assert reason(memory(tmp_path, **workers, left=3000 * MB), 8) is None  # nor the command itself
    without = memory(tmp_path, **workers | {"num_workers": 0}, left=9000 * MB)
    assert reason(without, 8) is None  # what other processes take is no worker's
    large = replace(note, workers_bytes=5000 * MB)  # another process's, for the most part
    (tmp_path / "memory-1.json").write_text(json.dumps(asdict(large)))
    assert reason(memory(tmp_path, **workers, left=13_000 * MB), 8) is None
    (tmp_path / "memory-1.json").unlink()  # then its batches alone are known
    assert reason(found, 8) is None
    assert reason(found, 64) is not None


def test_the_largest_number_of_workers_that_fits_is_tried_and_why_no_more(tmp_path: Path) -> None:
    diagnosis = Diagnosis(
        bound="input",
        steps=Steps(40, 3, 0.1),
        breakdown={"data_wait": 0.9},
        findings=(Finding("HL102", "", 8.0, optimization="loader_workers"),),
    )
    found = memory(tmp_path, batch_bytes=7 * MB, device="cpu", fetch_s=0.09, wait_s=0.09)
    census = replace(found.census, profiled_step_s=0.1)
    given = diagnosis, Machine("cpu", (), None, 16), census
    (fix,) = fixes_for(*given, memory=found)
    assert (fix.value, fix.queue.length) == (3, 6)
    assert fix.limited.startswith("3, not 9: its batches need about 133 MB of /dev/shm (9 workers")
    assert tried_fix(fix, "kept", "faster").details == fix.limited
    (asked,) = fixes_for(*given, only=asked_for(["loader_workers=9"]), memory=found)
    assert asked.value == 9
    assert found.reason_not_tried(LOADER_WORKERS, 9) is not None
    # None fits that is more than the command has.
    small = replace(found, shared_left=20 * MB)
    assert fixes_for(*given, memory=small)[0].value == 9
    # What was begun goes on, whatever is free by now.
    plan = tmp_path / "trials" / "loader_workers" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(json.dumps({"candidate": {"fixes": {"loader_workers": 2}}}))
    (fix,) = fixes_for(*given, memory=found)
    assert fix.value == 2
    assert small.reason_not_tried(LOADER_WORKERS, 9) is None


def test_a_longer_queue_that_does_not_fit_is_not_tried(tmp_path: Path) -> None:
    seen = {"num_workers": 2, "prefetch_factor": 2, "batch_bytes": 10 * MB, "device": "cpu"}
    why = memory(tmp_path, **seen).reason_not_tried(PREFETCH, 8)
    assert why is not None
    assert "2 workers x 8 batches of 10 MB" in why
    assert memory(tmp_path, **seen).reason_not_tried(PREFETCH, 3) is None


def test_shared_memory_without_a_limit_or_a_place_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_memory_left_bytes(str(tmp_path / "missing")) is None
    place = SimpleNamespace(f_blocks=100, f_bavail=40, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: place)
    assert shared_memory_left_bytes() == 40 * 4096
    place.f_blocks = place.f_bavail = 0  # mounted with size=0
    assert shared_memory_left_bytes() is None


@pytest.mark.skipif(not CAN_MOUNT, reason="nothing can be mounted here")
def test_tune_in_a_container_with_little_shared_memory_tries_no_workers_that_would_fill_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--vary", "--num-workers=16", "--json", "found.json"]
    tuned = [sys.executable, "-m", "hotloop", "tune", *options, "--", sys.executable, "train.py"]
    subprocess.run(
        [*IN_SMALL_ROOM, *tuned],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
        capture_output=True,
        timeout=600,
    )
    (tried,) = json.loads((tmp_path / "found.json").read_text())["fixes"]
    assert (tried["name"], tried["status"]) == ("--num-workers=16", "not_tried")
    assert "(16 workers x 2 batches of 998 KB, and the one in use), 8.4 MB is there" in tried["why"]
    # And that was true: a pause fills it.
    filled = subprocess.run(
        [*IN_SMALL_ROOM, sys.executable, "train.py", "--num-workers=16", "--pause"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert filled.returncode != 0
    assert "No space left on device" in filled.stderr or "Bus error" in filled.stderr
