"""Settings for debugging are off in a running script that left them on, and nothing else of it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.child import TOGGLED, TOGGLES_FILE
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.toggling import ToggleSchedule

TRAIN = """
import json, os, torch
torch.manual_seed(0)
SETUP
model = torch.nn.Sequential(torch.nn.EmbeddingBag(50, 8, mode="sum"), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randint(50, (16, 5)), torch.randn(16, 4)
losses, filled = [], []
for step in range(4):
    filled.append(torch.utils.deterministic.fill_uninitialized_memory)
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
deterministic = [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic]
level = torch.distributed.get_debug_level().name
blocking = os.environ.get("CUDA_LAUNCH_BLOCKING")
print(json.dumps([losses, filled, deterministic, level, blocking]))
"""
ASKS = "torch.use_deterministic_algorithms(True)"


def test_memory_is_not_filled_and_algorithms_stay_deterministic(run_foreign: Any) -> None:
    text = TRAIN.replace("SETUP", ASKS)
    plain = run_foreign(text).printed
    ran = run_foreign(text, {"uninitialized_fill": False})
    assert ran.printed[0] == plain[0]
    assert (plain[1], ran.printed[1]) == ([True] * 4, [False] * 4)
    assert ran.printed[2] == plain[2] == [True, False]
    assert ran.applied == ["memory just allocated"]


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ("", "the script asks for no deterministic algorithms"),
        (
            f"{ASKS}\ntorch.utils.deterministic.fill_uninitialized_memory = True",
            "the script sets fill_uninitialized_memory",
        ),
    ],
)
def test_script_that_fills_by_choice_or_not_at_all_is_left_alone(
    run_foreign: Any, setup: str, why: str
) -> None:
    ran = run_foreign(TRAIN.replace("SETUP", setup), {"uninitialized_fill": False})
    assert (ran.applied, ran.refused) == ([], [why])


def test_filling_is_toggled(run_foreign: Any, tmp_path: Path) -> None:
    schedule = ToggleSchedule(("uninitialized_fill",), 3, 5, "seed")
    text = TRAIN.replace("SETUP", ASKS).replace("range(4)", "range(43)")
    environment = {TOGGLED: schedule.to_json()}
    ran = run_foreign(text, {"uninitialized_fill": False}, environment=environment)
    turns = json.loads((tmp_path / TOGGLES_FILE).read_text())
    assert turns["turned"] == ["uninitialized_fill"]
    assert ran.printed[1] == [not schedule.is_on(step) for step in range(43)]


@pytest.mark.parametrize(
    "setup",
    [
        ASKS,
        "torch.use_deterministic_algorithms(mode=True, warn_only=True)",
        "torch.set_deterministic_debug_mode(debug_mode='warn')",
    ],
)
def test_what_if_without_deterministic_algorithms(run_foreign: Any, setup: str) -> None:
    text = TRAIN.replace("SETUP", f"{setup}\ntorch.backends.cudnn.deterministic = True")
    assert run_foreign(text).printed[2] == [True, True]
    ran = run_foreign(text, {"determinism": False})
    assert ran.printed[2] == [False, False]
    assert len(ran.applied) == 2
    assert CATALOGUE["determinism"].what_if


def test_variables_are_left_out(run_foreign: Any, without_compiler: None) -> None:
    variables = {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    text = TRAIN.replace("SETUP", "")
    assert run_foreign(text, environment=variables).printed[3:] == ["DETAIL", "1"]
    ran = run_foreign(text, {"debug_environment": False}, environment=variables)
    assert ran.printed[3:] == ["OFF", None]
    assert ran.applied == list(variables)


def test_variable_that_the_script_sets_stays(run_foreign: Any) -> None:
    text = TRAIN.replace("SETUP", "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'")
    ran = run_foreign(text, {"debug_environment": False})
    assert ran.printed[4] == "1"
    assert ran.refused == ["the script sets CUDA_LAUNCH_BLOCKING after it imported torch"]
