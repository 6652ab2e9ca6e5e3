"""What this machine can do at best, measured in seconds.

A ceiling is a maximum and other processes only ever lower a rate, so each is the best of many short
repetitions, spread over the whole measurement: a neighbour's burst cannot cover them all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from hotloop.core.ceilings import Ceilings, MatmulCeiling
from hotloop.core.measurement import Environment
from hotloop.core.progress import Progress, silent
from hotloop.hardware.device import fast_dtypes
from hotloop.hardware.environment import fastest_first

Shape = tuple[int, int, int]
"""m, k, n."""

CPU_SHAPES: tuple[Shape, ...] = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 384, 1536),
    (2048, 1536, 384),
    (2048, 384, 8192),
    (2048, 2048, 2048),
)
"""Square, and those of a small decoder: up, down and vocabulary. Smallest first."""
GPU_SHAPES: tuple[Shape, ...] = (
    (2048, 384, 1536),
    (4096, 4096, 4096),
    (16384, 768, 3072),
    (16384, 3072, 768),
    (16384, 768, 50304),
    (8192, 8192, 8192),
)
MATMUL_S = 4.0
"""Seconds for all matrix products."""
TURN_S = 0.03
"""How long a product is repeated before the next one's turn: short ones get as much time as long ones."""
GPU_BLOCK_S = 2e-3
"""Products are queued until a timed block lasts about this: one alone is near the clock's grain."""


def measure_ceilings(
    environment: Environment,
    device: torch.device,
    *,
    num_threads: int,
    progress: Progress = silent,
    matmul_s: float = MATMUL_S,
) -> Ceilings:
    """Measure everything, in about the seconds given.

    torch's number of threads is set for the measurement and put back. What cannot be measured is
    named in `not_measured` with the reason.
    """
    missing: dict[str, str] = {}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        progress("measuring this machine", 0, 1, "matrix products")
        matmul = _matmul(device, fast_dtypes(device), matmul_s, missing)
    finally:
        torch.set_num_threads(threads_before)
    progress("measuring this machine", 1, 1, "")
    return Ceilings(
        device=environment.device,
        cpu_model=environment.cpu_model,
        cpu_quota=environment.cpu_quota,
        num_threads=num_threads,
        torch=environment.torch or "",
        matmul=matmul,
        not_measured=missing,
    )


@dataclass(frozen=True, slots=True)
class _Product:
    """One dtype and shape, ready to be timed again and again."""

    dtype: str
    shape: Shape
    seconds: Callable[[], float]
    runs: list[float] = field(default_factory=list)
    """Seconds of each that counts."""

    @property
    def flops(self) -> float:
        m, k, n = self.shape
        return 2.0 * m * k * n

    @property
    def best_flops_per_s(self) -> float:
        return self.flops / min(self.runs)


def _matmul(
    device: torch.device, native: tuple[str, ...], budget_s: float, missing: dict[str, str]
) -> tuple[MatmulCeiling, ...]:
    """Rounds over all dtypes and shapes until the time is up; each product at least twice.

    A product whose dtype was so slow on smaller shapes that it would take the whole budget is left
    out: an emulated dtype may need a hundred times longer.
    """
    names = ["float32", "bfloat16", "float16"]
    if device.type == "cuda" and "tf32" in native:
        names.append("tf32")
    shapes = GPU_SHAPES if device.type == "cuda" else CPU_SHAPES
    products: list[_Product] = []
    for name in names:
        best = 0.0
        for shape in shapes:
            m, k, n = shape
            if best and 2.0 * m * k * n / best > budget_s / 40:
                continue
            try:
                product = _product(name, shape, device)
                product.seconds()  # the first pays for kernels and pages
                product.runs.append(product.seconds())
            except (RuntimeError, NotImplementedError) as error:
                missing.setdefault(name, str(error).split("\n")[0])
                break
            best = max(best, product.best_flops_per_s)
            products.append(product)
        if best:
            missing.pop(name, None)
    # Emulated dtypes have been timed; the rounds are for those that a run would use.
    rounds = [p for p in products if p.dtype in native]
    until = time.perf_counter() + budget_s
    while rounds and time.perf_counter() < until:
        for product in rounds:
            turn = min(time.perf_counter() + TURN_S, until)
            while time.perf_counter() < turn:
                product.runs.append(product.seconds())
    of_dtype = {name: [p for p in products if p.dtype == name] for name in names}
    return fastest_first(_ceiling(each, native) for each in of_dtype.values() if each)


def _ceiling(products: list[_Product], native: tuple[str, ...]) -> MatmulCeiling:
    """The fastest of a dtype's products."""
    best = max(products, key=lambda each: each.best_flops_per_s)
    return MatmulCeiling(
        dtype=best.dtype,
        flops_per_s=best.best_flops_per_s,
        shape=best.shape,
        median_flops_per_s=best.flops / statistics.median(best.runs),
        native=best.dtype in native,
        measured_at=time.time(),
    )


def _product(name: str, shape: Shape, device: torch.device) -> _Product:
    """(m x k) times a weight stored as (n x k), which is how a linear layer multiplies."""
    m, k, n = shape
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    x = torch.randn(m, k, device=device).to(dtype)
    weight = torch.randn(n, k, device=device).to(dtype).t()
    out = torch.empty(m, n, device=device, dtype=dtype)

    def once() -> None:
        torch.mm(x, weight, out=out)

    if device.type != "cuda":
        return _Product(name, shape, lambda: _host_seconds(once))
    with _tf32(name == "tf32"):
        once()
        single = _device_seconds(once, 1, device)
    count = max(1, round(GPU_BLOCK_S / max(single, 1e-6)))

    def block() -> float:
        with _tf32(name == "tf32"):
            return _device_seconds(once, count, device)

    return _Product(name, shape, block)


@contextmanager
def _tf32(wanted: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _host_seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _device_seconds(work: Callable[[], object], count: int, device: torch.device) -> float:
    """Seconds of one `work`, by the device's own clock over `count` of them."""
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / count
