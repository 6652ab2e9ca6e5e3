from __future__ import annotations

import pytest
import torch

from hotloop.models.decoder import Decoder
from hotloop.models.shape import DecoderShape
from hotloop.optimizations.precision.autocast import autocast
from hotloop.probe.attach.operators import watch_forward

SHAPE = DecoderShape(vocabulary=50, context=16, layers=1, width=32, heads=4)


def seen(
    precision: str, attention: str = "sdpa", dropout: float = 0.0
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    from dataclasses import replace

    model = Decoder(replace(SHAPE, attention=attention, dropout=dropout))
    tokens, targets = torch.randint(0, 50, (2, 2, 16))

    def forward() -> None:
        with autocast("cpu", precision):
            model(tokens, targets)

    return watch_forward(forward)


def test_products_are_seen_in_the_dtype_that_reached_the_kernel() -> None:
    assert seen("fp32")[0] == ("float32",)
    assert seen("bf16")[0] == ("bfloat16",)


def test_attention_is_named_by_the_kernel_that_ran() -> None:
    assert seen("fp32")[1] == ("sdpa:flash",)
    assert seen("fp32", "plain")[1] == ("plain",)


def test_fall_to_the_math_kernel_is_not_called_flash() -> None:
    """On a CPU dropout makes scaled_dot_product_attention fall back, silently."""
    assert "sdpa:flash" not in seen("fp32", dropout=0.5)[1]


def test_watching_leaves_random_numbers_as_they_were() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    watch_forward(lambda: torch.rand(100))
    assert torch.equal(torch.rand(3), expected)


def test_failure_in_the_forward_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        watch_forward(lambda: 1 / 0)
