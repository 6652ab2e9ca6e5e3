from __future__ import annotations

import math
import random

import pytest
import torch

from hotloop.core.config import StabilityConfig
from hotloop.train.stability import SpikesOnDevice, SpikesOnHost

CONFIG = StabilityConfig(window_steps=8, spike_factor=4.0, spike_loss=0.5)


def on_both(config: StabilityConfig, norms: list[float], losses: list[float]) -> list[bool]:
    """Looks on the host and on the device, which must agree on every step."""
    host, device = SpikesOnHost(config), SpikesOnDevice(config, torch.device("cpu"))
    found = []
    for norm, loss in zip(norms, losses, strict=True):
        late = torch.tensor([norm, loss])  # as fp32, the way values arrive on the host
        seen = host.look({"grad_norm": late[0].item(), "loss": late[1].item()}) is not None
        assert bool(device.look(late[0], late[1])) is seen
        assert device.state() == device_rows(host)
        found.append(seen)
    return found


def device_rows(host: SpikesOnHost) -> list[list[float | None]]:
    size = CONFIG.window_steps
    return [([None] * size + row)[-size:] for row in host.state()]


def test_gradient_norm_far_above_the_median_is_a_spike() -> None:
    norms = [1.0, 1.1, 0.9, 1.0, 3.9, 4.1, 1.0, 1.0]
    assert on_both(CONFIG, norms, [3.0] * 8) == [False] * 5 + [True, False, False]


def test_loss_far_above_the_median_is_a_spike() -> None:
    losses = [3.0, 3.1, 2.9, 3.0, 3.4, 3.6, 3.0, 3.0]
    assert on_both(CONFIG, [1.0] * 8, losses) == [False] * 5 + [True, False, False]


def test_without_a_factor_only_the_loss_makes_a_spike() -> None:
    config = CONFIG.model_copy(update={"spike_factor": None})
    norms = [0.0] * 4 + [1e9, 1e9, 0.0]
    assert on_both(config, norms, [3.0] * 5 + [3.6, 3.0]) == [False] * 5 + [True, False]


def test_nothing_is_a_spike_before_half_of_the_window_is_known() -> None:
    assert on_both(CONFIG, [1.0, 1.0, 100.0, 1.0], [3.0] * 4) == [False] * 4


def test_level_that_stays_is_no_spike_once_it_fills_half_of_the_window() -> None:
    found = on_both(CONFIG, [1.0] * 8 + [10.0] * 8, [3.0] * 16)
    assert found == [False] * 8 + [True] * 5 + [False] * 3


def test_what_is_no_number_is_no_spike_and_does_not_count() -> None:
    norms = [1.0, math.nan, math.inf, 1.0, 1.0, math.nan, 100.0, 1.0, 100.0]
    #                                                     three are known, then four
    assert on_both(CONFIG, norms, [3.0] * 9) == [False] * 8 + [True]


def test_falling_loss_and_settling_norm_are_no_spikes() -> None:
    steps = range(400)
    norms = [0.3 + 5.0 * math.exp(-step / 40) for step in steps]
    losses = [3.0 + 6.0 * math.exp(-step / 60) for step in steps]
    assert not any(on_both(CONFIG, norms, losses))


@pytest.mark.parametrize("seed", range(5))
def test_host_and_device_agree_on_any_sequence(seed: int) -> None:
    generator = random.Random(seed)
    odd = [math.nan, math.inf, 0.0, 1e30]

    def value(scale: float) -> float:
        return generator.choice(odd) if generator.random() < 0.1 else generator.expovariate(scale)

    norms, losses = ([value(1.0) for _ in range(200)] for _ in range(2))
    assert any(on_both(CONFIG, norms, losses))


def test_state_continues_to_the_same_decisions() -> None:
    generator = random.Random(7)
    rows = [(generator.expovariate(1), 3 + generator.random()) for _ in range(60)]
    for kind in (SpikesOnHost, lambda config: SpikesOnDevice(config, torch.device("cpu"))):
        whole, first, second = kind(CONFIG), kind(CONFIG), kind(CONFIG)

        def look(at: SpikesOnHost | SpikesOnDevice, norm: float, loss: float) -> bool:
            if isinstance(at, SpikesOnHost):
                return at.look({"grad_norm": norm, "loss": loss}) is not None
            return bool(at.look(torch.tensor(norm), torch.tensor(loss)))

        expected = [look(whole, *row) for row in rows]
        found = [look(first, *row) for row in rows[:21]]
        second.restore(first.state())
        found += [look(second, *row) for row in rows[21:]]
        assert found == expected
        assert any(expected)
        assert second.state() == whole.state()


def test_reason_says_how_much_and_what_is_usual() -> None:
    host = SpikesOnHost(CONFIG)
    for _ in range(4):
        host.look({"grad_norm": 0.5, "loss": 3.0})
    spike = host.look({"grad_norm": 2.5, "loss": 3.0})
    assert str(spike) == "gradient norm 2.5, where 0.5 is usual"
