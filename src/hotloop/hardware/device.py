"""Which device to train on, and what it is really fast at."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace

import torch

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.measurement import Environment
from hotloop.core.ranks import ALONE, Ranks
from hotloop.hardware.environment import fast_on_cpu, fast_on_cuda, nvidia_driver, read_host
from hotloop.hardware.limits import Machine, default_threads, memory_limit_bytes


def read_environment(device: str | None = None) -> Environment:
    """Describe this interpreter, machine and device. `device` is a torch device string, `None` for the default.

    Never fails: what cannot be read is `None`.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    host = replace(read_host(), torch=torch.__version__)
    if not device.startswith("cuda"):
        return host
    return replace(
        host,
        device=torch.cuda.get_device_name(torch.device(device)),
        num_devices=torch.cuda.device_count(),
        cuda=torch.version.cuda,
        driver=nvidia_driver(),
    )


def pick_device(name: str, ranks: Ranks = ALONE, *, asked_by: str = "train.device") -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda` or `cuda:N`; each of several processes takes its own GPU.

    Raises `UsageError` for an unknown name and `EnvironmentFailed` for a device that is not there.
    """
    if name == "auto":
        return _own_gpu(ranks) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"unknown device {name!r}", where=asked_by, do="use auto, cpu, cuda or cuda:N"
        ) from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        do = "use auto, cpu, cuda or cuda:N"
        raise UsageError(f"device {name!r} is not supported yet", where=asked_by, do=do)
    if not torch.cuda.is_available():
        raise EnvironmentFailed(
            f"device {name!r} is not there: torch sees no CUDA device",
            where=asked_by,
            do="use cpu, or install a CUDA build of torch and its driver",
        )
    if ":" not in name:
        return _own_gpu(ranks)
    if ranks.num_local_ranks > 1 and device.index != ranks.local_rank:
        raise UsageError(
            f"{ranks.num_local_ranks} processes train on this machine, each on its own GPU, and "
            f"{name!r} is that of one of them",
            where=asked_by,
            do="set train.device=cuda; CUDA_VISIBLE_DEVICES says which GPUs there are",
        )
    if device.index >= torch.cuda.device_count():
        raise EnvironmentFailed(
            f"device {name!r} is not there: torch sees {torch.cuda.device_count()}",
            where=asked_by,
        )
    return device


def _own_gpu(ranks: Ranks) -> torch.device:
    """The current one; of several processes on a machine, the one of the process's number."""
    if ranks.num_local_ranks == 1:
        return torch.device("cuda", torch.cuda.current_device())
    seen = torch.cuda.device_count()
    if ranks.local_rank >= seen:
        raise EnvironmentFailed(
            f"{ranks.num_local_ranks} processes train on this machine, and torch sees {seen} GPUs",
            where="train.device",
            do=f"start as many with torchrun --nproc-per-node {seen}, or set train.device=cpu",
        )
    return torch.device("cuda", ranks.local_rank)


def fast_dtypes(device: torch.device) -> tuple[str, ...]:
    """Dtypes that the hardware multiplies, fastest first.

    A dtype that is only emulated is not listed, even where torch accepts it.
    """
    if device.type == "cuda":
        return fast_on_cuda(torch.cuda.get_device_capability(device))
    return fast_on_cpu()


def gpu_uuid(device: torch.device) -> str | None:
    """The name that NVML gives to this GPU; `None` for another device."""
    if device.type != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return f"GPU-{uuid.removeprefix('GPU-')}"


_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def why_compile_cannot_run(device: torch.device) -> str | None:
    """`None` where `torch.compile` has what it needs, else what is missing.

    A compiler alone is not enough: what it compiles includes Python's headers, and on a CPU OpenMP.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "the triton package is missing"
        compiler = shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            return "no C compiler was found"
        return _why_it_does_not_compile((compiler, "-xc"), "#include <Python.h>\n")
    cache = os.environ.get(_CACHE)
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        name = get_cpp_compiler()
    except Exception as error:  # noqa: BLE001  # inductor raises its own types, by version
        return f"no C++ compiler was found ({type(error).__name__})"
    finally:
        if (
            cache is None
        ):  # its import sets it, and what is started later would have another environment
            os.environ.pop(_CACHE, None)
    compiler = shutil.which(name)
    if compiler is None:
        return f"the C++ compiler {name!r} was not found"
    flags = () if sys.platform == "darwin" else ("-fopenmp",)  # there torch brings its own
    source = "#include <Python.h>\n" + ("#include <omp.h>\n" if flags else "")
    return _why_it_does_not_compile((compiler, *flags, "-xc++"), source)


_COMPILES = set[tuple[str, ...]]()
"""Commands that did: each takes a third of a second, and some callers ask for thirty configs."""


def _why_it_does_not_compile(command: tuple[str, ...], source: str) -> str | None:
    command = (*command, f"-I{sysconfig.get_path('include')}", "-fsyntax-only", "-")
    if command in _COMPILES:
        return None
    try:
        ended = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the compiler {command[0]} does not run ({type(error).__name__})"
    if not ended.returncode:
        _COMPILES.add(command)
        return None
    if "Python.h" in ended.stderr:
        return "Python's headers are missing (on Debian and Ubuntu: apt install python3-dev)"
    return f"the compiler {command[0]} fails: {(ended.stderr.splitlines() or ['no message'])[0]}"


def why_memory_cannot_be_kept() -> str | None:
    """What keeps the allocator of this process from being told; `None` where it can be."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    if any(name in preloaded for name in ("jemalloc", "tcmalloc", "mimalloc")):
        return "another allocator is preloaded, which keeps memory by its own rules"
    try:
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018
    except (OSError, AttributeError, TypeError):
        return "it is a setting of glibc's allocator, and this is another C library"
    return None


def read_machine(device: torch.device, ranks: Ranks = ALONE, *, compiles: bool = True) -> Machine:
    """What this machine can do with `device` for one of the processes that train on it.

    Where nothing is to be compiled, the compiler is not asked: it would take 0.3 s to answer.
    """
    return Machine(
        device_type=device.type,
        fast_dtypes=fast_dtypes(device),
        why_no_compile=why_compile_cannot_run(device) if compiles else None,
        num_threads=default_threads(ranks.num_local_ranks),
        why_no_kept_memory=why_memory_cannot_be_kept(),
        memory_bytes=(
            torch.cuda.get_device_properties(device).total_memory
            if device.type == "cuda"
            else memory_limit_bytes() // ranks.num_local_ranks
        ),
    )
