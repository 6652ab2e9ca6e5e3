"""The parts a block is made of, each a function of its shape: norms, rotary turns, feed-forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotloop.models.shape import DecoderShape


def make_norm(shape: DecoderShape, width: int | None = None) -> nn.Module:
    """Over the last dimension, `width` of them (the residual stream's when not given).

    RMSNorm after Zhang and Sennrich 2019.
    """
    width = width or shape.width
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=shape.norm_epsilon)
    return nn.LayerNorm(width, eps=shape.norm_epsilon, bias=shape.bias)


def activate(mlp: str, up: Tensor, gate: Tensor | None) -> Tensor:
    """What stands between the matrices of the feed-forward part.

    gelu: GPT-2's tanh form. relu2: relu squared, So et al. 2021. swiglu: silu(gate) * up, Shazeer 2020.
    """
    match mlp:
        case "gelu":
            return F.gelu(up, approximate="tanh")
        case "relu2":
            return F.relu(up).square()
        case _:
            assert gate is not None
            return F.silu(gate) * up


def rotary_table(shape: DecoderShape) -> Tensor:
    """Cosines and sines, (2, context, head_width) in fp32: position times wavelength, both halves alike.

    Su et al. 2021, in the half-split order of `transformers`: channel i turns with i + head_width / 2.
    """
    half = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(
        torch.arange(shape.context, dtype=torch.float32), 1.0 / shape.rotary_theta**half
    )
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))


def turn(x: Tensor, table: Tensor) -> Tensor:
    """Queries or keys (B, heads, T, head_width), turned by their position; computed in fp32.

    `table` is `rotary_table` cut to T. Returns fp32: in bf16 the angles of far positions blur.
    """
    cos, sin = table
    x = x.float()
    left, right = x.chunk(2, dim=-1)
    turned: Tensor = x * cos + torch.cat((-right, left), dim=-1) * sin
    return turned
