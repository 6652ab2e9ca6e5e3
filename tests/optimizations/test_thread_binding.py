from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CONFIGURED
from hotloop.optimizations.thread_binding import trainer
from hotloop.optimizations.thread_binding.trainer import cpus_in_order

BOUND = """
import os, threading
import torch
from hotloop.optimizations.thread_binding.trainer import bind_threads

torch.set_num_threads(3)
own, others = os.sched_getaffinity(0), threading.Event()
bystander = threading.Thread(target=others.wait, daemon=True)
bystander.start()
assert bind_threads() == 2
masks = [os.sched_getaffinity(int(each)) for each in os.listdir("/proc/self/task")]
assert sum(len(each) == 1 for each in masks) == 2, masks
assert os.sched_getaffinity(0) == own == os.sched_getaffinity(bystander.native_id)
later = threading.Thread(target=lambda: masks.append(os.sched_getaffinity(0)))
later.start()
later.join()
assert masks[-1] == own
"""


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one CPU"
)
def test_threads_that_compute_are_bound_and_no_other_is() -> None:
    ended = subprocess.run([sys.executable, "-c", BOUND], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_threads_of_several_processes_do_not_share_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[set[int]] = []
    monkeypatch.setattr(trainer, "_pool", lambda: [11, 12, 13])
    monkeypatch.setattr(trainer, "cpus_in_order", lambda: list(range(8)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: bound.append(cpus))
    assert [trainer.bind_threads(rank) for rank in (0, 1)] == [3, 3]
    assert bound == [{1}, {2}, {3}, {5}, {6}, {7}]


def test_cpus_are_taken_node_by_node_and_core_by_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for cpu in range(8):  # two nodes of two cores, of which each runs two threads
        place = tmp_path / f"cpu/cpu{cpu}"
        (place / "topology").mkdir(parents=True)
        (place / f"node{cpu % 2}").mkdir()
        (place / "topology/thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert cpus_in_order(tmp_path) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert cpus_in_order(tmp_path / "nothing") == list(range(8))


def test_it_is_for_several_threads_of_a_cpu() -> None:
    binding, cpu = CONFIGURED["thread_binding"], Machine("cpu", (), None, 2)
    assert binding.why_not(cpu, "cores", {}) is None
    assert "one thread" in (binding.why_not(replace(cpu, num_threads=1), "cores", {}) or "")
    assert "GPU" in (binding.why_not(replace(cpu, device_type="cuda"), "cores", {}) or "")
