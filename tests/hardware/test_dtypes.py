from __future__ import annotations

import pytest

from hotloop.core.ceilings import faster_than_fp32
from hotloop.hardware import environment
from hotloop.hardware.device import fast_dtypes
from hotloop.hardware.environment import fast_on_cpu, fast_on_cuda

AMD = {"vendor_id": "AuthenticAMD", "flags": "avx2 avx512_bf16"}
INTEL = {"vendor_id": "GenuineIntel", "flags": "avx2 avx512_bf16"}
INTEL_AMX = {"vendor_id": "GenuineIntel", "flags": "avx2 avx512_bf16 amx_bf16"}
ARM = {"Features": "asimd bf16"}


@pytest.fixture(autouse=True)
def _unheld(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)


def _on(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], held: str | None = None
) -> tuple[str, ...]:
    monkeypatch.setattr(environment, "_cpu_fields", lambda: fields)
    if held is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", held)
    return fast_on_cpu()


def test_a_cpu_multiplies_in_what_torch_says_it_has() -> None:
    torch = pytest.importorskip("torch")
    assert fast_dtypes(torch.device("cpu")) == fast_on_cpu()
    if torch.cpu._is_avx512_bf16_supported():
        assert "bfloat16" in fast_on_cpu()


@pytest.mark.parametrize(
    ("fields", "held", "found"),
    [
        (AMD, None, ("bfloat16", "float32")),
        (AMD, "avx2", ("float32",)),
        (AMD, "AVX512_CORE_BF16", ("bfloat16", "float32")),
        (INTEL_AMX, None, ("bfloat16", "float32")),
        (INTEL_AMX, "DEFAULT", ("bfloat16", "float32")),
        (INTEL_AMX, "AVX512_CORE_AMX", ("bfloat16", "float32")),
        # in hardware, at half the rate of float32
        (INTEL_AMX, "AVX512_CORE_BF16", ("float32", "bfloat16")),
        (INTEL, None, ("float32", "bfloat16")),
        (INTEL, "avx512_core", ("float32",)),
        (ARM, None, ("bfloat16", "float32")),
    ],
)
def test_bf16_is_the_faster_one_by_its_instructions_and_what_they_are_held_to(
    fields: dict[str, str],
    held: str | None,
    found: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _on(monkeypatch, fields, held) == found


def test_faster_than_fp32_is_what_comes_before_it() -> None:
    assert faster_than_fp32(("float32", "bfloat16")) == ()
    assert faster_than_fp32(("bfloat16", "float32", "float16")) == ("bfloat16",)
    assert faster_than_fp32(("tf32",)) == ("tf32",)
    assert faster_than_fp32(()) == ()


@pytest.mark.parametrize(
    ("capability", "first"), [((6, 1), "float32"), ((7, 5), "float16"), ((9, 0), "bfloat16")]
)
def test_a_gpu_is_fast_in_what_its_generation_has(capability: tuple[int, int], first: str) -> None:
    assert fast_on_cuda(capability)[0] == first
    assert fast_on_cuda(capability)[-1] == "float32"
