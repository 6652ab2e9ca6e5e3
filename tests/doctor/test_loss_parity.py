"""Real runs of small scripts that amplify rounding, judged by their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.doctor.compared_arms import ROUNDED_OTHERWISE
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparison, LossComparisons
from hotloop.doctor.trial_costs import Costs
from hotloop.doctor.trial_runner import BASELINE, TrialRunner
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan

pytestmark = pytest.mark.usefixtures("without_compiler", "forked_losses")

BATCH_NORM = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
    nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
)
kinds = torch.randint(10, (512,))
pictures = torch.randn(512, 3, 8, 8) + torch.randn(10, 3, 8, 8)[kinds]
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
for step in range(60):
    rows = torch.randint(512, (32,))
    loss = F.cross_entropy(model(pictures[rows]), kinds[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
STILL = BATCH_NORM.replace("LR", "0.0").replace("weight_decay=5e-4", "weight_decay=0.0")

Learns = Callable[..., LossComparison]


@pytest.fixture
def learns(tmp_path: Path) -> Learns:
    def run(script: str, name: str) -> LossComparison:
        work = tmp_path / "work"
        work.mkdir()
        (work / "train.py").write_text(script)
        runner = TrialRunner(
            Arm(BASELINE, (sys.executable, "train.py"), "step_clock", workdir=work),
            TrialPlan(5, 20, timeout_s=120.0),
            Costs(3.0, 0.01),
            tmp_path / "run",
            loss_steps=60,
            num_steps=60,
        )
        fix = Fix(CATALOGUE[name], True, (), None)
        return LossComparisons(runner, [fix]).of(name, [fix])

    return run


def test_script_that_amplifies_rounding_is_held_against_its_own(
    learns: Learns, tmp_path: Path
) -> None:
    comparison = learns(BATCH_NORM.replace("LR", "0.5"), "channels_last")
    assert comparison.parity.result == "within_noise", comparison.parity.reason
    assert "as rounding alone moves them in this script" in comparison.parity.reason
    assert (tmp_path / "run" / "trials" / ROUNDED_OTHERWISE).is_dir()


def test_script_whose_weights_stand_still_proves_nothing(learns: Learns) -> None:
    comparison = learns(STILL, "fused_optimizer")
    assert comparison.parity.result == "not_checked"
    assert "leave the weights as they are" in comparison.parity.reason
