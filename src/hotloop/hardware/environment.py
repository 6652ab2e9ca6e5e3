"""The machine and interpreter of this process, as one record that two measurements can be held against each other by.

And what such a machine was measured to do at best, kept in the cache: a file per machine, torch and threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hotloop import __version__
from hotloop.core.cache import cache_directory
from hotloop.core.ceilings import Ceilings, MatmulCeiling
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json, write_json
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


def _cpu_fields() -> dict[str, str]:
    """What the kernel reports now of the first CPU, and of all; empty where it is not Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = [line.partition(":") for line in text.splitlines()]
    return {key.strip(): value.strip() for key, _, value in reversed(found) if key.strip()}


def cpu_model() -> str:
    """The CPU's own name, with family and model where the name alone is not exact."""
    fields = _cpu_fields()
    if not fields:
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
        load_average=os.getloadavg()[0],
        clock_mhz=_clock_mhz(),
        variables=speed_variables(),
    )


def speed_variables() -> dict[str, str]:
    """Environment variables that change speed (threads, allocator, NCCL), as set."""
    found = sorted(os.environ.items())
    return {key: value for key, value in found if key.startswith(SPEED_VARIABLES)}


def _clock_mhz() -> float | None:
    try:
        return float(_cpu_fields()["cpu MHz"])
    except (KeyError, ValueError):
        return None


def nvidia_driver() -> str | None:
    """Version of the kernel's NVIDIA driver; `None` without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    words = text.splitlines()[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def runs_on(program: str) -> dict[str, str]:
    """What decides the speed of a command beside its torch and the CPU, and takes no time to read; empty: there is none."""
    gpus = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            gpus += re.findall(r"^Model:\s*(.+)", path.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            continue
    return {
        "program": str(Path(shutil.which(program) or program).absolute()),
        "Python": platform.python_version(),
        "NVIDIA driver": nvidia_driver() or "",
        "GPU": ", ".join(gpus),
    }


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

_WITHOUT_BF16 = frozenset(
    ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
)


def fast_on_cpu() -> tuple[str, ...]:
    """Dtypes that this machine's processor multiplies in hardware, fastest first.

    Of Intel's processors AMX alone makes bf16 the faster one. Their AVX512-BF16, which is what is left where a host hides
    AMX from its guests, reached 150 of the 280 GFLOP/s of fp32 (Emerald Rapids, 2 CPUs, torch 2.13).
    """
    fields = _cpu_fields()
    flags = (fields.get("flags") or fields.get("Features", "")).split()
    # torch's products are oneDNN's, which computes bf16 step by step below what it is held to: 25 times as slow.
    held = {os.environ.get(name, "").upper() for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")}
    held -= {"", "ALL", "DEFAULT"}
    if _CPU_BF16.isdisjoint(flags) or _WITHOUT_BF16 & held:
        return ("float32",)
    has_amx = "amx_bf16" in flags and all("AMX" in each for each in held)
    if fields.get("vendor_id") == "GenuineIntel" and not has_amx:
        return ("float32", "bfloat16")
    return ("bfloat16", "float32")


def fast_on_cuda(capability: tuple[int, int]) -> tuple[str, ...]:
    """Dtypes of a GPU by its compute capability, fastest first."""
    if capability[0] >= 8:
        return ("bfloat16", "float16", "tf32", "float32")
    return ("float16", "float32") if capability[0] >= 7 else ("float32",)


def ceilings_path(environment: Environment, num_threads: int) -> Path:
    """The file for a machine, a torch and, on a CPU, a number of threads."""
    key = [
        environment.device,
        environment.cpu_model,
        environment.cpu_quota,
        environment.torch,
        num_threads if environment.cuda is None else None,
    ]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.]+", "-", environment.device).strip("-")[:40]
    return cache_directory() / "ceilings" / f"{name}-{digest}.json"


def stored_ceilings(environment: Environment, num_threads: int) -> Ceilings | None:
    """What was measured on such a machine; `None` when it never was, or its file is damaged."""
    path = ceilings_path(environment, num_threads)
    if not path.is_file():
        return None
    try:
        return read_json(path, Ceilings)
    except UsageError:  # of an older version, or damaged: it can be measured again
        return None


def store_ceilings(environment: Environment, ceilings: Ceilings) -> Ceilings:
    """Keep them, joined with what was kept before; returns what now stands.

    Raises `EnvironmentFailed` when the cache cannot be written.
    """
    before = stored_ceilings(environment, ceilings.num_threads)
    joined = ceilings if before is None else higher(before, ceilings)
    write_json(ceilings_path(environment, ceilings.num_threads), joined)
    return joined


def higher(before: Ceilings, now: Ceilings) -> Ceilings:
    """`now` with every value that was higher `before`."""
    matmul = {each.dtype: each for each in before.matmul}
    for each in now.matmul:
        old = matmul.get(each.dtype)
        if old is None or each.flops_per_s >= old.flops_per_s:
            matmul[each.dtype] = each
    reasons = {name: why for name, why in now.not_measured.items() if name not in matmul}
    return replace(now, matmul=fastest_first(matmul.values()), not_measured=reasons)


def fastest_first(found: Iterable[MatmulCeiling]) -> tuple[MatmulCeiling, ...]:
    return tuple(sorted(found, key=lambda each: -each.flops_per_s))
