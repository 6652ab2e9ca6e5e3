"""Forms of one and the same mathematics."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from matrix_products import step_products

from hotloop.models.shape import DecoderShape, activate, attend, flops_per_token


@pytest.mark.parametrize("length", [1, 100, 256, 300, 640])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_in_blocks_is_attention(length: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 4, length, 8, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, length, 8, requires_grad=True) for _ in range(2))
    future = torch.ones(640, 640, dtype=torch.bool).triu(1)
    ours = attend(q, k, v, future, 0.0)
    torchs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
    weight = torch.randn_like(ours)
    theirs = torch.autograd.grad((torchs * weight).sum(), (q, k, v))
    for one, other in zip(
        torch.autograd.grad((ours * weight).sum(), (q, k, v)), theirs, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gelu_by_a_sigmoid_is_the_tanh_form() -> None:
    x = torch.linspace(-12, 12, 4801, dtype=torch.float32, requires_grad=True)
    ours, torchs = activate("gelu_sigmoid", x, None), F.gelu(x, approximate="tanh")
    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=2e-6)
    one, other = (torch.autograd.grad(y.sum(), x)[0] for y in (ours, torchs))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shape",
    [
        DecoderShape(vocabulary=100, context=32, layers=3, width=48, heads=4),
        DecoderShape(
            vocabulary=100,
            context=32,
            layers=3,
            width=48,
            heads=4,
            kv_heads=2,
            mlp="swiglu",
            hidden=64,
        ),
    ],
)
def test_products_of_a_step_are_the_flops_of_its_tokens(shape: DecoderShape) -> None:
    products = step_products(shape, windows=5)
    attention = sum(p.flops for p in products if p.batch > 1)
    linear = sum(p.flops for p in products if p.batch == 1)
    tokens = 5 * shape.context
    counted = 12.0 * shape.layers * shape.width * shape.context * tokens
    assert math.isclose(attention, counted / 2)  # a causal model needs half
    assert math.isclose(linear, flops_per_token(shape) * tokens - counted)
