"""GPUs through NVML, where nvidia-ml-py (`pynvml`) is installed and a driver is there.

Run on an H100. Written against nvidia-ml-py 13.615.71 and tested with a stand-in of the same
functions: memory in bytes, power in milliwatts, clocks in MHz, utilization in percent.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from hotloop.core.errors import pip_install
from hotloop.core.telemetry import GpuSample

THROTTLE_REASONS = {
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x020: "thermal_slowdown",
    0x040: "hardware_thermal_slowdown",
    0x080: "power_brake",
}
"""Bits of nvmlClocksEventReasons. Idle, clocks set by a user, sync boost and display are no throttling."""


class Gpus:
    """Every GPU of the machine. `why_none` says why there are none."""

    def __init__(self) -> None:
        self.why_none: str | None = None
        self._nvml: Any = None
        self._handles: list[tuple[int, Any, str | None, str | None]] = []
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            self.why_none = f"nvidia-ml-py is not installed: {pip_install('gpu')}"
            return
        try:
            nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - NVMLError, or what loading the library raises
            self.why_none = f"NVML: {error}"
            return
        self._nvml = nvml
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                name = _ask(nvml.nvmlDeviceGetName, handle)
                uuid = _ask(nvml.nvmlDeviceGetUUID, handle)
                self._handles.append((index, handle, name, uuid))
        except Exception as error:  # noqa: BLE001 - a GPU that fell off the bus must not stop a run
            self.why_none = f"NVML: {error}"

    def sample(self) -> tuple[GpuSample, ...]:
        """One reading of each; a value that a GPU refuses is `None`."""
        return tuple(self._one(*each) for each in self._handles)

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, []

    def _one(self, index: int, handle: Any, name: str | None, uuid: str | None) -> GpuSample:
        nvml = self._nvml
        memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        busy = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = _ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = _ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        reasons = self._reasons(handle)
        return GpuSample(
            index=index,
            name=name,
            uuid=uuid,
            busy_fraction=None if busy is None else busy.gpu / 100,
            memory_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            sm_clock_mhz=_ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            temperature_c=_ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            throttled_by=tuple(why for bit, why in THROTTLE_REASONS.items() if reasons & bit),
        )

    def _reasons(self, handle: Any) -> int:
        """Under its new name, or the one that drivers before 535 know."""
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            question = getattr(self._nvml, name, None)
            found = None if question is None else _ask(question, handle)
            if found is not None:
                return int(found)
        return 0


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except Exception:  # noqa: BLE001 - NVMLError_NotSupported and its kin: not told
        return None
