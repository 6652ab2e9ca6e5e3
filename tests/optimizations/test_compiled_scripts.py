"""A script that compiles its model keeps its graphs, whatever is put into its process."""

from __future__ import annotations

from typing import Any

import pytest

TRAIN = """
import gc; gc.unfreeze()  # what the process that held torch had frozen
import json, torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 4)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).flatten(1))

model = Net()
MADE
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(4, 3, 8, 8), torch.randn(4, 4)
losses = []
for step in range(6):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print("step", step)
from torch._dynamo.utils import counters
graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
print(json.dumps([losses, graphs, breaks]))
"""
OTHERS = {
    "gc_schedule": 2,
    "threads": 2,
    "fewer_logs": 2,
    "cudnn_benchmark": True,
    "sdpa_backend": "cudnn",
    "deferred_reads": True,
    "checkpointing": True,
    "attention": "sdpa",
    "fused_optimizer": True,
}
ONE_GRAPH = 'model = torch.compile(model, backend="aot_eager", fullgraph=True)'


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("fixes", "applied"),
    [
        (OTHERS, {"gc_schedule", "threads", "fewer_logs", "fused_optimizer"}),
        ({"channels_last": True}, {"channels_last"}),
        ({"precision": "bf16"}, {"precision"}),
        ({"precision": "fp16"}, {"precision"}),
    ],
)
def test_compiled_model_has_one_whole_graph(
    run_foreign: Any, fixes: dict[str, Any], applied: set[str]
) -> None:
    one = {"OMP_NUM_THREADS": "1"}
    text = TRAIN.replace("MADE", ONE_GRAPH)
    ran = run_foreign(text, fixes, environment=one)
    losses, graphs, breaks = ran.printed
    plain, plain_graphs, _ = run_foreign(text, environment=one).printed
    assert (graphs, breaks) == (1, 0) == (plain_graphs, 0)
    assert losses == pytest.approx(plain, rel=2e-2 if "precision" in fixes else 1e-4, abs=1e-4)
    assert {name for name, was_applied, _ in ran.said if was_applied} == applied


WITHOUT_KERNELS = """
import torch._inductor.compile_fx
from torch._dynamo.backends.debugging import aot_eager
torch._inductor.compile_fx.compile_fx = lambda graph, inputs, **_: aot_eager(graph, inputs)
"""
"""Kernels are made in `test_live.py`."""


def test_precision_and_compile_together_compile(run_foreign: Any) -> None:
    _, graphs, breaks = run_foreign(
        TRAIN.replace("MADE", WITHOUT_KERNELS), {"precision": "bf16", "compile": True}
    ).printed
    assert (graphs, breaks) == (1, 0)
