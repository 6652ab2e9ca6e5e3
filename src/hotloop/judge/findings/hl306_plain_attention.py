"""HL306: attention is written out

What it means. Attention is computed as a product, a softmax and another product, each of which writes
the whole matrix of scores to memory. Fused attention never stores it. Either the model writes it out, or
it calls scaled_dot_product_attention and torch takes its math kernel, which does the same: on a CPU for
dropout in attention, a mask that needs gradients or one without the dimension of heads; on a GPU for
float64, and for masks and head sizes that no fused kernel takes.

Evidence. `attention_fraction`: share of a step in softmax, batched products and masking, seen by
torch's profiler; reported from 0.1. `softmaxes`, `batched_products` per step: at least two products to
a softmax. `attention`: what ran, `plain` (a softmax of scores by heads) or `sdpa:math`, no fused form.
`dropout`: whether the step draws dropout. Site: the line seen in
forward while it called softmax; else of the function in which most formulas were seen, if that is one.

Gain at most. `1 / (1 - attention_fraction)`: attention that takes no time. Two to four times as fast is
usual, more for long sequences. Scaling and dropout of the scores, which go too, are not counted.

Remedy. For `sdpa:math`: no dropout in attention (`attn_pdrop=0` in the config of GPT-2, `attention_dropout=0`
of Llama, `attention_probs_dropout_prob=0` of BERT); dropout elsewhere stays. For `plain`, `attention`: `torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)`; for
Hugging Face models `from_pretrained(..., attn_implementation="sdpa")`. To test it: the same steps with
both, in turns, and compare the losses.

What can go wrong. Sums are taken in another order. Masks and dropout must be given to it in its own
way. Code that reads the attention weights does not get them. Without dropout in attention the training
is another one: compare final results.
"""

from __future__ import annotations

from hotloop.core.census import OperatorUse
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.operations import bare_name, is_batched_product, is_softmax
from hotloop.judge.own_code import attention_line
from hotloop.judge.thresholds import ATTENTION

CALLED = "Attention runs in torch's unfused math kernel"
DROPPING = ("bernoulli", "native_dropout", "_fused_dropout")
"""Operations that draw dropout."""
FUSED = ("flash", "efficient", "cudnn")
WRITTEN_OUT = ("plain", "sdpa:math")


def find(run: JudgedRun) -> Found | None:
    census = run.census
    seen = run.operations
    if seen is None:
        return None
    if any(name in kind for kind in census.attention for name in FUSED):
        return None
    if not set(WRITTEN_OUT) & set(census.attention):
        return None  # experts are mixed by a softmax and batched products, too
    softmaxes, products = seen.num(is_softmax), seen.num(is_batched_product)
    share = seen.share(_belongs)
    if not softmaxes or products < 2 * softmaxes or share < ATTENTION:
        return None
    is_called = "plain" not in census.attention
    drops = seen.num(lambda use: bare_name(use) in DROPPING) > 0
    return Found(
        title=CALLED if is_called else None,
        share=share,
        site=seen.site(is_softmax)
        or seen.site(is_batched_product)
        or attention_line(run.lines("forward")),
        evidence={
            "attention_fraction": share,
            "softmaxes": softmaxes,
            "batched_products": products,
            "attention": ", ".join(census.attention) or None,
            "dropout": "yes" if drops else "no",
        },
        optimization=None if is_called else "attention",
        advice=_advice(is_called, drops, on_cpu=run.on_cpu),
    )


def _advice(is_called: bool, drops: bool, *, on_cpu: bool) -> str:
    if not is_called:
        return (
            "Use torch.nn.functional.scaled_dot_product_attention, or attn_implementation='sdpa' "
            "for a Hugging Face model; nn.MultiheadAttention does with need_weights=False."
        )
    if on_cpu and drops:
        return (
            "The model calls scaled_dot_product_attention, and torch's fused kernel for CPUs takes no dropout: "
            "set that of attention to 0 (attn_pdrop in GPT-2's config, attention_dropout in Llama's, "
            "attention_probs_dropout_prob in BERT's); dropout elsewhere may stay."
        )
    masks = "a mask that needs gradients or lacks the dimension of heads"
    why = masks if on_cpu else "float64, or a mask or head size that no fused kernel takes"
    return f"The model calls scaled_dot_product_attention; what keeps torch from its fused kernels is {why}."


def _belongs(use: OperatorUse) -> bool:
    return is_softmax(use) or is_batched_product(use) or bare_name(use) == "masked_fill"
