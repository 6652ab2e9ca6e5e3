"""Settings for debugging that were on while a script trained, and the lines that turned them on."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.autograd import profiler

from hotloop.core.census import DebugSwitch
from hotloop.probe import entry
from hotloop.probe.attach.sites import Place, caller
from hotloop.probe.attach.watch import Watch

PROFILED = 0.5
"""Share of the counted steps from which on a profiler counts as left on: one with a schedule is on in a few."""


class DebugSwitches:
    """What is on at the end, and where the script turned it on."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._places: dict[str, Place | None] = {}
        self._looks = self._profiled = 0

    def install(self) -> None:
        cudnn = vars(type(torch.backends.cudnn))
        for owner, name, switch in (
            (torch, "use_deterministic_algorithms", "use_deterministic_algorithms"),
            (torch, "set_deterministic_debug_mode", "use_deterministic_algorithms"),
            (cudnn["deterministic"], "setter", "cudnn.deterministic"),
            (profiler.profile, "__init__", "profiler"),
            (profiler.emit_nvtx, "__init__", "profiler"),
        ):
            entry.around_call(owner, name, self._placed(switch))

    def at_boundary(self) -> None:
        """One of some steps ends."""
        if self._watch.counting:
            self._looks += 1
            self._profiled += torch._C._autograd._profiler_enabled()

    def clear(self) -> None:
        """What was taken for steps was none."""
        self._looks = self._profiled = 0

    def used(self) -> tuple[DebugSwitch, ...]:
        """Those that are on, whatever device trains."""
        distributed: Any = torch.distributed
        deterministic = torch.are_deterministic_algorithms_enabled()
        detail = (
            distributed.is_available()
            and distributed.get_debug_level() == distributed.DebugLevel.DETAIL
        )
        on = {
            "CUDA_LAUNCH_BLOCKING": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
            "TORCH_DISTRIBUTED_DEBUG": detail,
            "fill_uninitialized_memory": deterministic
            and torch._C._get_deterministic_fill_uninitialized_memory(),
            "use_deterministic_algorithms": deterministic,
            "cudnn.deterministic": torch.backends.cudnn.deterministic,
            "profiler": self._profiled > PROFILED * self._looks,
        }
        return tuple(DebugSwitch(name, self._site(name)) for name, is_on in on.items() if is_on)

    def _placed(self, switch: str) -> entry.Around:
        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            if self._watch.active:
                self._places[switch] = self._watch.sites.place(caller())
            return original(*args, **kwargs)

        return around

    def _site(self, switch: str) -> str | None:
        if switch == "fill_uninitialized_memory":
            switch = "use_deterministic_algorithms"
        return self._watch.sites.name(self._places.get(switch))
