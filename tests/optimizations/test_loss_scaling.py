"""fp16 in a running script: what cannot be seen to be right is reported as wrong. Its mathematics: tests/doctor/patch."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x, y = torch.randn(8, 16), torch.randn(8, 4)
made = lambda: (model(x) - y).square().mean()
for step in range(2):
    optimizer.zero_grad()
BODY
print(json.dumps([str(model(x).dtype), "grad" in vars(torch.Tensor)]))
"""

SIMPLE = "made().backward(); optimizer.step()"


def ran(run_foreign: Any, *lines: str, before: str = "") -> Any:
    body = "\n".join(f"    {line}" for line in lines)
    return run_foreign(
        SCRIPT.replace("for step", f"{before}\nfor step").replace("BODY", body), FP16
    )


FP16 = {"precision": "fp16"}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            ["def again(): loss = made(); loss.backward(); return loss", "optimizer.step(again)"],
            "goes backward inside of optimizer.step",
        ),
        (["made().backward(create_graph=True)", "optimizer.step()"], "more than retain_graph"),
        (["made().backward(torch.tensor(1.0))", "optimizer.step()"], "more than retain_graph"),
        (["torch.autograd.grad(made(), list(model.parameters()))", SIMPLE], "autograd.grad"),
        (["torch.autograd.backward(made())", "optimizer.step()"], "autograd.backward"),
        (
            [
                "made().backward()",
                "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)",
                "made().backward()",
                "optimizer.step()",
            ],
            "between clipping",
        ),
        (
            ["scaler = torch.amp.GradScaler('cpu')", "scaler.scale(made()).backward()"],
            "a gradient scaler",
        ),
        (["model[0].weight.register_hook(lambda g: g.clamp(-1, 1))", SIMPLE], "a hook"),
    ],
)
def test_script_in_which_scaled_gradients_could_be_met_is_no_trial_of_fp16(
    run_foreign: Any, lines: list[str], why: str
) -> None:
    found = ran(run_foreign, *lines)
    (said,) = [each["what"] for each in found.lines if not each["applied"]]
    assert "cannot be scaled for fp16" in said
    assert why in said
    assert found.printed == ["torch.float32", False]
    assert any(each.get("wrong") for each in found.lines) or not found.applied


def test_gradients_that_the_script_reads_and_changes_are_unscaled(run_foreign: Any) -> None:
    body = [
        "made().backward()",
        "for each in model.parameters(): each.grad.data.clamp_(-0.01, 0.01)",
        "norms.append(sum(each.grad.norm().item() for each in model.parameters()))",
        "optimizer.step()",
    ]
    script = SCRIPT.replace("[str(model(x).dtype)", "[norms").replace("SGD", "Adam")
    script = script.replace("for step", "norms = []\nfor step")
    script = script.replace("BODY", "\n".join(f"    {line}" for line in body))
    found = run_foreign(script, FP16)
    assert not found.refused
    assert "read" in found.applied
    assert found.printed[0] == pytest.approx(run_foreign(script).printed[0], rel=1e-2)


def test_two_optimizers_are_no_trial_of_fp16(run_foreign: Any) -> None:
    before = "other = torch.optim.SGD(model[2].parameters(), lr=1e-2)"
    found = ran(run_foreign, SIMPLE, "made().backward()", "other.step()", before=before)
    assert "several optimizers" in found.refused[0]
    assert any(each.get("wrong") for each in found.lines)


def test_weights_that_are_not_float32_leave_a_model_as_it_is(run_foreign: Any) -> None:
    before = "model[0].double(); model[2].double(); x, y = x.double(), y.double()"
    found = ran(run_foreign, SIMPLE, before=before)
    assert {*found.said} == {  # at each place of a call
        (
            "precision",
            False,
            "Sequential: not all of its weights are float32, which a gradient scaler needs",
        )
    }
    assert found.printed == ["torch.float64", False]


@pytest.mark.parametrize(
    "made",
    [
        *("SGD(ps, momentum=0.9)", "Adam(ps)", "AdamW(ps, foreach=True)", "AdamW(ps, fused=True)"),
        *(
            "RMSprop(ps)",
            "Adagrad(ps)",
            "NAdam(ps)",
            "RAdam(ps)",
            "Adamax(ps)",
            "Adadelta(ps)",
            "ASGD(ps)",
        ),
    ],
)
def test_optimizer_of_torch_leaves_weights_without_gradients_and_their_state_alone(
    made: str,
) -> None:
    # That is how an update is left out: the step is still seen to end.
    import torch

    weights = torch.nn.Parameter(torch.randn(3))
    optimizer: Any = eval(f"torch.optim.{made}", {"torch": torch, "ps": [weights]})
    weights.grad = torch.ones(3)
    optimizer.step()
    before, state = weights.tolist(), repr(optimizer.state_dict())
    weights.grad = None
    optimizer.step()
    assert (weights.tolist(), repr(optimizer.state_dict())) == (before, state)
