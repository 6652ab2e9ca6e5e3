"""Which kernel computes attention in the training steps, and what of a block is kept where it is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import create_selective_checkpoint_contexts

PINNED = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Kernels of scaled_dot_product_attention, by the name in `train.attention`."""
NO_KERNEL = ("No viable backend for scaled_dot_product_attention", "No available kernel")
"""What torch says, of a CPU or a GPU, where the one it is held to cannot do what is asked for."""


def pinned(kernel: SDPBackend | None) -> AbstractContextManager[object]:
    """Within it scaled_dot_product_attention takes this kernel; `None`: what torch chooses."""
    return nullcontext() if kernel is None else sdpa_kernel(kernel)


class CausalFlex(nn.Module):
    """FlexAttention over a causal mask, whose blocks in the future are passed over."""

    def __init__(self, context: int) -> None:
        from torch.nn.attention.flex_attention import create_block_mask  # loads the compiler

        super().__init__()
        self.mask = create_block_mask(_causal, None, None, context, context, device="cpu")

    def _apply(self, fn: Any, recurse: bool = True) -> CausalFlex:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.mask = self.mask.to(fn(torch.empty(0)).device)
        return self

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, heads, T, head_width), T being the context; k and v may have fewer heads."""
        from torch.nn.attention.flex_attention import flex_attention

        # Below 128 queries torch would take its kernel for decoding, which has no block that fits where heads share keys.
        mixed: Tensor = flex_attention(q, k, v, block_mask=self.mask, enable_gqa=q.shape[1] > k.shape[1], kernel_options={"BACKEND": "TRITON"})  # fmt: skip
        return mixed


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


_PRODUCTS = (
    "mm",
    "addmm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


def _kept() -> Sequence[Any]:
    """Not the scores of attention that is written out, which are products as well: they take the most memory."""
    return [getattr(torch.ops.aten, name).default for name in _PRODUCTS]


keeping_products = partial(create_selective_checkpoint_contexts, _kept())
"""For `checkpoint(context_fn=...)`: what takes long to compute is kept, as torchtitan does."""
