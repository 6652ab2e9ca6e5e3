"""How attention is computed: torch's fused kernel, or written out for the compiler to fuse.

Which is faster depends on the device, the context and the compiler. On CPUs with bf16 products the
written-out product under the compiler wins, block by block of queries so that keys of the future are
left out: forward and backward of one layer took 0.5 of the fused kernel's time at a context of 256 and
512, 0.7 at 1024. Eager, it writes every score to memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization, live_in

LONGEST_PLAIN_CONTEXT = 1024
"""Above this it is not measured; memory grows with the square of the context."""


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if not config["train.compile"]:
        return Choice("sdpa", "without the compiler the written-out product is slower")
    if machine.device_type == "cpu" and config["model.context"] <= LONGEST_PLAIN_CONTEXT:
        return Choice("plain", "the compiler fuses it on a CPU at this context")
    return Choice("sdpa", "the fused kernel is the safer choice here; not measured")


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
    after=("compile",),
    settings=("plain", "sdpa"),
    choose=_choose,
    observed=lambda census, value: (
        any(name.split(":")[0] == value for name in census.attention) if census.attention else None
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
    live_form=live_in(__name__),
    conflicts=("plain needs compile: eager, it is slower than sdpa",),
    risks=(
        "Written out, memory grows with the square of the context. With sdpa nobody gets the attention "
        "weights, and dropout inside it draws other random numbers."
    ),
)
