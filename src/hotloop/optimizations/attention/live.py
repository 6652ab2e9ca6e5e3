"""Switching a running Hugging Face model to scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

from torch import nn

from hotloop.optimizations.attention.asked_attention import watch_configs
from hotloop.optimizations.live_report import Report
from hotloop.optimizations.outermost import at_first_call


def apply(value: Any, report: Report) -> None:
    """Models of Hugging Face's library that came to written-out attention without the script's doing."""
    if value != "sdpa":
        report.refused("attention is not written out for the compiler in a running script")
        return
    asked = watch_configs(report)
    at_first_call(lambda module: _switch(module, asked, report))


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
