"""The update of weights whose gradients are narrower than they are is that of torch with the wide ones."""

import pytest
import torch
from torch import nn

from hotloop.train.optimizer import AdamW

SIZES = [(3, 5), (7, 11), (7, 11), (4,), (64, 33)]
NARROW = [True, True, False, False, True]


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size)) for size in SIZES]


@pytest.mark.parametrize("part_bytes", [0, 700, 1 << 20])
@pytest.mark.parametrize("factors", [{}, {"grad_scale": 3.0, "found_inf": 0.0}, {"grad_scale": 1.0, "found_inf": 1.0}])  # fmt: skip
def test_update_is_that_of_torch(part_bytes: int, factors: dict[str, float]) -> None:
    """To the bit, moments and counts of steps with it, through a checkpoint of either, and where an update is left out."""
    own, theirs = weights(), weights()
    for weight, narrow in zip(own, NARROW, strict=True):
        weight.grad_dtype = torch.bfloat16 if narrow else torch.float32
    given = {"lr": 0.1, "weight_decay": 0.2, "fused": True}
    optimizers = [AdamW(own, **given), torch.optim.AdamW(theirs, **given)]
    optimizers[0].PART_BYTES = part_bytes
    for step in range(4):
        for weight, other in zip(own, theirs, strict=True):
            other.grad = torch.randn(other.shape).bfloat16().float()
            weight.grad = other.grad.to(weight.grad_dtype, copy=True)  # which an update may scale
        if step == 1:
            own[0].grad = theirs[0].grad = None
        for optimizer in optimizers:
            for name, value in factors.items():
                setattr(optimizer, name, torch.tensor(value))
            optimizer.step()
        if step == 2:
            states = [each.state_dict() for each in optimizers]
            for optimizer, state in zip(optimizers, reversed(states), strict=True):
                optimizer.load_state_dict(state)
    for weight, other in zip(own, theirs, strict=True):
        assert torch.equal(weight, other)
        for name, slot in optimizers[1].state[other].items():
            assert torch.equal(optimizers[0].state[weight][name], slot), name
