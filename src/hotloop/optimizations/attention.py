"""How attention is computed: torch's fused kernel, or written out for the compiler to fuse.

Which is faster depends on the device, the context and the compiler. On CPUs with bf16 products the
written-out product under the compiler wins, block by block of queries so that keys of the future are
left out: forward and backward of one layer took 0.5 of the fused kernel's time at a context of 256 and
512, 0.7 at 1024. Eager, it writes every score to memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Choice, Optimization

if TYPE_CHECKING:
    from torch import nn

    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine
    from hotloop.optimizations.live import Report

LONGEST_PLAIN_CONTEXT = 1024
"""Above this it is not measured; memory grows with the square of the context."""


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if not config["train.compile"]:
        return Choice("sdpa", "without the compiler the written-out product is slower")
    if machine.device_type == "cpu" and config["model.context"] <= LONGEST_PLAIN_CONTEXT:
        return Choice("plain", "the compiler fuses it on a CPU at this context")
    return Choice("sdpa", "the fused kernel is the safer choice here; not measured")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    return None


def _observed(census: Census, value: Any) -> bool | None:
    return (
        any(name.split(":")[0] == value for name in census.attention) if census.attention else None
    )


def _values(census: Census) -> tuple[Any, ...]:
    """Only where a model of Hugging Face's library wrote it out: attention of others is not rewritten."""
    if census.attention and "plain" not in census.attention:
        return ()
    inside = (line.inside or "" for line in census.lines if line.phase == "forward")
    return ("sdpa",) if any(name.startswith("transformers.") for name in inside) else ()


def _live(value: Any, report: Report) -> None:
    """Models of Hugging Face's library that came to written-out attention without the script's doing."""
    from hotloop.optimizations.asked_attention import watch_configs
    from hotloop.optimizations.outermost import around_training_calls

    if value != "sdpa":
        report.refused("attention is not written out for the compiler in a running script")
        return
    asked = watch_configs(report)
    seen: set[int] = set()

    def around(call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if id(module) not in seen:
            seen.add(id(module))
            _switch(module, asked, report)
        return call(*args, **kwargs)

    around_training_calls(around)


def _switch(module: nn.Module, asked: list[str], report: Report) -> None:
    name = type(module).__name__
    model: Any = next((x for x in module.modules() if hasattr(x, "set_attn_implementation")), None)
    if model is None:
        report.refused(
            f"{name} is no model of Hugging Face's library, and its own attention is not rewritten: write "
            "torch.nn.functional.scaled_dot_product_attention"
        )
        return
    now = model.config._attn_implementation
    why = None
    if now != "eager":
        why = f"it computes attention by {now} already"
    elif asked:
        why = f"the script asks for eager attention at {asked[0]}: write attn_implementation='sdpa' there"
    elif getattr(model.config, "output_attentions", False):
        why = "the script asks for the attention weights, which sdpa does not give"
    if why is None:
        try:
            model.set_attn_implementation("sdpa")
        except (ValueError, ImportError) as error:
            why = str(error).splitlines()[0]
    if why is None and model.config._attn_implementation != "sdpa":
        why = "its class does not take another implementation while it runs"
    if why is None:
        report.applied(type(model).__name__)
    else:
        report.refused(f"{type(model).__name__}: {why}")


ATTENTION = Optimization(
    name="attention",
    summary="Attention by scaled_dot_product_attention, or written out for the compiler to fuse.",
    parity_class="reduction_order",
    key="train.attention",
    off="sdpa",
    settings=("plain", "sdpa"),
    choose=_choose,
    why_not=_why_not,
    observed=_observed,
    answers=("HL306",),
    source_form=(
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        'AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")  # Hugging Face\n'
        "scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # plain: mask, softmax, @ v, in torch.compile"
    ),
    values_for=_values,
    live_form=_live,
    conflicts=("plain needs compile: eager, it is slower than sdpa",),
    risks=(
        "Written out, memory grows with the square of the context. With sdpa nobody gets the attention "
        "weights, and dropout inside it draws other random numbers."
    ),
)
