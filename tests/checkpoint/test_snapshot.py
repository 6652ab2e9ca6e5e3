"""What a save beside the steps copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hotloop.checkpoint.state import capture, restore
from hotloop.core.errors import UsageError


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


class Whole(nn.Module):
    """Its second layer never gets a gradient."""

    def __init__(self, *, stored_whole: bool) -> None:
        super().__init__()
        self.used, self.aux, self.stored_whole = nn.Linear(4, 3), nn.Linear(4, 3), stored_whole


def updated(*, stored_whole: bool = True) -> tuple[Whole, torch.optim.Optimizer]:
    model = Whole(stored_whole=stored_whole)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.used(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_weight_that_never_gets_a_gradient_has_no_optimizer_state_to_restore() -> None:
    model, optimizer = updated()
    tensors, state = capture(model, optimizer, None)
    assert not any(name.startswith("aux") for name in tensors["optimizer"])
    again, its = updated()
    again.aux(torch.ones(2, 4)).sum().backward()
    its.step()  # as a training that goes back to before such a weight was met
    restore(tensors, state, model=again, optimizer=its, scaler=None, updated=True)
    assert again.aux.weight not in its.state
    assert torch.equal(its.state[again.used.weight]["exp_avg"], tensors["optimizer"]["used.weight/exp_avg"])  # fmt: skip


def without(*endings: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda stored: {k: v for k, v in stored.items() if not k.endswith(endings)}


@pytest.mark.parametrize(
    ("stored_whole", "left_out", "missing"),
    [
        (True, without("used.weight/exp_avg"), "used.weight/exp_avg"),
        (True, without(""), "aux.bias/exp_avg"),  # all of it
        (False, without(), "aux.bias/exp_avg"),
    ],
)
def test_optimizer_state_that_was_there_is_never_missing_unnoticed(
    stored_whole: bool, left_out: Callable[[dict[str, Tensor]], dict[str, Tensor]], missing: str
) -> None:
    model, optimizer = updated(stored_whole=stored_whole)
    tensors, state = capture(model, optimizer, None)
    tensors["optimizer"] = left_out(tensors["optimizer"])
    with pytest.raises(UsageError, match=f"`{missing}` is missing in the checkpoint"):
        restore(tensors, state, model=model, optimizer=optimizer, scaler=None, updated=True)
