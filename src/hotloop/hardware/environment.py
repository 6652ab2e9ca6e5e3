"""The machine and interpreter of this process, as one record that two measurements can be held against each other by."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from hotloop import __version__
from hotloop.core.measurement import Environment
from hotloop.hardware.limits import cpu_quota, memory_limit_bytes, num_cpus

SPEED_VARIABLES = (
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "ONEDNN_",
    "DNNL_",
    "NCCL_",
    "CUDA_",
    "PYTORCH_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "LD_PRELOAD",
    "MALLOC_",
    "PYTHONMALLOC",
)
"""Prefixes of the environment variables that change speed."""


def cpu_model() -> str:
    """The CPU's own name, with family and model where the name alone is not exact."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() and key.strip() not in fields:
                fields[key.strip()] = value.strip()
    except OSError:
        return platform.processor() or platform.machine()
    name = fields.get("model name") or platform.machine()
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']} model {fields['model']})"
    return name


def read_host(*, workdir: Path | None = None) -> Environment:
    """Describe this interpreter and machine, without torch and what it sees: as if it ran on the CPU.

    Never fails: what cannot be read is `None`.
    """
    model = cpu_model()
    commit, dirty = _git_state(workdir or Path.cwd())
    return Environment(
        device=model,
        num_devices=1,
        cpu_model=model,
        num_cpus=num_cpus(),
        cpu_quota=cpu_quota(),
        memory_limit_bytes=memory_limit_bytes(),
        platform=f"{platform.system()}-{platform.machine()}",
        kernel=platform.release(),
        python=platform.python_version(),
        torch=None,
        cuda=None,
        driver=None,
        hotloop=__version__,
        git_commit=commit,
        git_dirty=dirty,
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        clock_mhz=_clock_mhz(),
        variables={
            key: value
            for key, value in sorted(os.environ.items())
            if key.startswith(SPEED_VARIABLES)
        },
    )


def _clock_mhz() -> float | None:
    """The CPU's clock as the kernel reports it now."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("cpu MHz"):
                return float(line.partition(":")[2])
    except (OSError, ValueError):
        return None
    return None


def nvidia_driver() -> str | None:
    """Version of the kernel's NVIDIA driver; `None` without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    words = text.splitlines()[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _git_state(directory: Path) -> tuple[str | None, bool | None]:
    """Commit and whether tracked files differ from it; `(None, None)` outside a checkout."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=directory, capture_output=True, text=True, timeout=5
        )
        if commit.returncode:
            return None, None
        status = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=10,
        )
        return commit.stdout.strip(), bool(status.stdout.strip())
    except (OSError, subprocess.TimeoutExpired):
        return None, None


_CPU_BF16 = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""Flags of /proc/cpuinfo that mean bf16 products in hardware (`bf16` is Arm's)."""


def fast_on_cpu() -> tuple[str, ...]:
    """Dtypes of this machine's processor, fastest first."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ("float32",)
    named = (line for line in lines if line.startswith(("flags", "Features")))
    flags = set(next(named, "").partition(":")[2].split())
    return ("bfloat16", "float32") if flags & _CPU_BF16 else ("float32",)


def fast_on_cuda(capability: tuple[int, int]) -> tuple[str, ...]:
    """Dtypes of a GPU by its compute capability, fastest first."""
    if capability[0] >= 8:
        return ("bfloat16", "float16", "tf32", "float32")
    return ("float16", "float32") if capability[0] >= 7 else ("float32",)
