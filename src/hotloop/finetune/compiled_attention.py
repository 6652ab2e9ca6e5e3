"""Attention of packed examples as one operation of a compiled layer, and the compiling of the layers.

How a row is divided into examples is data of tensors here, and no shape, so that one graph serves every step. The backward
computes the attention once more: what of it would be kept has sizes that nothing in the graph has. Run on an H100.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hotloop.finetune.dropout import kept_units
from hotloop.finetune.packed_attention import Row, along
from hotloop.finetune.packing import Layout, attention
from hotloop.optimizations.precision.autocast import autocast
from hotloop.report.numbers import counted
from hotloop.train.batches import to_device

if TYPE_CHECKING:
    from hotloop.train.run import Run

GIVEN = "Tensor query, Tensor key, Tensor value, Tensor[] where, int longest, float dropout, float? scaling, int? window"
"""where: of an encoder `Layout.tensors`, of a decoder `Row.bounds` alone."""
RANDOM = torch.Tag.nondeterministic_seeded
STATE_BYTES = {"cpu": len(torch.get_rng_state()), "cuda": 16}
"""Of a random generator, by the type of its device."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    where: Sequence[Tensor],
    longest: int,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """What the layers of transformers compute uncompiled: (1, heads, T, size) each to (1, T, heads, size)."""
    if len(where) == 1:
        row = Row(where[0].diff(), longest)
        return along(row, query, key, value, dropout, scaling, window).contiguous()
    layout = Layout.of_tensors(where, query.shape[2])
    found, _ = attention(
        None, query, key, value, None, layout=layout, dropout=dropout, scaling=scaling
    )
    return found.contiguous()


@torch.library.custom_op(
    "hotloop::attention", mutates_args=(), schema=f"({GIVEN}) -> (Tensor, Tensor)", tags=(RANDOM,)
)
def _forward(
    query: Tensor, key: Tensor, value: Tensor, where: list[Tensor], longest: int, dropout: float, *others: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """And the state of the generator before it drew, which the backward draws from again."""
    state = torch.empty(0, dtype=torch.uint8)
    if dropout:
        on_cpu = query.device.type == "cpu"
        state = torch.get_rng_state() if on_cpu else torch.cuda.get_rng_state(query.device)
    return _attention(query, key, value, where, longest, dropout, *others), state


@_forward.register_fake
def _shapes(
    query: Tensor, key: Tensor, value: Tensor, where: list[Tensor], longest: int, dropout: float, *others: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    num = STATE_BYTES[query.device.type] if dropout else 0
    found = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    return found, query.new_empty(num, dtype=torch.uint8, device="cpu")


# Not as the forward, by `custom_op`: within those autograd is off, by which this computes.
torch.library.define(
    "hotloop::attention_backward",
    f"(Tensor gradient, Tensor state, {GIVEN}) -> (Tensor, Tensor, Tensor)",
    tags=(RANDOM,),
)


@torch.library.impl("hotloop::attention_backward", "default")
def _computed_again(
    gradient: Tensor, state: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    q, k, v = given = [each.detach().requires_grad_() for each in (query, key, value)]
    on_gpu = [query.device] if query.is_cuda else []
    with torch.random.fork_rng(on_gpu, enabled=bool(len(state))), torch.enable_grad():
        if len(state):
            torch.cuda.set_rng_state(state, query.device) if on_gpu else torch.set_rng_state(state)
        found = _attention(q, k, v, *others)
    return tuple(each.contiguous() for each in torch.autograd.grad(found, given, gradient))


@torch.library.register_fake("hotloop::attention_backward")  # type: ignore[untyped-decorator]
def _shapes_of_gradients(
    gradient: Tensor, state: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in (query, key, value))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, where, *ctx.fixed = inputs
    ctx.save_for_backward(output[1], query, key, value, *where)


def _backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Any, ...]:
    state, query, key, value, *where = ctx.saved_tensors
    found = torch.ops.hotloop.attention_backward(
        gradient, state, query, key, value, where, *ctx.fixed
    )
    return *found, [None] * len(where), *[None] * len(ctx.fixed)


_forward.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op(
    "hotloop::kept_units", mutates_args=(), schema="(Tensor x, float p) -> Tensor", tags=(RANDOM,)
)
def _kept_units(x: Tensor, p: float) -> Tensor:
    """`kept_units`, which a compiled layer draws as an uncompiled one does: the compiler's own takes longer on a CPU."""
    return kept_units(x.shape, p, x.dtype)


@_kept_units.register_fake
def _shape_of_units(x: Tensor, p: float) -> Tensor:
    return x.new_empty(x.shape)


def layers_of(base: nn.Module) -> list[Any]:
    """Those that a model of transformers consists of, in their order; none where it has them in another form."""
    stacks = (each for each in base.modules() if isinstance(each, nn.ModuleList) and len(each))
    return list(next(stacks, ()))


def compile_now(run: Run) -> str:
    """Compile what the steps compute, and say what that was.

    On the same examples in every process: how many tokens the first ones have may decide in which order the code adds up, and a
    resumed run has to come to the same bits.
    """
    layers = [each for each in run.model.modules() if each._compiled_call_impl is not None]
    if not layers:
        return (
            "nothing is compiled: what would be are the layers of a model whose examples are packed"
        )
    began = time.monotonic()
    inputs = to_device(run.work.sample(), run.device)
    run.model.train()
    with torch.random.fork_rng([run.device] if run.device.type == "cuda" else []):
        with autocast(run.device.type, run.config.train.precision):
            loss = run.replica(*inputs)
        loss.backward()
    run.clear_gradients()
    seconds = time.monotonic() - began
    return f"{counted(len(layers), 'layer')} compiled for rows of any length, in {seconds:.0f} s"
