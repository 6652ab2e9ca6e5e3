"""Memory of GPUs that are not here, as their makers' data sheets have it. What a driver keeps of it is not known."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.core.errors import UsageError
from hotloop.hardware.environment import fast_on_cuda
from hotloop.hardware.limits import Machine, default_threads


@dataclass(frozen=True, slots=True)
class Gpu:
    memory_bytes: int
    capability: tuple[int, int]
    """Compute capability, of NVIDIA's table of CUDA GPUs."""


_GB = 10**9
GPUS = {
    "T4": Gpu(16 * _GB, (7, 5)),
    "V100-16GB": Gpu(16 * _GB, (7, 0)),
    "V100-32GB": Gpu(32 * _GB, (7, 0)),
    "A10": Gpu(24 * _GB, (8, 6)),
    "A100-40GB": Gpu(40 * _GB, (8, 0)),
    "A100-80GB": Gpu(80 * _GB, (8, 0)),
    "L4": Gpu(24 * _GB, (8, 9)),
    "L40S": Gpu(48 * _GB, (8, 9)),
    "RTX 4090": Gpu(24 * _GB, (8, 9)),
    "H100-80GB": Gpu(80 * _GB, (9, 0)),
    "H100-NVL": Gpu(94 * _GB, (9, 0)),
    "H200": Gpu(141 * _GB, (9, 0)),
}
"""By the name and, where there are several, the size on NVIDIA's data sheet of it."""


def known_gpu(name: str) -> Gpu:
    """Whatever its case. Raises `UsageError` for a name that is not listed."""
    found = {each.casefold(): gpu for each, gpu in GPUS.items()}.get(name.casefold())
    if found is None:
        do = f"one of {', '.join(GPUS)}; or give --memory SIZE with one of them"
        raise UsageError(f"the memory of {name!r} is not known", where="--device", do=do)
    return found


def machine_with(gpu: Gpu) -> Machine:
    """What `auto` is resolved for there: a machine that can compile."""
    return Machine("cuda", fast_on_cuda(gpu.capability), None, default_threads())
