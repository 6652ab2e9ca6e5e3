"""What a machine was measured to do at best: the denominator of every utilization figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

CEILINGS_SCHEMA = "hotloop.ceilings/1"

PRECISION_DTYPES = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}
"""Names of `train.precision` as a census and the ceilings say them."""


def faster_than_fp32(fastest_first: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a device's dtypes that come before float32."""
    return tuple(takewhile(lambda name: name != "float32", fastest_first))


@dataclass(frozen=True, slots=True)
class MatmulCeiling:
    """The fastest matrix product in one dtype, as `torch.mm` computes it."""

    dtype: str
    """`float32`, `tf32`, `bfloat16` or `float16`: the names of `Census.matmul_dtypes`."""
    flops_per_s: float
    """Highest of all shapes and repetitions: 2 m k n over the seconds of one product."""
    shape: tuple[int, int, int]
    """m, k and n of that product: (m x k) times (k x n)."""
    median_flops_per_s: float
    """The median over the repetitions of that shape; far below the highest on a machine that does other work."""
    native: bool
    """False where the hardware has no instruction for it and torch emulates it."""
    measured_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """One machine, one torch and one number of threads, measured. A ceiling is a maximum, so of two
    measurements under the same key the higher value stands."""

    device: str
    """Exact name, as `Environment.device`."""
    cpu_model: str | None
    cpu_quota: float
    num_threads: int
    torch: str
    matmul: tuple[MatmulCeiling, ...] = ()
    """Fastest first."""
    not_measured: dict[str, str] = field(default_factory=dict)
    """Name of a dtype to why its ceiling is not known."""
    schema: str = CEILINGS_SCHEMA

    def of(self, dtype: str) -> MatmulCeiling | None:
        """The matrix products of one dtype."""
        return next((each for each in self.matmul if each.dtype == dtype), None)
