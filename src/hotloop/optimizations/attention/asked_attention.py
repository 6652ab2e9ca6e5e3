"""The places at which a script asks Hugging Face's library for an implementation of attention. Standard library alone."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.optimizations.callers import caller, place
from hotloop.optimizations.live_report import Report
from hotloop.probe.imports import after_import

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
                place(caller(passing=(library, str(Path(os.__file__).parent), "<string>")))
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
