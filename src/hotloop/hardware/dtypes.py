"""In which types the hardware multiplies matrices itself. Never loads torch."""

from __future__ import annotations

from pathlib import Path

_CPU_BF16 = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""Flags of /proc/cpuinfo that mean bf16 products in hardware (`bf16` is Arm's)."""


def fast_on_cpu() -> tuple[str, ...]:
    """Of this machine's processor, fastest first."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ("float32",)
    named = (line for line in lines if line.startswith(("flags", "Features")))
    flags = set(next(named, "").partition(":")[2].split())
    return ("bfloat16", "float32") if flags & _CPU_BF16 else ("float32",)


def fast_on_cuda(capability: tuple[int, int]) -> tuple[str, ...]:
    """Of a GPU by its compute capability, fastest first."""
    if capability[0] >= 8:
        return ("bfloat16", "float16", "tf32", "float32")
    return ("float16", "float32") if capability[0] >= 7 else ("float32",)
