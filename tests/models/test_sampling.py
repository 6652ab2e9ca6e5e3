"""Sampling with kept keys and values, against the loop that computes all again for every token."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from hotloop.core.errors import UsageError
from hotloop.models.decoder import Decoder
from hotloop.models.kv_cache import KeyValueCache
from hotloop.models.sampling import choose, sample, store_by_inputs
from hotloop.models.shape import DecoderShape
from hotloop.optimizations.compiling.trainer import compile_model

SHAPE = DecoderShape(vocabulary=50, context=12, layers=3, width=32, heads=4)
LLAMA = replace(
    SHAPE, attention="plain", norm="rmsnorm", positions="rotary", mlp="swiglu", kv_heads=2, qk_norm=True, value_embeddings=True, bias=False, tied=False, pad_vocabulary_to=64
)  # fmt: skip
SHAPES = st.builds(
    DecoderShape,
    vocabulary=st.just(50),
    context=st.integers(1, 12),
    layers=st.integers(1, 3),
    width=st.just(32),
    heads=st.just(4),
    attention=st.sampled_from(["sdpa", "plain"]),
    norm=st.sampled_from(["layernorm", "rmsnorm"]),
    positions=st.sampled_from(["learned", "rotary"]),
    mlp=st.sampled_from(["gelu", "relu2", "swiglu"]),
    gelu=st.sampled_from(["tanh", "sigmoid"]),
    kv_heads=st.sampled_from([None, 1, 2]),
    qk_norm=st.booleans(),
    value_embeddings=st.booleans(),
    bias=st.booleans(),
    tied=st.booleans(),
    pad_vocabulary_to=st.sampled_from([1, 64]),
)
IDS = st.integers(0, 49)


def model(shape: DecoderShape = SHAPE) -> Decoder:
    """One whose every part matters: as it is drawn for training, the gates of the values are zero."""
    torch.manual_seed(0)
    decoder = Decoder(shape)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        decoder.head_weight[shape.vocabulary :] = 0
    return decoder


@torch.inference_mode()
def from_scratch(
    decoder: Decoder, prompt: list[int], tokens: int, temperature: float, top_k: int, seed: int
) -> list[int]:
    """What `sample` is to give, by computing the whole sequence again for each token."""
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    decoder.eval()
    for _ in range(tokens):
        logits = decoder(torch.tensor([ids[-decoder.shape.context :]]))[0, -1]
        if temperature == 0:
            ids.append(int(logits.argmax()))
            continue
        logits = logits / temperature
        if 0 < top_k < 50:
            logits[logits < logits.topk(top_k).values[-1]] = float("-inf")
        ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
    return ids[len(prompt) :]


def by_row(found: list[tuple[int, int | None]], rows: int) -> list[list[int]]:
    ends = [row for row, number in found if number is None]
    assert sorted(ends) == list(range(rows))
    return [[n for row, n in found if row == wanted and n is not None] for wanted in range(rows)]


@settings(max_examples=60)
@given(
    SHAPES,
    st.lists(st.lists(IDS, min_size=1, max_size=16), min_size=1, max_size=4),
    st.integers(1, 20),
    st.sampled_from([0, 0.8, 1.5]),
    st.sampled_from([0, 5, 50]),
    st.integers(0, 2**63 - 1),
)
def test_every_row_of_a_batch_is_what_it_is_from_scratch_and_alone(
    shape: DecoderShape,
    prompts: list[list[int]],
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
) -> None:
    """In every architecture, also of prompts of different lengths and past the end of the context."""
    decoder = model(shape)
    seeds = [seed + row for row in range(len(prompts))]
    drawn = sample(
        decoder, prompts, seeds=seeds, num_tokens=tokens, temperature=temperature, top_k=top_k
    )
    assert by_row(list(drawn), len(prompts)) == [
        from_scratch(decoder, prompt, tokens, temperature, top_k, own)
        for prompt, own in zip(prompts, seeds, strict=True)
    ]


@pytest.mark.parametrize("shape", [SHAPE, LLAMA])
def test_weights_that_are_stored_by_inputs_are_the_same_weights(shape: DecoderShape) -> None:
    decoder, tokens = model(shape).eval(), torch.arange(12)[None]
    wanted, before = decoder(tokens), {k: v.clone() for k, v in decoder.state_dict().items()}
    store_by_inputs(decoder)
    torch.testing.assert_close(decoder(tokens), wanted, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in decoder.state_dict().items())
    widening = [decoder.head_weight, *(block.up.weight for block in decoder.blocks)]
    assert all(each.stride() == (1, len(each)) for each in widening)
    assert decoder.blocks[0].down.weight.is_contiguous()


@settings(max_examples=60)
@given(SHAPES, st.data())
def test_logits_with_kept_keys_are_those_without(shape: DecoderShape, data: st.DataObject) -> None:
    """Whatever number of tokens is added at a time."""
    decoder = model(shape).eval()
    tokens = torch.randint(0, 50, (2, shape.context))
    cache = KeyValueCache(
        shape, rows=[0, 1], room=shape.context, like=decoder.tokens.weight.detach()
    )
    at = 0
    with torch.inference_mode():
        wanted = decoder(tokens)
        while at < shape.context:
            to = data.draw(st.integers(at + 1, shape.context))
            places = torch.arange(at, to).expand(2, -1)
            cache.reach(places, to)
            found = decoder(tokens[:, at:to], places=places, cache=cache)
            torch.testing.assert_close(found, wanted[:, at:to], rtol=1e-5, atol=1e-5)
            at = to


def test_a_row_that_stops_leaves_the_others_as_they_are() -> None:
    decoder, prompts = model(), [[1, 2], [3], [4, 5, 6]]
    whole = by_row(list(sample(decoder, prompts, seeds=[4, 5, 6], num_tokens=20)), 3)
    assert whole == by_row(list(sample(decoder, prompts, seeds=[4, 5, 6], num_tokens=20)), 3)
    assert whole != by_row(list(sample(decoder, prompts, seeds=[7, 8, 9], num_tokens=20)), 3)
    stop = whole[1][3]
    found = list(sample(decoder, prompts, seeds=[4, 5, 6], num_tokens=20, stop=stop))
    cut = [row[: row.index(stop)] if stop in row else row for row in whole]
    assert by_row(found, 3) == cut
    assert len({len(row) for row in cut}) > 1


@settings(max_examples=40)
@given(
    SHAPES,
    st.lists(st.lists(IDS, min_size=1, max_size=16), min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(0, 2),
    st.integers(0, 2**63 - 9),
)
def test_a_fixed_cache_gives_the_same_rows_again_and_again(
    shape: DecoderShape, prompts: list[list[int]], tokens: int, unused: int, seed: int
) -> None:
    """Also where it has more rows than prompts, where some end early, and with what an earlier call left in it."""
    decoder, seeds = model(shape), [seed + row for row in range(len(prompts))]
    wanted = by_row(list(sample(decoder, prompts, seeds=seeds, num_tokens=tokens)), len(prompts))
    cache = fixed(decoder, len(prompts) + unused, max(map(len, prompts)) + tokens)
    for stop in (None, wanted[0][tokens // 2]):
        found = sample(decoder, prompts, seeds=seeds, num_tokens=tokens, stop=stop, cache=cache)
        cut = [row[: row.index(stop)] if stop in row else row for row in wanted]
        assert by_row(list(found), len(prompts)) == cut


def fixed(decoder: Decoder, rows: int, length: int) -> KeyValueCache:
    shape, like = decoder.shape, decoder.tokens.weight.detach()
    room = min(shape.context, length)
    return KeyValueCache(shape, rows=range(rows), room=room, like=like, fixed=True)


@pytest.mark.parametrize("other", [SHAPE, LLAMA], ids=["gpt2", "llama"])
def test_one_graph_makes_the_tokens_of_all_positions(other: DecoderShape) -> None:
    """Of prompts of all lengths, of rows that end before others, and past the end of the context."""
    torch._dynamo.reset()
    decoder, plain = model(other), model(other)
    compile_model(decoder, True, backend="aot_eager")
    cache = fixed(decoder, 3, other.context)
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for prompts in ([[1, 2], [3], [4, 5, 6]], [[7] * 5, [8]]):
            seeds = [20 + row for row in range(len(prompts))]
            wanted = list(sample(plain, prompts, seeds=seeds, num_tokens=20, stop=9))
            found = sample(decoder, prompts, seeds=seeds, num_tokens=20, stop=9, cache=cache)
            assert list(found) == wanted
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_a_model_that_trains_goes_on_training_with_dropout() -> None:
    decoder = model(replace(SHAPE, dropout=0.5)).train()
    assert len({tuple(sample(decoder, [[1]], seeds=[0], num_tokens=9)) for _ in range(3)}) == 1
    assert decoder.training


@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("top_p", [1e-46, 1e-9, 0.3, 0.8, 0.95, 1.0])
def test_top_p_chooses_among_the_likeliest_that_reach_it(top_p: float, top_k: int) -> None:
    weights = [0.02, 0.3, 0.1, 0.05, 0.25, 0.08, 0.2]
    logits = torch.tensor(weights).log().repeat(3000, 1)
    order = sorted(range(7), key=lambda i: -weights[i])[: top_k or 7]
    total = sum(weights[i] for i in order)
    reached = list(accumulate(weights[i] / total for i in order))
    among = order[: 1 + sum(each < top_p - 1e-6 for each in reached)]
    generators = [torch.Generator().manual_seed(seed) for seed in range(3000)]
    chosen = choose(logits, generators, 1.0, top_k, top_p)
    assert set(chosen) == set(among)
    for i in among:
        expected = weights[i] / sum(weights[j] for j in among)
        assert chosen.count(i) / 3000 == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_model_that_diverged_is_told_so_and_gives_no_text(temperature: float) -> None:
    decoder = model()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1e30)
    with pytest.raises(UsageError, match="computes no numbers: its training diverged"):
        list(sample(decoder, [[1]], seeds=[0], num_tokens=3, temperature=temperature))


def test_memory_of_a_row_is_known_before_it_is_taken() -> None:
    shape = replace(SHAPE, kv_heads=2)
    cache = KeyValueCache(shape, rows=range(5), room=7, like=torch.zeros(1))
    kept = [each for layer in cache._kept for each in layer]
    assert sum(each.nbytes for each in kept) == 5 * KeyValueCache.row_bytes(shape, 7)
