from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotloop.core.child import ROUNDING_NOISE
from hotloop.trial.rounding_noise import RoundingNoise

SCRIPT = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    loss = (model(torch.ones(4, 64)) - 3).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, torch.rand(()).item()]))
"""


def test_noise_is_in_the_first_loss_and_draws_nothing_from_the_script(
    run_foreign: Callable[..., Any],
) -> None:
    (plain, draw) = run_foreign(SCRIPT).printed
    environment = {ROUNDING_NOISE: "1e-05:1"}
    (noisy, other_draw) = run_foreign(SCRIPT, environment=environment).printed
    assert draw == other_draw
    assert noisy[0] != plain[0]
    assert noisy == pytest.approx(plain, rel=1e-3)
    assert run_foreign(SCRIPT, environment={ROUNDING_NOISE: "1e-05:2"}).printed[0] != noisy


def test_each_weight_carries_it_once_and_each_gradient_every_time() -> None:
    weight = torch.nn.Parameter(torch.ones(10_000))
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    noise = RoundingNoise(1e-3, 1)
    noise.start([weight, frozen])
    carried = weight.detach().clone()
    assert (carried - 1).std().item() == pytest.approx(1e-3, rel=0.1)
    assert frozen.tolist() == [1, 1, 1]
    optimizer = torch.optim.SGD([weight, frozen], lr=0.0)
    weight.grad = torch.cat([torch.zeros(5_000), torch.ones(5_000)])
    noise.before(optimizer)
    assert torch.equal(weight, carried)
    assert not weight.grad[
        :5_000
    ].any()  # what was not reached stays so: Adam would make a step of it
    assert (weight.grad[5_000:] - 1).std().item() == pytest.approx(1e-3, rel=0.1)
