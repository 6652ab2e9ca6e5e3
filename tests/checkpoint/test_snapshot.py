"""What a save beside the steps copies."""

from __future__ import annotations

import torch
from torch import nn

from hotloop.checkpoint.state import capture


def test_a_copy_takes_the_memory_of_the_one_before_and_later_steps_leave_it_alone() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    step()
    first, _ = capture(model, optimizer, None)
    places = {(file, name): each.data_ptr() for file, group in first.items() for name, each in group.items()}  # fmt: skip
    step()
    second, _ = capture(model, optimizer, None, into=first)
    for file in ("model", "optimizer"):
        for name, each in second[file].items():
            assert each.data_ptr() == places[file, name]
    expected = {name: each.detach().clone() for name, each in model.named_parameters()}
    step()
    assert all(torch.equal(second["model"][name], each) for name, each in expected.items())
    assert torch.equal(second["optimizer"]["weight/step"], torch.tensor(2.0))
    other = nn.Linear(4, 5)  # of another shape: memory of its own
    third, _ = capture(other, torch.optim.SGD(other.parameters()), None, into=second)
    assert third["model"]["weight"].shape == (5, 4)
