"""HL306: attention is written out

What it means. Attention is computed as a product, a softmax and another product, each of which writes
the whole matrix of scores to memory. Fused attention never stores it.

Evidence. `attention_fraction`: share of a step in softmax, batched products and masking, seen by
torch's profiler; reported from 0.1. `softmaxes`, `batched_products` per step: at least two products to
a softmax. `attention`: what ran, `plain` (a softmax of scores by heads) or `sdpa:math`, no fused form. Site: the line seen in
forward while it called softmax; else of the function in which most formulas were seen, if that is one.

Gain at most. `1 / (1 - attention_fraction)`: attention that takes no time. Two to four times as fast is
usual, more for long sequences. Scaling and dropout of the scores, which go too, are not counted.

Remedy. `attention`: `torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)`; for
Hugging Face models `from_pretrained(..., attn_implementation="sdpa")`. To test it: the same steps with
both, in turns, and compare the losses.

What can go wrong. Sums are taken in another order. Masks and dropout must be given to it in its own
way. Code that reads the attention weights does not get them.
"""

from __future__ import annotations

from hotloop.core.census import OperatorUse
from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import gain_without
from hotloop.judge.model_lines import attention_line
from hotloop.judge.operations import bare_name, is_batched_product, is_softmax, operations
from hotloop.judge.thresholds import ATTENTION

CODE = "HL306"
TITLE = "Attention is written out"
FUSED = ("flash", "efficient", "cudnn")
WRITTEN_OUT = ("plain", "sdpa:math")


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    seen = operations(measurement)
    if census is None or seen is None:
        return None
    if any(name in kind for kind in census.attention for name in FUSED):
        return None
    if not set(WRITTEN_OUT) & set(census.attention):
        return None  # experts are mixed by a softmax and batched products, too
    softmaxes, products = seen.num(is_softmax), seen.num(is_batched_product)
    share = seen.share(_belongs)
    if not softmaxes or products < 2 * softmaxes or share < ATTENTION:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share),
        site=seen.site(is_softmax) or seen.site(is_batched_product) or attention_line(census),
        evidence={
            "attention_fraction": share,
            "softmaxes": softmaxes,
            "batched_products": products,
            "attention": ", ".join(census.attention) or None,
        },
        optimization="attention",
        advice="Use torch.nn.functional.scaled_dot_product_attention, or attn_implementation='sdpa' "
        "for a Hugging Face model; nn.MultiheadAttention does with need_weights=False.",
    )


def _belongs(use: OperatorUse) -> bool:
    return is_softmax(use) or is_batched_product(use) or bare_name(use) == "masked_fill"
