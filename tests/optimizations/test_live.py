"""Techniques in somebody else's process: applied where they can be, refused in words where not."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.child import TOGGLED, TOGGLES_FILE
from hotloop.trial.toggling import ToggleSchedule

MODEL = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
x, y = torch.randn(8, 16), torch.randn(8, 4)
"""


def run(
    run_foreign: Any, script: str, fixes: dict[str, Any], *, fresh: bool = False
) -> tuple[Any, list[dict[str, Any]]]:
    """What the script prints last, and what became of the fixes; `fresh` where the frames below the script are looked at."""
    ran = run_foreign(MODEL + script, fixes, fresh=fresh)
    return ran.printed, ran.lines


def said(lines: list[dict[str, Any]]) -> list[tuple[bool, str]]:
    return [(line["applied"], line["what"]) for line in lines]


TRAIN = """
optimizer = {made}
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, [bool(group.get("fused")) for group in optimizer.param_groups]]))
"""


@pytest.mark.parametrize(
    "made",
    [
        "torch.optim.AdamW(model.parameters(), lr=1e-2)",
        "torch.optim.AdamW(iter([{'params': p} for p in model.parameters()]), 1e-2, (0.8, 0.9))",
        "torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)",
        "type('Mine', (torch.optim.Adam,), {})(model.parameters(), lr=1e-2)",
    ],
)
def test_optimizer_is_fused_and_learns_the_same(run_foreign: Any, made: str) -> None:
    script = TRAIN.format(made=made)
    (plain, before), _ = run(run_foreign, script, {})
    (losses, fused), lines = run(run_foreign, script, {"fused_optimizer": True})
    assert not any(before)
    assert all(fused)
    assert losses == pytest.approx(plain, rel=1e-5)
    assert [applied for applied, _ in said(lines)] == [True]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("torch.optim.AdamW(model.parameters(), foreach=True)", "the script chose"),
        ("torch.optim.AdamW(model.parameters(), fused=False)", "the script chose"),
        ("torch.optim.AdamW(model.parameters(), differentiable=True)", "differentiable"),
    ],
)
def test_optimizer_that_the_script_chose_stays(run_foreign: Any, made: str, why: str) -> None:
    script = (
        f"optimizer = {made}\nprint(json.dumps([bool(g['fused']) for g in optimizer.param_groups]))"
    )
    fused, lines = run(run_foreign, script, {"fused_optimizer": True})
    assert fused == [False]
    ((applied, what),) = said(lines)
    assert not applied
    assert why in what


STRIDES = """
weight = torch.nn.Parameter(torch.randn(3, 5))
column = torch.nn.Parameter(torch.randn(5, 1))
optimizer = torch.optim.AdamW([weight, column], lr=0.1)
for number in range(6):
    weight.grad = torch.randn(5, 3).t() if number == 3 else torch.randn(3, 5)
    column.grad = torch.randn(5, 1).as_strided((5, 1), (1, 3))  # of one column: nothing lies otherwise
    optimizer.step()
print(json.dumps([weight.tolist(), column.tolist(), [group["fused"] for group in optimizer.param_groups]]))
"""


def test_fused_update_ends_before_a_gradient_that_lies_otherwise(run_foreign: Any) -> None:
    (weight, column, fused), lines = run(run_foreign, STRIDES, {"fused_optimizer": True})
    (weight_before, column_before, _), _ = run(run_foreign, STRIDES, {})
    assert [*chain(*weight)] == pytest.approx([*chain(*weight_before)], rel=1e-5)
    assert [*chain(*column)] == pytest.approx([*chain(*column_before)], rel=1e-5)
    assert fused == [None]
    applied, wrong = lines
    assert applied["applied"]
    assert wrong["wrong"]
    assert "the gradient of a weight of shape (3, 5) lies otherwise in memory" in wrong["what"]


def test_optimizer_that_cannot_be_fused_is_made_as_it_was(run_foreign: Any) -> None:
    script = """
weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
optimizer = torch.optim.SGD([weight], lr=0.1)
print(json.dumps([bool(group["fused"]) for group in optimizer.param_groups]))
"""
    fused, lines = run(run_foreign, script, {"fused_optimizer": True})
    assert fused == [False]
    ((applied, what, *_),) = said(lines)
    assert not applied
    assert "SGD: not all weights are of floating point" in what
    script = """
class Mine(torch.optim.SGD):
    def step(self, closure=None):
        pass
class Named(torch.optim.SGD):
    pass
found = [each(model.parameters(), lr=0.1) for each in (Mine, Named, Named)]
print(json.dumps([bool(each.param_groups[0]["fused"]) for each in found]))
"""
    fused, lines = run(run_foreign, script, {"fused_optimizer": True})
    assert fused == [False, True, True]
    assert any("Mine: it has a `step` of its own" in line["what"] for line in lines)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_weights_that_are_trained_later_are_updated_as_before(
    run_foreign: Any, momentum: float
) -> None:
    script = f"""
torch.manual_seed(0)
weights = [torch.nn.Parameter(torch.randn(3)) for _ in range(2)]
optimizer = torch.optim.SGD(weights, lr=0.1, momentum={momentum})
for number in range(12):
    for weight in weights[: 2 if number > 9 else 1]:
        weight.grad = torch.randn(3)
    optimizer.step()
print(json.dumps([[weight.tolist() for weight in weights], optimizer.param_groups[0]["fused"]]))
"""
    (before, _), _ = run(run_foreign, script, {})
    (after, fused), lines = run(run_foreign, script, {"fused_optimizer": True})
    assert [*chain(*after)] == pytest.approx([*chain(*before)], rel=1e-5)
    assert fused == (None if momentum else True)
    assert any(line.get("wrong") for line in lines) == bool(momentum)


def test_sparse_gradients_are_left_to_the_update_that_takes_them(run_foreign: Any) -> None:
    script = """
table = torch.nn.Embedding(10, 4, sparse=True)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
table(torch.tensor([1, 2])).sum().backward()
optimizer.step()
print(json.dumps(optimizer.param_groups[0]["fused"]))
"""
    fused, lines = run(run_foreign, script, {"fused_optimizer": True})
    assert fused is None
    assert "is sparse, which torch's fused update does not take" in lines[-1]["what"]


def test_model_runs_in_bf16_and_its_loss_in_fp32(run_foreign: Any) -> None:
    script = """
given = model(x)
with torch.no_grad():
    evaluated = model(x)
loss = torch.nn.MSELoss()(given, y)
loss.backward()
exact = evaluated.sub(given).abs().max().item()
print(json.dumps([str(given.dtype), str(loss.dtype), exact]))
"""
    (dtype, loss, difference), lines = run(run_foreign, script, {"precision": "bf16"})
    assert (dtype, loss) == ("torch.float32", "torch.float32")
    assert 0 < difference < 0.05
    assert said(lines) == [(True, "Sequential")]
    (_, _, without), _ = run(run_foreign, script, {})
    assert without == 0


@pytest.mark.parametrize(("value", "short"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_short_type_is_toggled(run_foreign: Any, tmp_path: Path, value: str, short: str) -> None:
    schedule = ToggleSchedule(("precision",), 3, 5, "seed")
    script = (
        MODEL
        + """
class Said(torch.nn.Linear):
    def forward(self, x):
        made = super().forward(x)
        kinds.append(str(made.dtype))
        return made
kinds = []
model.append(Said(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(43):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(json.dumps(kinds))
"""
    )
    environment = {TOGGLED: schedule.to_json()}
    ran = run_foreign(script, {"precision": value}, environment=environment)
    assert not ran.refused
    kinds = {True: f"torch.{short}", False: "torch.float32"}
    assert ran.printed == [kinds[schedule.is_on(step)] for step in range(43)]
    turns = json.loads((tmp_path / TOGGLES_FILE).read_text())
    assert (turns["can"], turns["turned"]) == (["precision"], ["precision"])


@pytest.mark.parametrize(
    ("ending", "named"),
    [
        ("torch.nn.Sigmoid()", "sigmoid"),
        ("torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.Flatten(0))", "sigmoid"),
        ("torch.nn.Softmax(1)", "softmax"),
        ("torch.nn.LogSoftmax(1)", "log_softmax"),
    ],
)
def test_model_that_ends_in_probabilities_is_left_in_float32(
    run_foreign: Any, ending: str, named: str
) -> None:
    # In bf16 a probability above 0.998 is 1, and the loss outside of the model has no gradient for it.
    script = f"""
model = torch.nn.Sequential(model, {ending})
model(x)
given = model(x)
with torch.no_grad():
    print(json.dumps(model(x).sub(given).abs().max().item()))
"""
    difference, lines = run(run_foreign, script, {"precision": "bf16"})
    assert difference == 0
    ((applied, what),) = {*said(lines)}  # at each place of a call
    assert not applied
    assert f"ends in {named} in bf16" in what


def test_probabilities_inside_of_a_model_are_no_reason_against_bf16(run_foreign: Any) -> None:
    script = """
model = torch.nn.Sequential(model, torch.nn.Sigmoid(), torch.nn.Linear(4, 1))
print(json.dumps(str(model(x).dtype)))
"""
    _, lines = run(run_foreign, script, {"precision": "bf16"})
    assert said(lines) == [(True, "Sequential")]


def test_script_that_autocasts_is_left_alone(run_foreign: Any) -> None:
    script = """
with torch.autocast("cpu", torch.bfloat16):
    given = model(x)
print(json.dumps(str(given.dtype)))
"""
    dtype, lines = run(run_foreign, script, {"precision": "bf16"})
    assert dtype == "torch.bfloat16"
    assert said(lines) == [(False, "Sequential: the script autocasts it")]


def test_autocast_to_fp32_is_none(run_foreign: Any) -> None:
    """On a GPU torch takes fp32 for a type to cast to; on a CPU it has to be set by hand."""
    script = """
torch.set_autocast_enabled("cpu", True)
torch.set_autocast_dtype("cpu", torch.float32)
print(json.dumps(str(model(x).dtype)))
"""
    dtype, lines = run(run_foreign, script, {"precision": "bf16"})
    assert dtype == "torch.float32"
    assert said(lines) == [(True, "Sequential")]


def test_model_is_compiled_once_and_learns_the_same(run_foreign: Any) -> None:
    count = """
from torch._dynamo.utils import counters
print(json.dumps([losses, counters["stats"]["unique_graphs"], list(model.state_dict())]))
"""
    script = TRAIN.format(made="torch.optim.SGD(model.parameters(), lr=1e-2)") + count
    (plain, none, names), _ = run(run_foreign, script, {})
    (losses, graphs, compiled_names), lines = run(run_foreign, script, {"compile": True})
    assert none == 0
    assert graphs == 1
    assert compiled_names == names
    assert losses == pytest.approx(plain, rel=1e-5)
    assert said(lines) == [(True, "Sequential")]


def test_technique_without_a_live_form_is_said(run_foreign: Any) -> None:
    _, lines = run(run_foreign, "print(json.dumps(1))", {"clipping": "fused", "no such": 1})
    assert all(not applied for applied, _ in said(lines))
    assert len(lines) == 2


@pytest.mark.usefixtures("without_compiler")
def test_every_place_where_it_took_effect_is_written_down(run_foreign: Any, tmp_path: Path) -> None:
    script = """
def step(model):
    return model(x).sum() + model(x).mean()
for _ in range(50):
    step(model).backward()
first = (lambda: model(x))()
print(json.dumps(0))
"""
    _, lines = run(run_foreign, script, {"precision": "bf16"}, fresh=True)
    source = (tmp_path / "script.py").read_text()
    assert {line["what"] for line in lines} == {"Sequential"}
    found = set()
    for line in lines:
        innermost, *outer = line["site"]["frames"]
        first, column, last, end = innermost["span"]
        assert first == last == innermost["line"]
        text = source.split("\n")[first - 1]
        assert text[column:end] == "model(x)"
        assert innermost["direct"]
        assert innermost["file"].endswith("script.py")
        assert innermost["sha256"] == hashlib.sha256(source.encode()).hexdigest()
        assert [each["function"] for each in outer] == ["<module>"]
        assert line["facts"] == {"device_type": "cpu", "made": "tensor"}
        found.add((innermost["function"], first, column))
    assert [name for name, _, _ in sorted(found)] == ["<lambda>", "step", "step"]


@pytest.mark.usefixtures("without_compiler")
def test_optimizer_of_a_library_is_not_taken_for_the_users_own_call(
    run_foreign: Any, tmp_path: Path
) -> None:
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("import torch\ndef make(ps):\n    return torch.optim.SGD(ps)\n")
    script = f"""
import sys; sys.path.insert(0, {str(library.parent)!r})
import library
made = library.make(model.parameters())
print(json.dumps(0))
"""
    _, (line,) = run(run_foreign, script, {"fused_optimizer": True}, fresh=True)
    (frame,) = line["site"]["frames"]
    assert not frame["direct"]
    assert line["site"]["inside"] == "library.make"


def test_what_the_step_clock_makes_for_itself_is_no_optimizer_of_the_script(
    run_foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_STEP_CLOCK", str(tmp_path))
    script = TRAIN.format(made="torch.optim.AdamW(model.parameters())")
    _, lines = run(run_foreign, script, {"fused_optimizer": True})
    assert said(lines) == [(True, "AdamW")]
