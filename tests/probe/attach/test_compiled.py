from __future__ import annotations

from typing import Any

from hotloop.probe.attach.step_profiler import FIRST_STEP, STEPS

GRAPHS = """
from torch._dynamo.utils import counters
def graphs(what):
    found = [counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]
    torch._dynamo.reset(); counters.clear()
    return found
found = {}
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.inner = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.inner[1].register_forward_hook(lambda module, args, out: out * 2)
    def forward(self, x):
        for layer in self.inner: x = layer(x)
        return x.float() * self.weight.to(x.dtype)
for full in (True, False):
    model = torch.compile(Norm(), backend="eager", fullgraph=full)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        (model(torch.ones(4, 8)) - 1).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    found[f"fullgraph={full}"] = graphs("model")
model, optimizer = build()
model.compile(backend="eager")
train(model, optimizer, 3)
found["in place"] = graphs("in place")
model, optimizer = build()
@torch.compile(backend="eager")
def step():
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
for _ in range(3): step()
found["whole step"] = graphs("whole step")
@torch.compile(backend="eager")
def through_autograd():
    torch.autograd.backward(loss_of(model))
    print("inside")
    optimizer.step()
for _ in range(3): through_autograd()
found["autograd and print"] = graphs("autograd")
def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
block = torch.compile(model[0], backend="eager")
for _ in range(3): checkpointed(torch.ones(4, 8)).sum().backward()
found["checkpointed block"] = graphs("checkpointed")
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 8)), batch_size=4)
@torch.compile(backend="eager")
def epoch():
    for (x,) in loader: model(x).sum().backward()
for _ in range(2): epoch()
found["loader inside"] = graphs("loader")
print(json.dumps(found))
"""


def test_compiled_programs_have_the_graphs_that_they_have_without_the_probe(run) -> None:  # type: ignore[no-untyped-def]
    watched: dict[str, Any] = run(GRAPHS).last
    plain: dict[str, Any] = run(GRAPHS, watched=False).last
    assert {name: found[0] for name, found in watched.items()} == {
        name: found[0] for name, found in plain.items()
    }
    # Inside a compiled step the hook before an update stands for two breaks of torch's own.
    assert all(watched[name][1] <= plain[name][1] for name in plain)
    assert watched["fullgraph=True"] == [1, 0]


def test_steps_that_compile_are_told_from_those_that_compile_again(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
scale = [1.0]
@torch.compile(backend="eager")
def loss_at(x, flag):
    return model(x).square().mean() * (2 if flag == 1 else flag)
for step in range(40):
    loss_at(torch.ones(4, 8), "x" * 0 if False else (step // 20 + 1)).backward()
    optimizer.step()
print(json.dumps(torch._dynamo.utils.counters["stats"]["unique_graphs"]))
""")
    compiled = [record.step for record in ended.steps if "compile" in record.tags]
    again = [record.step for record in ended.steps if "recompile" in record.tags]
    assert compiled == [0]
    assert again == [20]
    census = ended.census
    assert census.compiled
    assert census.num_graphs == ended.last
    assert census.num_recompiles == 1
    assert census.compile_s is not None
    assert census.compile_s > 0
    assert "flag" in census.recompile_reasons[0]


def test_profiled_window_compiles_nothing_anew(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x): return self.inner(x)
train(torch.compile(Own(), backend="eager", fullgraph=True), optimizer, 60)
""")
    assert ended.census.num_graphs == 1
    assert ended.census.num_recompiles == 0
    profiled = [r.step for r in ended.steps if "profiled" in r.tags]
    assert profiled == list(range(FIRST_STEP, FIRST_STEP + STEPS))
    names = {operator.name for operator in ended.census.operators}
    assert "aten::addmm" in names
    assert ended.census.matmul_dtypes == ("float32",)
