"""Anomaly detection that a script left on stays off, and nothing else of the script changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.census import Census, OperatorUse
from hotloop.core.child import TOGGLED, TOGGLES_FILE
from hotloop.optimizations.anomaly_mode import ANOMALY_MODE
from hotloop.trial.toggling import ToggleSchedule

TRAIN = """
import json, torch
torch.manual_seed(0)
SETUP
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 8), torch.randn(16, 4)
losses, modes = [], []
for step in range(4):
    WITH
        modes.append(torch.is_anomaly_enabled())
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(json.dumps({"losses": losses, "modes": modes, "after": torch.is_anomaly_enabled()}))
"""


@pytest.mark.parametrize(
    ("setup", "block", "said"),
    [
        ("torch.autograd.set_detect_anomaly(True)", "if True:", ["set_detect_anomaly"]),
        ("torch.autograd.set_detect_anomaly(mode=True)", "if True:", ["set_detect_anomaly"]),
        ("", "with torch.autograd.set_detect_anomaly(True, False):", ["set_detect_anomaly"]),
        ("", "with torch.autograd.detect_anomaly():", ["detect_anomaly"]),
    ],
)
def test_it_stays_off_wherever_it_is_turned_on(
    run_foreign: Any, setup: str, block: str, said: list[str]
) -> None:
    text = TRAIN.replace("SETUP", setup).replace("WITH", block)
    plain = run_foreign(text).printed
    ran = run_foreign(text, {"anomaly_mode": False})
    assert plain["modes"] == [True] * 4
    assert ran.printed["modes"] == [False] * 4
    assert ran.printed["losses"] == plain["losses"]
    assert not ran.printed["after"]
    assert ran.applied == said


@pytest.mark.parametrize(
    ("setup", "block", "can"),
    [
        ("torch.autograd.set_detect_anomaly(True)", "if True:", ["anomaly_mode"]),
        ("", "with torch.autograd.set_detect_anomaly(True):", []),
        ("torch.autograd.set_detect_anomaly(True)", "with torch.autograd.detect_anomaly():", []),
    ],
)
def test_it_is_toggled_where_it_was_turned_on_for_good(
    run_foreign: Any, tmp_path: Path, setup: str, block: str, can: list[str]
) -> None:
    schedule = ToggleSchedule(("anomaly_mode",), 3, 5, "seed")
    text = TRAIN.replace("SETUP", setup).replace("WITH", block).replace("range(4)", "range(43)")
    ran = run_foreign(text, {"anomaly_mode": False}, environment={TOGGLED: schedule.to_json()})
    turns = json.loads((tmp_path / TOGGLES_FILE).read_text())
    assert (turns["can"], turns["turned"]) == (can, can)
    if can:
        assert ran.printed["modes"] == [not schedule.is_on(step) for step in range(43)]
        assert len(set(ran.printed["modes"])) == 2


def test_script_that_never_turns_it_on_is_told_nothing(run_foreign: Any) -> None:
    text = TRAIN.replace("SETUP", "torch.autograd.set_detect_anomaly(False)")
    ran = run_foreign(text.replace("WITH", "if True:"), {"anomaly_mode": False})
    assert ran.said == []


def test_census_tells_whether_gradients_were_searched() -> None:
    check = OperatorUse("aten::_is_any_true", "bool", num=9, self_s=1e-4)
    census = Census(seen=("operators",), operators=(check,))
    assert ANOMALY_MODE.observed(census, False) is False
    assert ANOMALY_MODE.observed(replace(census, operators=()), False) is True
    assert ANOMALY_MODE.observed(Census(), False) is None
