"""Which device to train on, and what it is really fast at."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.hardware.limits import default_threads
from hotloop.hardware.machine import Machine

_CPU_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Flags of /proc/cpuinfo that mean bf16 products in hardware (`bf16` is Arm's)."""


def pick_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises `UsageError` for an unknown name and `EnvironmentFailed` for a device that is not there.
    """
    if name == "auto":
        return (
            torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"unknown device {name!r}", where="train.device", do="use auto, cpu, cuda or cuda:N"
        ) from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise UsageError(
            f"device {name!r} is not supported yet",
            where="train.device",
            do="use auto, cpu, cuda or cuda:N",
        )
    if not torch.cuda.is_available():
        raise EnvironmentFailed(
            f"device {name!r} is not there: torch sees no CUDA device",
            where="train.device",
            do="use train.device=cpu, or install a CUDA build of torch and its driver",
        )
    index = device.index if device.index is not None else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise EnvironmentFailed(
            f"device {name!r} is not there: torch sees {torch.cuda.device_count()}",
            where="train.device",
        )
    return torch.device("cuda", index)


def fast_dtypes(device: torch.device) -> tuple[str, ...]:
    """Dtypes whose matrix products the hardware computes natively, fastest first.

    A dtype that is only emulated is not listed, even where torch accepts it.
    """
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        if major >= 8:
            return ("bfloat16", "float16", "tf32", "float32")
        return ("float16", "float32") if major >= 7 else ("float32",)
    try:
        flags = set()
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.partition(":")[2].split())
                break
    except OSError:
        return ("float32",)
    return ("bfloat16", "float32") if flags & set(_CPU_BF16) else ("float32",)


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
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        name = get_cpp_compiler()
    except Exception as error:  # noqa: BLE001  # inductor raises its own types, by version
        return f"no C++ compiler was found ({type(error).__name__})"
    compiler = shutil.which(name)
    if compiler is None:
        return f"the C++ compiler {name!r} was not found"
    flags = () if sys.platform == "darwin" else ("-fopenmp",)  # there torch brings its own
    source = "#include <Python.h>\n" + ("#include <omp.h>\n" if flags else "")
    return _why_it_does_not_compile((compiler, *flags, "-xc++"), source)


def _why_it_does_not_compile(command: tuple[str, ...], source: str) -> str | None:
    include = sysconfig.get_path("include")
    try:
        ended = subprocess.run(
            [*command, f"-I{include}", "-fsyntax-only", "-"],
            input=source,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the compiler {command[0]} does not run ({type(error).__name__})"
    if not ended.returncode:
        return None
    if "Python.h" in ended.stderr:
        return "Python's headers are missing (on Debian and Ubuntu: apt install python3-dev)"
    return f"the compiler {command[0]} fails: {(ended.stderr.splitlines() or ['no message'])[0]}"


def read_machine(device: torch.device) -> Machine:
    """What this machine can do with `device`."""
    return Machine(
        device_type=device.type,
        fast_dtypes=fast_dtypes(device),
        why_no_compile=why_compile_cannot_run(device),
        num_threads=default_threads(),
    )
