"""Techniques for GPUs: on a CPU they say so and change nothing; what they decide by is tested here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.deferred_reads.live import StaleReads
from hotloop.optimizations.live_report import Report

CPU = Machine("cpu", ("float32",), None, 2)
GPU = Machine("cuda", ("bfloat16", "float32"), None, 8)
TRAIN = """
import json, torch
torch.manual_seed(0)
SETUP
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 8), torch.randn(16, 4)
losses = []
for step in range(3):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, torch.backends.cudnn.benchmark, torch._C._get_sdp_priority_order()]))
"""
SETTINGS = {"cudnn_benchmark": True, "sdpa_backend": "cudnn", "deferred_reads": True}


def test_on_a_cpu_each_says_why_not_and_changes_nothing(run_foreign: Any) -> None:
    text = TRAIN.replace("SETUP", "")
    ran = run_foreign(text, SETTINGS)
    assert ran.printed == run_foreign(text).printed
    assert {(name, what) for name, _, what in ran.said} == {
        ("cudnn_benchmark", "the model does not run on a CUDA device"),
        ("sdpa_backend", "Linear: on a CPU torch has one fused kernel"),
        ("deferred_reads", "on a CPU a value is there when it is read: nothing waits"),
    }
    assert ran.applied == []


def test_choice_of_cudnn_by_the_script_stays(run_foreign: Any) -> None:
    text = TRAIN.replace("SETUP", "torch.backends.cudnn.benchmark = False")
    ran = run_foreign(text, {"cudnn_benchmark": True})
    assert ran.printed[1] is False
    assert ran.refused == ["the script sets cudnn.benchmark = False at script.py:4"]


@pytest.mark.parametrize("name", SETTINGS)
def test_none_is_tried_on_a_cpu(name: str) -> None:
    technique = CATALOGUE[name]
    assert technique.why_not(CPU, SETTINGS[name], {}) is not None
    assert technique.why_not(GPU, SETTINGS[name], {}) is None


def test_stale_read_gives_what_was_there_before_and_torch_reads_the_truth(tmp_path: Any) -> None:
    """The same code as on a GPU; on a CPU every copy has arrived by the next read."""
    report = Report(tmp_path / "fixes.jsonl", "deferred_reads")
    reads = StaleReads(report)
    item = torch.Tensor.item

    def read(value: float) -> Any:
        return reads.around(item, torch.tensor(value))

    assert read(1.0) == 1.0  # nothing is stale before the first step
    reads.trains = True
    # The first read of a place is true; from then on each gives the one before it.
    assert [read(float(n)) for n in range(2, 7)] == [2.0, 2.0, 3.0, 4.0, 5.0]
    whole = torch.tensor(7)
    assert [reads.around(item, whole + n) for n in range(3)] == [7, 8, 9]
    assert len((tmp_path / "fixes.jsonl").read_text().splitlines()) == 1
