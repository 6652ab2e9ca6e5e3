"""A layer of BERT or one of its relatives as a single step of autograd, on a CPU.

Of a small model and a few texts calling an operation often takes longer than computing it, and a layer of transformers has
modules, autocast and autograd around each. What is computed here is the same, and so is its precision: products in the type
of autocast, all else in fp32.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hotloop.finetune.dropout import drawn
from hotloop.finetune.packed_attention import running
from hotloop.finetune.packing import Layout, attended, attended_backward, attention, times

# fmt: off
LAYERS = (  # BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA; DistilBERT, without dropout behind attention
    ("attention.self.query attention.self.key attention.self.value attention.output.dense intermediate.dense output.dense",
     "attention.output.LayerNorm output.LayerNorm", "attention.self.dropout attention.output.dropout output.dropout",
     "intermediate.intermediate_act_fn", "attention.self"),
    ("attention.q_lin attention.k_lin attention.v_lin attention.out_lin ffn.lin1 ffn.lin2",
     "sa_layer_norm output_layer_norm", "attention.dropout - ffn.dropout", "ffn.activation", "attention"),
)
"""Products, norms, dropouts, activation and attention of a layer, in the order in which they are computed."""
ATTENTIONS = ["query", "key", "value", "dropout"], ["dropout", "q_lin", "k_lin", "v_lin", "out_lin"]
"""All that attention of these consists of."""
# fmt: on


def parts_of(layer: nn.Module) -> list[Any] | None:
    """Products and norms; dropouts, `None` for one that is not there; the width of a head. `None` for a layer that is computed in another way."""
    for *names, activation, attending in LAYERS:
        try:
            found = [[layer.get_submodule(name) if name != "-" else None for name in each.split()] for each in names]  # fmt: skip
            is_exact = layer.get_submodule(activation).act is F.gelu
            size = layer.get_submodule(attending).attention_head_size
        except AttributeError:
            continue
        products, norms, dropouts = found
        kinds = {(type(each), getattr(each, "bias", None) is None) for each in (*products, *norms)}
        is_exact &= all(each is None or isinstance(each, nn.Dropout) for each in dropouts)
        is_exact &= 2 * (len(products) + len(norms)) == len([*layer.parameters()])
        if is_exact and kinds == {(nn.Linear, False), (nn.LayerNorm, False)}:
            return [(*products, *norms), dropouts, size]
    return None


def fuse_layers(stack: Iterable[Any]) -> None:
    """In place, those of them that can be: what they compute for packed examples on a CPU.

    And the attention of classes that take no other one, as those of BERT and its relatives in transformers 4, for where they are not fused.
    """
    for layer in stack:
        if (found := parts_of(layer)) is not None:
            layer.fused_parts = *found, _is_open(layer), {}
            layer.forward = MethodType(_forward, layer)
        for module in layer.modules():
            names = [name for name, _ in module.named_children()]
            if names in ATTENTIONS and not _is_open(module):
                module.forward = MethodType(_attention, module)


def _is_open(module: Any) -> bool:
    """Whether its class passes on arguments that it does not know, to attention of any kind."""
    given = inspect.signature(type(module).forward).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in given)


def _attention(module: Any, *given: Any, **named: Any) -> Any:
    if running() is None:
        return type(module).forward(module, *given, **named)
    hidden = given[0] if given else named["query"]  # DistilBERT's
    names = ATTENTIONS[0][:3] if hasattr(module, "query") else ATTENTIONS[1][1:4]
    heads = -1, module.attention_head_size
    q, k, v = (getattr(module, name)(hidden).unflatten(2, heads).transpose(1, 2) for name in names)
    found = attention(module, q, k, v, None, dropout=module.dropout.p * module.training)[0]
    found = found.flatten(2)
    return (module.out_lin(found) if hasattr(module, "out_lin") else found), None


def as_written(layer: nn.Module) -> None:
    """In place, as its class has it."""
    vars(layer).pop("forward", None)


def _forward(layer: Any, hidden: Tensor, *others: Any, **named: Any) -> Any:
    layout: Layout | None = running()
    if layout is None or hidden.device.type != "cpu":
        return type(layer).forward(layer, hidden, *others, **named)
    parts, dropouts, size, is_open, products = layer.fused_parts
    rates = [each.p if each is not None and layer.training else 0.0 for each in dropouts]
    weights = [each for part in parts for each in (part.weight, part.bias)]
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    if kind not in products:
        products[kind] = _Products(weights[:12], kind)
    fixed = products[kind], layout, layer is layout.last, size, rates, [each.eps for each in parts[-2:]]  # fmt: skip
    found = _Layer.apply(hidden, *fixed, *weights)  # type: ignore[no-untyped-call]
    return found if is_open else (found,)


class _Products:
    """What is multiplied, in the type of the products and in memory that stays. Queries, keys and values are one: a product with all takes less than one with each."""

    def __init__(self, weights: Sequence[Tensor], kind: torch.dtype) -> None:
        """weights: and biases, of queries, keys, values and the three others."""
        sizes = [len(each) for each in weights[:6:2]]
        with torch.inference_mode(False):  # an evaluation may come first
            self._joined = [each.new_empty(sum(sizes), *each.shape[1:], dtype=kind) for each in weights[:2]]  # fmt: skip
            self._others = [None if each.dtype == kind else torch.empty_like(each, dtype=kind) for each in weights[6:]]  # fmt: skip
            parts = zip(*(each.split(sizes) for each in self._joined), strict=True)  # type: ignore[no-untyped-call]
            self._written = [each for pair in parts for each in pair]
            self._written += [each for each in self._others if each is not None]

    def read(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """(weight, bias) of all three and of each other, one after the other: what they are now."""
        others = [*zip(weights[6:], self._others, strict=True)]
        given = [*weights[:6], *(each for each, own in others if own is not None)]
        torch._foreach_copy_(self._written, given)
        return [*self._joined, *(each if own is None else own for each, own in others)]


class _Layer(torch.autograd.Function):
    """(1, T, width) to the same; of the last layer whose first tokens alone are read, to (1, examples, width)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, products: _Products, layout: Layout, first: bool, size: int, rates: list[float], eps: list[float], *weights: Tensor) -> Tensor:  # fmt: skip
        x = hidden[0].float()
        shape, (g1, c1, g2, c2) = x.shape[1:], weights[12:]
        with torch.autocast("cpu", enabled=False):
            w, b, wo, bo, wu, bu, wd, bd = products.read(weights[:12])
            kind, num = w.dtype, len(layout.starts) if first else len(x)
            *units, unit1, unit2 = drawn(
                [*layout.shapes_of_weights(first=first), (num, *shape), (num, *shape)],
                [*[rates[0]] * len(layout.masks), *rates[1:]],
            )
            low = x.to(kind)
            rows = torch.addmm(b, low, w.t()).view(-1, size).float()
            found, groups = attended(rows, layout, units, size**-0.5, first=first)
            a = found.to(kind, memory_format=torch.contiguous_format).reshape(num, *shape)
            r1 = _added(x[layout.starts] if first else x, torch.addmm(bo, a, wo.t()), unit1)
            y1, mean1, rstd1 = torch.native_layer_norm(r1, shape, g1, c1, eps[0])
            low1 = y1.to(kind)
            i = torch.addmm(bu, low1, wu.t())
            act = F.gelu(i)
            r2 = _added(y1, torch.addmm(bd, act, wd.t()), unit2)
            y2, mean2, rstd2 = torch.native_layer_norm(r2, shape, g2, c2, eps[1])
        ctx.layout, ctx.first, ctx.size, ctx.kind = layout, first, size, hidden.dtype
        ctx.products = w, wo, wu, wd  # written by each forward: the same until weights are updated
        ctx.save_for_backward(g1, c1, g2, c2, low, a, r1, unit1, mean1, rstd1, low1, i, act, r2, unit2, mean2, rstd2, *groups)  # fmt: skip
        return y2[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        g1, c1, g2, c2, low, a, r1, unit1, mean1, rstd1, low1, i, act, r2, unit2, mean2, rstd2, *groups = ctx.saved_tensors  # fmt: skip
        layout, first, size, kind, shape = ctx.layout, ctx.first, ctx.size, low.dtype, low.shape[1:]
        w, wo, wu, wd = ctx.products
        of_norm = torch.ops.aten.native_layer_norm_backward.default
        with torch.autocast("cpu", enabled=False):
            dr2, dg2, dc2 = of_norm(gradient[0], r2, shape, mean2, rstd2, g2, c2, [True] * 3)
            df = times(dr2, unit2).to(kind)
            di = torch.ops.aten.gelu_backward.default(df.mm(wd), i)
            # before `dr2`, which may be `df`, is added to
            of_up, of_down = _of_weight(di, low1), _of_weight(df, act)
            dr1, dg1, dc1 = of_norm(_plus(dr2, di, wu), r1, shape, mean1, rstd1, g1, c1, [True] * 3)
            dh = times(dr1, unit1).to(kind)
            of_behind = _of_weight(dh, a)
            da = dh.mm(wo).view(-1, size)
            rows = attended_backward(da, groups, layout, size**-0.5, first=first)
            rows = rows.to(kind, memory_format=torch.contiguous_format).reshape(len(low), -1)
            dx = dr1.new_zeros(low.shape).index_copy_(0, layout.starts, dr1) if first else dr1
            of_inputs = zip(*(each.chunk(3) for each in _of_weight(rows, low)), strict=True)
            dx = _plus(dx, rows, w)[None].to(ctx.kind)
        pairs = (*of_inputs, of_behind, of_up, of_down, (dg1, dc1), (dg2, dc2))
        return dx, *[None] * 6, *(each for pair in pairs for each in pair)


def _of_weight(gradient: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and the bias of a product."""
    return gradient.t().mm(given).float(), gradient.sum(0, dtype=torch.float32)


def _added(x: Tensor, h: Tensor, units: Tensor | None) -> Tensor:
    return x + h if units is None else torch.addcmul(x, h, units)


def _plus(total: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """total + gradient @ weight, in the memory of `total`."""
    same = gradient.dtype == total.dtype
    return total.addmm_(gradient, weight) if same else total.add_(gradient.mm(weight))
