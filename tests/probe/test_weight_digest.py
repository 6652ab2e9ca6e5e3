from __future__ import annotations

import pytest
import torch

from hotloop.core.parity_records import WeightUpdates
from hotloop.probe.weight_digest import MAX_ELEMENTS, SAMPLE, SAMPLED_STEPS, WeightDigest


def trained(steps: int = 4, *, decay: float = 0.0, lr: float = 0.1) -> WeightUpdates:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay)
    digest = WeightDigest()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(4, 8)) - 3).square().mean().backward()
        digest.before(optimizer)
        optimizer.step()
        digest.after(optimizer)
    updates = digest.updates()
    assert updates is not None
    return updates


def test_each_tensor_is_seen_at_the_sampled_updates() -> None:
    updates = trained(7)
    assert len(updates.tensors) == 4
    for tensor in updates.tensors:
        assert tensor.steps == tuple(step for step in sorted(SAMPLED_STEPS) if step <= 7)
        assert all(tensor.moved)
        assert all(len(sample) <= SAMPLE for sample in tensor.moved_sample)
    first = updates.tensors[1]  # the bias: its way is lr x gradient
    assert first.gradient[0] is not None
    assert first.moved[0] == pytest.approx(0.1 * first.gradient[0], rel=1e-5)


def test_decay_shows_along_the_first_weights() -> None:
    plain, decayed = trained(1), trained(1, decay=0.1)
    for one, other in zip(plain.tensors, decayed.tensors, strict=True):
        assert other.along[0] - one.along[0] == pytest.approx(-0.01 * one.start**2, rel=1e-3)


def test_weights_that_are_not_updated_do_not_move() -> None:
    assert not any(any(tensor.moved) for tensor in trained(lr=0.0).tensors)


def test_how_weights_lie_in_memory_makes_no_difference() -> None:
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        layer = torch.nn.Conv2d(4, 8, 3).to(memory_format=memory_format)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer.weight.grad = torch.arange(288.0).reshape(8, 4, 3, 3)
        digest = WeightDigest()
        digest.before(optimizer)
        optimizer.step()
        digest.after(optimizer)
        found.append(digest.updates())
    assert found[0] == found[1]


def test_large_tensors_are_looked_at_in_part_and_sparse_gradients_not_at_all() -> None:
    table = torch.nn.Embedding(MAX_ELEMENTS, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    table(torch.tensor([1, 2])).sum().backward()
    digest = WeightDigest()
    digest.before(optimizer)
    optimizer.step()
    digest.after(optimizer)
    updates = digest.updates()
    assert updates is not None
    (tensor,) = updates.tensors
    assert tensor.gradient == (None,)


def test_weights_that_cannot_be_read_are_none() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    digest = WeightDigest()
    digest.before(optimizer)
    weight.data = torch.ones(5)  # it is another one now
    weight.grad = torch.ones(5)
    optimizer.step()
    digest.after(optimizer)
    assert digest.updates() is None
