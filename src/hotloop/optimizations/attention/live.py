"""Switching a running Hugging Face model to scaled_dot_product_attention."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from hotloop.core.errors import first_line
from hotloop.optimizations.hooks import at_first_call
from hotloop.optimizations.live_report import Report
from hotloop.probe.attach.sites import caller, file_and_line
from hotloop.probe.imports import after_import


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
            why = first_line(error)
    if why is None and model.config._attn_implementation != "sdpa":
        why = "its class does not take another implementation while it runs"
    if why is None:
        report.applied(type(model).__name__)
    else:
        report.refused(f"{type(model).__name__}: {why}")


_CLASSES = ("PreTrainedConfig", "PretrainedConfig")
"""As transformers 5 and 4 call it."""
_NAME = "_attn_implementation"


def watch_configs(report: Report) -> list[str]:
    """The places that ask for `eager`, once they have; what a stored config says is not asked for."""
    asked: list[str] = []

    def imported(module: ModuleType) -> None:
        kind: Any = next(getattr(module, name) for name in _CLASSES if hasattr(module, name))
        _watch(kind, str(Path(module.__file__ or "").parents[1]), asked)

    after_import(
        {"transformers.configuration_utils": imported},
        lambda name, error: report.refused(f"{name}: {type(error).__name__}: {error}"),
    )
    return asked


def _watch(kind: Any, library: str, asked: list[str]) -> None:
    """library: the directory of installed packages; the place is in none of them, nor in Python's own."""
    own = vars(kind)[_NAME]
    from_dict = vars(kind)["from_dict"].__func__
    stored = 0

    def asks(self: Any, value: Any) -> None:
        names = value.values() if isinstance(value, dict) else (value,)
        if "eager" in names and not stored:
            asked.append(
                file_and_line(caller(passing=(library, str(Path(os.__file__).parent), "<string>")))
            )
        own.fset(self, value)

    def reads(cls: Any, /, config_dict: Any, **kwargs: Any) -> Any:
        nonlocal stored
        is_stored = kwargs.get("attn_implementation") is None
        stored += is_stored
        try:
            return from_dict(cls, config_dict, **kwargs)
        finally:
            stored -= is_stored

    setattr(kind, _NAME, property(own.fget, asks))
    functools.update_wrapper(reads, from_dict)
    kind.from_dict = classmethod(reads)
