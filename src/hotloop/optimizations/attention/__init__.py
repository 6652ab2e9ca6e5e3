"""How attention is computed: torch's fused kernel, or written out for the compiler to fuse.

Which is faster depends on the device, the context and the compiler. On CPUs with bf16 products the
written-out product under the compiler wins, block by block of queries so that keys of the future are
left out: forward and backward of one layer took 0.5 of the fused kernel's time at a context of 256 and
512, 0.7 at 1024. Eager, it writes every score to memory.

hotloop's trainer can hold torch's function to one of its kernels (`sdpa_backend` has that for scripts), or take
FlexAttention, compiled with a causal mask of blocks. All learnt the same on an H100, torch 2.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization

LONGEST_PLAIN_CONTEXT = 1024
"""Above this it is not measured; memory grows with the square of the context."""


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if not config["train.compile"]:
        return Choice("sdpa", "without the compiler the written-out product is slower")
    if machine.device_type == "cpu" and config["model.context"] <= LONGEST_PLAIN_CONTEXT:
        return Choice("plain", "the compiler fuses it on a CPU at this context")
    return Choice("sdpa", "the fused kernel is the safer choice here; not measured")


LEAST_FLEX_WIDTH = 16
KERNELS = ("flash", "efficient", "cudnn", "math")
"""Of scaled_dot_product_attention."""


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    """As far as the conditions of torch's `sdp_utils` are known without asking it: the rest it says when a run begins."""
    if value in ("sdpa", "plain", "math"):
        return None
    on_cpu = machine.device_type == "cpu"
    drops, masks = config["model.dropout"], _masks_documents(config)
    if on_cpu and value != "flash":
        there = "this is a kernel of GPUs; a CPU has flash and math"
        return there if value in KERNELS else "FlexAttention has no backward on a CPU"
    if value == "flex":
        if not config["train.compile"]:
            return "uncompiled, FlexAttention writes out all scores"
        if config["model.width"] // config["model.heads"] < LEAST_FLEX_WIDTH:
            return f"FlexAttention takes heads of {LEAST_FLEX_WIDTH} channels or more"
        return "FlexAttention drops nothing: `model.dropout` is above 0" if drops else _of(masks)
    if on_cpu:
        return "torch's flash kernel for CPUs takes no dropout" if drops else None
    if value == "efficient":
        return None
    if config["train.precision"] not in ("bf16", "fp16"):
        return "on a GPU this kernel computes in bf16 or fp16 alone"
    if "bfloat16" not in machine.fast_dtypes:
        return "this kernel needs a GPU that computes bf16 (compute capability 8.0)"
    return _of(masks) if value == "flash" else None


def _of(masks: bool) -> str | None:
    return "it takes no mask of documents (`data.document_mask`)" if masks else None


def _masks_documents(config: Mapping[str, Any]) -> bool:
    """Or rows of other lengths than the context, as buckets have them."""
    layout, masks = config["data.layout"], config["data.document_mask"]
    return layout == "bucket" or (layout == "pack" if masks is None else bool(masks))


def _values(census: Census) -> tuple[Any, ...]:
    """Only where a model of Hugging Face's library wrote it out: attention of others is not rewritten."""
    if census.attention and "plain" not in census.attention:
        return ()
    inside = (line.inside or "" for line in census.lines if line.phase == "forward")
    return ("sdpa",) if any(name.startswith("transformers.") for name in inside) else ()


ATTENTION = Optimization(
    name="attention",
    summary="Attention by scaled_dot_product_attention, or written out for the compiler to fuse.",
    parity_class="reduction_order",
    key="train.attention",
    off="sdpa",
    after=("compile", "precision"),
    settings=("plain", "sdpa"),
    trainer_settings=(*KERNELS, "flex"),
    # A CPU's flash kernel is what `sdpa` takes there, and the math kernel is torch's last resort.
    is_worth_trying=lambda machine, value: machine.device_type == "cuda" and value != "math",
    choose=_choose,
    why_not=_why_not,
    # Of the math kernel torch shows what it is made of.
    observed=lambda census, value: (
        any({"math": "plain"}.get(value, value) in name.split(":") for name in census.attention)
        if census.attention
        else None
    ),
    answers=("HL306",),
    source_form=(
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        'AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")  # Hugging Face\n'
        "scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # plain: mask, softmax, @ v, in torch.compile"
    ),
    values_for=_values,
    needs="a model of `transformers` that writes its attention out",
    leaves=(
        "a script that asks for `eager` or for the attention weights; a model without an sdpa form; attention that the "
        "script wrote itself"
    ),
    conflicts=("plain and flex need compile: eager, plain is slower than sdpa",),
    risks=(
        "Written out, memory grows with the square of the context. With sdpa nobody gets the attention "
        "weights, and dropout inside it draws other random numbers."
    ),
)
