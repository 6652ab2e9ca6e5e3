"""Variables of the environment that are for debugging left out. `CUDA_LAUNCH_BLOCKING`: not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, live_in
from hotloop.optimizations.source_edit import SourceEdit

VARIABLES = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG")


def _values(census: Census) -> tuple[Any, ...]:
    return (False,) if any(map(census.has_switch, VARIABLES)) else ()


def _observed(census: Census, value: Any) -> bool | None:
    if census.debug_switches is None:
        return None
    return bool(value) == any(map(census.has_switch, VARIABLES))


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return f"run it without {facts.get('variable')}"


DEBUG_ENVIRONMENT = Optimization(
    name="debug_environment",
    summary="The command without CUDA_LAUNCH_BLOCKING and TORCH_DISTRIBUTED_DEBUG=DETAIL, which are for debugging.",
    parity_class="bitwise",
    settings=(False,),
    values_for=_values,
    needs="`CUDA_LAUNCH_BLOCKING` or `TORCH_DISTRIBUTED_DEBUG=DETAIL` in the environment",
    observed=_observed,
    answers=("HL808",),
    source_form="unset CUDA_LAUNCH_BLOCKING TORCH_DISTRIBUTED_DEBUG  # in the shell",
    source_edit=_source_edit,
    live_form=live_in(__name__),
    leaves="a script that sets them itself after it imported torch",
    risks="An error of a kernel is reported at a later line. Ranks whose collectives differ wait for each other instead of failing.",
)
