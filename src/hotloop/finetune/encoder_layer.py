"""The layers of BERT or one of its relatives as a single step of autograd, on a CPU.

Of a small model and a few texts calling an operation often takes longer than computing it, and a layer of transformers has
modules, autocast and autograd around each. What is computed here is the same, and so is its precision: products in the type
of autocast, all else in fp32.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
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
HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
TOGETHER_BYTES = 64 << 20
"""Weights of layers that are one step of autograd, at most: their gradients are in memory together, beside those that they are added to."""
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
    along: list[Any] = []
    for layer in stack:
        size = sum(p.nbytes for p in layer.parameters())
        if (found := parts_of(layer)) is None or (len(along) + 1) * size > TOGETHER_BYTES:
            along = []
        if found is not None:
            along.append(layer)
            layer.fused_parts, layer.fused_along = (*found, _is_open(layer), {}), along
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


def narrow_gradients(model: nn.Module) -> None:
    """From now on, in place: of weights that fused layers multiply, in the type of the products, which they have been rounded to."""
    for layer in model.modules():
        if "fused_parts" in vars(layer) and "forward" in vars(layer):
            for part in layer.fused_parts[0][:6]:  # type: ignore[index]
                part.weight.grad_dtype = torch.bfloat16


def as_written(layer: nn.Module) -> None:
    """In place, as its class has it."""
    vars(layer).pop("forward", None)


def _forward(layer: Any, hidden: Tensor, *others: Any, **named: Any) -> Any:
    """With those that follow, which then give back what they are given."""
    layout: Layout | None = running()
    if layout is None or hidden.device.type != "cpu":
        return type(layer).forward(layer, hidden, *others, **named)
    layers, made = layout.computed
    if layer not in layers[1:]:
        is_cast = torch.is_autocast_enabled("cpu")
        kind = torch.get_autocast_dtype("cpu") if is_cast else torch.float32
        layers = [*_together(layer)]
        each = [_given(one, kind, layout) for one in layers]
        fixed = layout, [fixed for _, fixed in each], torch.is_grad_enabled()
        weights = (weight for own, _ in each for weight in own)
        hidden = _Layers.apply(hidden, *fixed, *weights)  # type: ignore[no-untyped-call]
    elif hidden is not made:
        raise RuntimeError(
            "something between the layers of this encoder changes what they are given"
        )
    # held no longer than it is asked for: its graph holds the layout
    layout.computed = ((), None) if layer is layers[-1] else (layers, hidden)
    return hidden if layer.fused_parts[3] else (hidden,)


def _together(layer: Any) -> Iterator[Any]:
    """It, and those behind it up to one that somebody looks at or computes in another way."""
    along = layer.fused_along
    yield (last := layer)
    for each in along[along.index(layer) + 1 :]:
        is_own = getattr(vars(each).get("forward"), "__func__", None) is _forward
        if not is_own or any(getattr(one, name) for one in (last, each) for name in HOOKS):
            return
        yield (last := each)


def _given(layer: Any, kind: torch.dtype, layout: Layout) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Its 16 weights, and the rest of what it is computed with."""
    parts, dropouts, size, _, products = layer.fused_parts
    rates = [each.p if each is not None and layer.training else 0.0 for each in dropouts]
    weights = [each for part in parts for each in (part.weight, part.bias)]
    if kind not in products:
        products[kind] = _Products(weights[:12], kind)
    eps, of_gradients = [each.eps for each in parts[-2:]], weights[0].grad_dtype
    return weights, (products[kind], layer is layout.last, size, rates, eps, of_gradients)


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


class _Layers(torch.autograd.Function):
    """(1, T, width) to the same; of the last layer whose first tokens alone are read, to (1, examples, width)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, layout: Layout, each: Sequence[tuple[Any, ...]], learns: bool, *weights: Tensor) -> Tensor:  # fmt: skip
        x, ctx.layout, ctx.kind, ctx.kept = hidden[0].float(), layout, hidden.dtype, []
        own = [weights[first : first + 16] for first in range(0, len(weights), 16)]
        ctx.save_for_backward(*(weight for group in own for weight in group[12:]))
        units, needed = _drawn(x, layout, each), ctx.needs_input_grad
        with torch.autocast("cpu", enabled=False):
            for number, (given, fixed, dropped) in enumerate(zip(own, each, units, strict=True)):
                x, kept = _layer(x, layout, given, fixed, dropped)
                # nothing of layers below the first that is trained
                if learns and (needed[0] or any(needed[4 : 20 + 16 * number])):
                    ctx.kept.append((fixed, kept))
                del kept  # before the next layer needs memory
        return x[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        norms, found, kept, ctx.kept = ctx.saved_tensors, list[Tensor | None](), ctx.kept, None
        if kept is None:
            raise RuntimeError("these layers keep nothing for a second backward")
        number, d = len(norms) // 4, gradient[0]
        with torch.autocast("cpu", enabled=False):
            while kept:
                number -= 1
                own = norms[4 * number : 4 * number + 4]
                d, gradients = _layer_backward(d, ctx.layout, own, *kept.pop())
                found = gradients + found
        return d[None].to(ctx.kind), *[None] * (3 + 16 * number), *found


def _drawn(x: Tensor, layout: Layout, each: Sequence[tuple[Any, ...]]) -> list[list[Tensor | None]]:
    """By what dropout multiplies the weights of attention of each group, and what comes behind attention and behind all, of each layer."""
    shapes, rates = list[tuple[int, ...]](), list[float]()
    num = len(x)
    for _, first, _, (inside, *behind), *_ in each:
        num = len(layout.starts) if first else num
        shapes += [*layout.shapes_of_weights(first=first), *[(num, x.shape[1])] * 2]
        rates += [*[inside] * len(layout.masks), *behind]
    units = drawn(shapes, rates)
    size = len(layout.masks) + 2
    return [units[first : first + size] for first in range(0, len(units), size)]


def _layer(x: Tensor, layout: Layout, weights: Sequence[Tensor], fixed: tuple[Any, ...], dropped: Sequence[Tensor | None]) -> tuple[Tensor, tuple[Any, ...]]:  # fmt: skip
    """(T, width) to the same, or to (examples, width); and what `_layer_backward` takes."""
    products, first, size, _, eps, _ = fixed
    shape, (g1, c1, g2, c2) = x.shape[1:], weights[12:]
    w, b, wo, bo, wu, bu, wd, bd = products.read(weights[:12])
    kind, (*units, unit1, unit2) = w.dtype, dropped
    num = len(layout.starts) if first else len(x)
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
    # the copies of weights are written by each forward: the same until weights are updated
    return y2, (w, wo, wu, wd, low, a, r1, unit1, mean1, rstd1, low1, i, act, r2, unit2, mean2, rstd2, groups)  # fmt: skip


def _layer_backward(gradient: Tensor, layout: Layout, norms: Sequence[Tensor], fixed: tuple[Any, ...], kept: tuple[Any, ...]) -> tuple[Tensor, list[Tensor | None]]:  # fmt: skip
    """The gradient of its input, and those of its 16 weights."""
    w, wo, wu, wd, low, a, r1, unit1, mean1, rstd1, low1, i, act, r2, unit2, mean2, rstd2, groups = kept  # fmt: skip
    (g1, c1, g2, c2), (_, first, size, *_, narrow) = norms, fixed
    kind, shape = low.dtype, low.shape[1:]
    of_norm = torch.ops.aten.native_layer_norm_backward.default
    dr2, dg2, dc2 = of_norm(gradient, r2, shape, mean2, rstd2, g2, c2, [True] * 3)
    df = times(dr2, unit2).to(kind)
    di = torch.ops.aten.gelu_backward.default(df.mm(wd), i)
    # before `dr2`, which may be `df`, is added to
    of_up, of_down = _of_weight(di, low1, narrow), _of_weight(df, act, narrow)
    dr1, dg1, dc1 = of_norm(_plus(dr2, di, wu), r1, shape, mean1, rstd1, g1, c1, [True] * 3)
    dh = times(dr1, unit1).to(kind)
    of_behind = _of_weight(dh, a, narrow)
    da = dh.mm(wo).view(-1, size)
    rows = attended_backward(da, groups, layout, size**-0.5, first=first)
    rows = rows.to(kind, memory_format=torch.contiguous_format).reshape(len(low), -1)
    dx = dr1.new_zeros(low.shape).index_copy_(0, layout.starts, dr1) if first else dr1
    of_inputs = zip(*(each.chunk(3) for each in _of_weight(rows, low, narrow)), strict=True)
    pairs = (*of_inputs, of_behind, of_up, of_down, (dg1, dc1), (dg2, dc2))
    return _plus(dx, rows, w), [each for pair in pairs for each in pair]


def _of_weight(gradient: Tensor, given: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gradients of the weight, in that type, and of the bias of a product."""
    return gradient.t().mm(given).to(kind), gradient.sum(0, dtype=torch.float32)


def _added(x: Tensor, h: Tensor, units: Tensor | None) -> Tensor:
    return x + h if units is None else torch.addcmul(x, h, units)


def _plus(total: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """total + gradient @ weight, in the memory of `total`."""
    same = gradient.dtype == total.dtype
    return total.addmm_(gradient, weight) if same else total.add_(gradient.mm(weight))
