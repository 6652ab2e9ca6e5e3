"""Autograd's anomaly detection off: no stack of Python is written down for each operation, no gradient searched for NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.source_edit import Keywords, SourceEdit


def _observed(census: Census, value: Any) -> bool | None:
    if "operators" not in census.seen:
        return None
    return bool(value) == any(each.name == "aten::_is_any_true" for each in census.operators)


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    if facts.get("called") != "set_detect_anomaly":
        return "`detect_anomaly()` cannot be told to do nothing: take the block out of its `with`"
    return Keywords("torch.autograd", ("set_detect_anomaly",), {"mode": repr(value)}, {"mode": 0})


ANOMALY_MODE = Optimization(
    name="anomaly_mode",
    summary="Autograd's anomaly detection, which is for debugging, turned off.",
    parity_class="bitwise",
    settings=(False,),
    argument="mode",
    observed=_observed,
    answers=("HL807",),
    source_form="torch.autograd.set_detect_anomaly(False)",
    source_edit=_source_edit,
    leaves="a script that calls `torch.set_anomaly_enabled` itself",
    risks="A gradient that becomes NaN no longer raises an error at its operation: the training goes on with it.",
)
