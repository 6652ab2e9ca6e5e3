"""What a machine can do, as far as choosing among optimizations needs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    device_type: str
    """`cpu` or `cuda`."""
    fast_dtypes: tuple[str, ...]
    """Dtypes whose matrix products the hardware computes natively, fastest first."""
    why_no_compile: str | None
    """What `torch.compile` misses here; `None` where it can run."""
    num_threads: int
    why_no_kept_memory: str | None = None
    """Why the allocator of this process cannot be told to keep what is freed; `None` where it can."""
