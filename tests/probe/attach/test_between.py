"""Which operations between the phases the loss or the weights depend on, as torch's profiler sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hotloop.probe.attach.operators import STARTED_IN_NS, Span, depended_on_ns

EVER: Span = (0, 2**63)


def profiled(what: Callable[[Tensor], object]) -> list[Any]:
    """The profiler's events while `what` works on a weight that has a gradient."""
    weight = torch.randn(8, 8, requires_grad=True)
    weight.grad = torch.ones(8, 8)
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        what(weight)
    events = list(profiler.kineto_results.events())
    events.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
    return events


def took_ns(events: list[Any], *names: str) -> int:
    """Of the operations themselves, which have these names once each or more."""
    found = [event for event in events if event.name().removeprefix("aten::") in names]
    assert {event.name().removeprefix("aten::") for event in found} == set(names)
    return sum(int(event.duration_ns()) for event in found)


def metric(weight: Tensor) -> None:
    (weight > 0).float().mean()
    weight.detach().square().mean()
    with torch.no_grad():
        weight.square().mean()
    torch.ones(3).sum()


def test_an_inner_update_counts_and_the_metric_after_it_does_not() -> None:
    def update(weight: Tensor) -> None:
        weight = weight - weight.exp()
        metric(weight)

    events = profiled(update)
    counted = depended_on_ns(events, [EVER], updates_by_hand=False)
    alone = took_ns(events, "exp", "sub")
    assert alone <= counted <= alone + 2 * STARTED_IN_NS


def test_own_code_between_two_operations_is_no_part_of_them() -> None:
    waited_ns = 200_000

    def update(weight: Tensor) -> None:
        for _ in range(10):
            weight = weight.exp()
            until = time.perf_counter_ns() + waited_ns
            while time.perf_counter_ns() < until:
                pass
        weight.exp()

    events = profiled(update)
    counted = depended_on_ns(events, [EVER], updates_by_hand=False)
    assert (
        counted - took_ns(events, "exp") < 10 * waited_ns / 4
    )  # from half on all of it is called computing


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_metric_counts_nothing(*, by_hand: bool) -> None:
    assert depended_on_ns(profiled(metric), [EVER], updates_by_hand=by_hand) == 0


def test_updates_by_hand_count_where_no_optimizer_makes_them() -> None:
    @torch.no_grad()
    def update(weight: Tensor) -> None:
        assert weight.grad is not None
        weight -= 0.1 * weight.grad

    events = profiled(update)
    assert depended_on_ns(events, [EVER], updates_by_hand=False) == 0
    assert depended_on_ns(events, [EVER], updates_by_hand=True) >= took_ns(events, "sub_")


def test_only_what_begins_between_the_phases_counts() -> None:
    events = profiled(lambda weight: weight.exp().sin().cos())
    first = next(event for event in events if event.name() == "aten::exp")
    whole = depended_on_ns(events, [EVER], updates_by_hand=False)
    part = depended_on_ns(events, [(0, first.start_ns() + 1)], updates_by_hand=False)
    assert first.duration_ns() <= part < whole
    assert depended_on_ns(events, [(0, 1)], updates_by_hand=False) == 0
