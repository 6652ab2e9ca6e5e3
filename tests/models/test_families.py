"""The parts a decoder can be made of, against formulas and torch's own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from matrix_products import step_products

from hotloop.models.decoder import Decoder
from hotloop.models.shape import (
    DecoderShape,
    activate,
    attend,
    flops_per_token,
    host_bytes,
    num_weights,
    rotary_table,
    turn,
)

LLAMA = DecoderShape(
    vocabulary=50, context=16, layers=2, width=32, heads=4, kv_heads=2, hidden=48,
    norm="rmsnorm", positions="rotary", mlp="swiglu", bias=False, tied=False,
)  # fmt: skip
SHAPES = {
    "gpt2": DecoderShape(50, 16, 2, 32, 4),
    "llama": LLAMA,
    "llama with biases and tied": replace(LLAMA, bias=True, tied=True),
    "qk norm": replace(LLAMA, qk_norm=True),
    "value embeddings": replace(LLAMA, value_embeddings=True),
    "gpt2 with value embeddings": DecoderShape(50, 16, 3, 32, 4, value_embeddings=True),
    "gpt2 with shared keys": DecoderShape(50, 16, 2, 32, 4, kv_heads=1),
    "gpt2 without biases": DecoderShape(50, 16, 2, 32, 4, bias=False, mlp="relu2", tied=False),
}


def model(shape: DecoderShape = LLAMA) -> Decoder:
    torch.manual_seed(0)
    return Decoder(shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_plain_attention_is_the_same_mathematics_in_every_family(shape: DecoderShape) -> None:
    sdpa, plain = model(shape), model(replace(shape, attention="plain"))
    plain.load_state_dict(sdpa.state_dict())
    tokens, targets = torch.randint(0, 50, (2, 2, 16))
    losses = [decoder(tokens, targets) for decoder in (sdpa, plain)]
    for loss in losses:
        loss.backward()
    assert torch.allclose(losses[0], losses[1], rtol=1e-6)
    for a, b in zip(sdpa.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_in_every_family_a_token_sees_only_those_before_it(shape: DecoderShape) -> None:
    decoder = model(shape)
    tokens = torch.randint(0, 50, (2, 16))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 50
    before, after = decoder(tokens), decoder(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_weights_are_counted_without_building_the_model(shape: DecoderShape) -> None:
    decoder = model(replace(shape, attention="plain"))
    assert num_weights(shape) == sum(p.numel() for p in decoder.parameters())
    tables = sum(buffer.nbytes for buffer in decoder.buffers())
    assert host_bytes(replace(shape, attention="plain"), 3) == 12 * num_weights(shape) + tables


def test_query_heads_share_keys_in_consecutive_groups() -> None:
    """Four heads over two keys are four heads over the keys 0 0 1 1."""
    shared, full = model(), model(replace(LLAMA, kv_heads=4))
    weights = shared.state_dict()
    for name in [n for n in weights if "qkv" in n]:
        q, k, v = weights[name].split((32, 16, 16))
        repeated = [t.view(2, 8, 32).repeat_interleave(2, dim=0).reshape(32, 32) for t in (k, v)]
        weights[name] = torch.cat((q, *repeated))
    full.load_state_dict(weights)
    tokens = torch.randint(0, 50, (2, 16))
    assert torch.allclose(shared(tokens), full(tokens), atol=1e-6)


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    table = rotary_table(replace(LLAMA, context=64))
    q, k = torch.randn(2, 8)
    queries, keys = (turn(x.expand(1, 1, 64, 8), table)[0, 0] for x in (q, k))
    scores = queries @ keys.T
    for distance in (0, 3, 40):
        along = scores.diagonal(-distance)
        assert torch.allclose(along, along[0].expand_as(along), atol=1e-4)
    assert not torch.allclose(scores[10, 0], scores[10, 5], atol=1e-3)


def test_rotary_is_the_complex_product_in_double_precision() -> None:
    table = rotary_table(replace(LLAMA, context=2048, rotary_theta=5e5))
    x = torch.randn(2048, 8)
    pairs = torch.complex(x[:, :4].double(), x[:, 4:].double())
    angles = torch.outer(
        torch.arange(2048, dtype=torch.float64),
        5e5 ** -(torch.arange(4, dtype=torch.float64) / 4),
    )
    wanted = pairs * torch.polar(torch.ones_like(angles), angles)
    found = turn(x[None, None], table)[0, 0]
    assert torch.allclose(found[:, :4].double(), wanted.real, atol=2e-3)
    assert torch.allclose(found[:, 4:].double(), wanted.imag, atol=2e-3)


def test_rotary_turns_in_fp32_whatever_it_is_given() -> None:
    table = rotary_table(LLAMA)
    x = torch.randn(1, 1, 16, 8).bfloat16()
    assert turn(x, table).dtype == torch.float32
    assert torch.equal(turn(x, table), turn(x.float(), table))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(turn(x, table), turn(x.float(), table))


def test_norm_of_queries_and_keys_makes_their_length_irrelevant() -> None:
    decoder = model(replace(LLAMA, qk_norm=True))
    tokens = torch.randint(0, 50, (2, 16))
    before = decoder(tokens)
    with torch.no_grad():
        for block in decoder.blocks:
            block.attention.qkv.weight[:48] *= 3.0  # type: ignore[union-attr,operator,index]
    assert torch.allclose(decoder(tokens), before, atol=1e-3)


def test_activations_are_their_formulas() -> None:
    up, gate = torch.randn(2, 100)
    assert torch.allclose(activate("swiglu", up, gate), gate * torch.sigmoid(gate) * up)
    assert torch.allclose(activate("relu2", up, None), up.clamp(min=0) ** 2)
    assert torch.allclose(activate("gelu", up, None), F.gelu(up, approximate="tanh"))


def test_every_weight_is_drawn_once_and_branches_start_smaller() -> None:
    decoder = model(replace(LLAMA, width=128, hidden=384, value_embeddings=True))
    stds = {name: float(p.detach().std()) for name, p in decoder.named_parameters() if p.ndim == 2}
    assert set(stds) > {"head.weight", "tokens.weight", "value_tokens.1.weight"}
    assert stds.pop("blocks.1.attention.value_gate.weight") == 0
    for name, std in stds.items():
        small = name.endswith(("out.weight", "down.weight"))
        assert std == pytest.approx(0.02 / math.sqrt(4) if small else 0.02, rel=0.1), name
    assert not [name for name, _ in decoder.named_parameters() if "bias" in name]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_weight_gets_a_gradient(shape: DecoderShape) -> None:
    decoder = model(shape)
    tokens, targets = torch.randint(0, 50, (2, 2, 16))
    decoder(tokens, targets).backward()
    without = [n for n, p in decoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_flops_of_a_llama_agree_with_a_count_by_hand() -> None:
    one_b = DecoderShape(
        vocabulary=128256, context=2048, layers=16, width=2048, heads=32, kv_heads=8, hidden=8192,
        norm="rmsnorm", positions="rotary", mlp="swiglu", bias=False,
    )  # fmt: skip
    # per layer: q and out 2 x 2048 x 2048, k and v 2 x 2048 x 512, three matrices 2048 x 8192
    layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192
    assert layer == 60_817_408
    scores = 12 * 16 * 2048 * 2048  # 4 T width forward, times 3
    assert flops_per_token(one_b) == 6 * (16 * layer + 128256 * 2048) + scores


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_flops_count_every_matrix_of_the_model(shape: DecoderShape) -> None:
    decoder = model(shape)
    matrices = sum(
        p.numel() for n, p in decoder.named_parameters() if p.ndim == 2 and "blocks" in n
    )
    head = decoder.head_weight.numel()
    expected = 6 * (matrices + head) + 12 * shape.layers * 32 * 16
    assert flops_per_token(shape) == expected


def test_rotary_and_untied_parameters_are_those_expected() -> None:
    names = {name for name, _ in model().named_parameters()}
    assert "positions.weight" not in names
    assert {"head.weight", "blocks.0.gate.weight"} <= names
    assert num_weights(LLAMA) - num_weights(replace(LLAMA, tied=True)) == 50 * 32


def test_every_second_layer_from_the_last_has_an_embedding_of_the_values_width() -> None:
    for layers, wanted in ((1, (0,)), (2, (1,)), (3, (0, 2)), (6, (1, 3, 5))):
        shape = replace(LLAMA, layers=layers, value_embeddings=True)
        assert shape.value_layers == wanted
        decoder = model(shape)
        tables = {n: p.shape for n, p in decoder.named_parameters() if "value_tokens" in n}
        assert tables == {f"value_tokens.{i}.weight": (50, 16) for i in wanted}
        gates = [n for n, _ in decoder.named_parameters() if "value_gate" in n]
        assert gates == [f"blocks.{i}.attention.value_gate.weight" for i in wanted]
    assert LLAMA.value_layers == ()


def test_value_embeddings_are_weights_but_no_arithmetic() -> None:
    """Two more tables of 50 x 16 and gates of 32 x 2, of which the gates alone are products."""
    shape = replace(LLAMA, layers=4)
    larger = replace(shape, value_embeddings=True)
    gates = 2 * 32 * 2
    assert num_weights(larger) - num_weights(shape) == 2 * 50 * 16 + gates
    assert flops_per_token(larger) - flops_per_token(shape) == 6 * gates


def test_values_are_those_of_the_input_plus_the_gated_embedding_of_the_token() -> None:
    """With one token in sight attention returns the values: what is added can be computed by hand."""
    shape = replace(LLAMA, layers=1, value_embeddings=True)
    decoder, without = model(shape), model(replace(LLAMA, layers=1))
    without.load_state_dict(decoder.state_dict(), strict=False)
    attention = decoder.blocks[0].attention
    torch.nn.init.normal_(attention.value_gate.weight)  # type: ignore[union-attr,arg-type]
    x, tokens = torch.randn(3, 1, 32), torch.tensor([[4], [4], [9]])
    table = decoder.value_tokens["0"].weight
    gate = 2 / (1 + torch.exp(-x @ attention.value_gate.weight.T))  # type: ignore[union-attr,operator]
    added = (gate.view(3, 1, 2, 1) * table[tokens].view(3, 1, 2, 8)).repeat_interleave(2, dim=2)
    rotary = decoder.rotary[:, :1]  # type: ignore[index]
    found = attention(x, rotary, decoder.value_tokens["0"](tokens))  # type: ignore[operator]
    plain = without.blocks[0].attention(x, rotary)  # type: ignore[operator]
    wanted = plain + attention.out(added.view(3, 1, 32))  # type: ignore[union-attr,operator]
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not torch.allclose(found, plain, atol=1e-3)


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


@pytest.mark.parametrize("shape", [SHAPES["gpt2"], replace(LLAMA, layers=3)], ids=["gpt2", "llama"])
def test_products_of_a_step_are_the_flops_of_its_tokens(shape: DecoderShape) -> None:
    products = step_products(shape, windows=5)
    attention = sum(p.flops for p in products if p.batch > 1)
    linear = sum(p.flops for p in products if p.batch == 1)
    tokens = 5 * shape.context
    counted = 12.0 * shape.layers * shape.width * shape.context * tokens
    assert math.isclose(attention, counted / 2)  # a causal model needs half
    assert math.isclose(linear, flops_per_token(shape) * tokens - counted)
