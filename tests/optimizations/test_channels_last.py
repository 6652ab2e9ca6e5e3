"""Convolutions with the channels last: the same training, or refused with the script as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotloop.core.child import TOGGLED
from hotloop.trial.toggling import ToggleSchedule

pytestmark = pytest.mark.slow

TRAIN = """
import json, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.1),
                                  nn.Conv2d(8, 8, 3, groups=GROUPS))
        self.head = nn.Linear(8 * 8 * 8, 4)

    def forward(self, x):
        RETURN

def last():
    return [bool(each.weight.is_contiguous(memory_format=torch.channels_last))
            for each in model.modules() if isinstance(each, nn.Conv2d)]

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-3, fused=True)
SETUP
x, y = torch.randn(4, 3, 12, 12), torch.randn(4, 4)
losses = []
for step in range(4):
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    model.eval()
    losses.append(float(LOSS))
print(json.dumps({"losses": losses, "last": last(), "names": list(model.state_dict()),
                  "seen": seen if "seen" in globals() else None}))
"""


def script(
    *,
    given: str = "return self.head(self.body(x).flatten(1))",
    groups: int = 1,
    setup: str = "",
    loss: str = "((model(x) - y) ** 2).mean()",
) -> str:
    text = TRAIN.replace("RETURN", given).replace("GROUPS", str(groups))
    return text.replace("SETUP", setup).replace("LOSS", loss)


def test_weights_are_stored_so_and_the_losses_stay(run_foreign: Any) -> None:
    plain = run_foreign(script()).printed
    ran = run_foreign(script(), {"channels_last": True})
    assert plain["last"] == [False, False]
    assert ran.printed["last"] == [True, True]
    assert ran.printed["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert ran.printed["names"] == plain["names"]
    assert ran.said == [("channels_last", True, "2 convolutions of Net")]


def test_weights_go_back_and_forth_between_steps(run_foreign: Any, tmp_path: Path) -> None:
    schedule = ToggleSchedule(("channels_last",), 3, 5, "seed")
    text = script(setup="seen = []").replace("range(4)", "range(43)")
    text = text.replace("    loss.backward()", "    seen.append(last()); loss.backward()")
    plain = run_foreign(text).printed
    environment = {TOGGLED: schedule.to_json()}
    ran = run_foreign(text, {"channels_last": True}, environment=environment)
    assert ran.printed["seen"] == [[schedule.is_on(step)] * 2 for step in range(43)]
    assert ran.printed["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert ran.refused == []


def test_images_that_the_model_gives_have_the_order_that_the_script_expects(
    run_foreign: Any,
) -> None:
    text = script(given="return self.body(x)", loss="model(x).view(-1).pow(2).mean()")
    plain, ran = run_foreign(text), run_foreign(text, {"channels_last": True})
    assert ran.applied == ["2 convolutions of Net"]
    assert ran.printed["losses"] == pytest.approx(plain.printed["losses"], rel=1e-4)


def test_model_that_asks_for_the_order_in_memory_is_left_as_it_was(run_foreign: Any) -> None:
    """Its first forward fails halfway: running statistics and random numbers are put back."""
    text = script(given="x = self.body(x); return self.head(x.view(len(x), -1))")
    plain, ran = run_foreign(text), run_foreign(text, {"channels_last": True})
    assert ran.printed == plain.printed
    assert ran.applied == []
    assert "Net does not run so: view size is not compatible" in ran.refused[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"given": "return self.head(F.dropout(self.body(x), 0.1).flatten(1))"}, "draws random"),
        ({"groups": 2}, "grouped convolutions"),
        ({"setup": "model.to(memory_format=torch.channels_last)"}, "the script stores them so"),
        (
            {"setup": "torch.nn.utils.parametrizations.weight_norm(model.body[0])"},
            "computed from others",
        ),
        ({"setup": "model.body = nn.Flatten(); model.head = nn.Linear(432, 4)"}, "no convolutions"),
    ],
)
def test_model_that_must_stay_is_refused(
    run_foreign: Any, changes: dict[str, Any], why: str
) -> None:
    text = script(**changes)
    plain, ran = run_foreign(text), run_foreign(text, {"channels_last": True})
    assert ran.printed == plain.printed
    assert ran.applied == []
    assert why in ran.refused[0]


def test_weights_in_one_block_are_refused(run_foreign: Any) -> None:
    setup = """
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
at = 0
for p in model.parameters():
    p.data = flat[at : at + p.numel()].view_as(p); at += p.numel()
"""
    ran = run_foreign(script(setup=setup), {"channels_last": True})
    assert "share one block" in ran.refused[0]
    assert ran.printed["last"] == [False, False]


def test_moments_of_a_resumed_optimizer_are_stored_alike(run_foreign: Any) -> None:
    """A fused update reads weights and moments side by side: in two orders it would mix them up."""
    setup = """
state = {p: {"step": torch.tensor(5.0), "exp_avg": torch.randn_like(p) / 10, "exp_avg_sq": torch.rand_like(p)}
         for p in model.parameters()}
optimizer.state.update(state)
"""
    plain = run_foreign(script(setup=setup))
    ran = run_foreign(script(setup=setup), {"channels_last": True})
    assert ran.applied == ["2 convolutions of Net"]
    assert ran.printed["losses"] == pytest.approx(plain.printed["losses"], rel=1e-4)
