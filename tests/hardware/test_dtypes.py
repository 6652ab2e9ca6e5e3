from __future__ import annotations

import pytest

from hotloop.hardware import environment
from hotloop.hardware.device import fast_dtypes
from hotloop.hardware.environment import fast_on_cpu, fast_on_cuda


def test_a_cpu_is_fast_in_what_torch_says_it_has() -> None:
    torch = pytest.importorskip("torch")
    assert fast_dtypes(torch.device("cpu")) == fast_on_cpu()
    if torch.cpu._is_avx512_bf16_supported():
        assert fast_on_cpu()[0] == "bfloat16"


def test_a_cpu_held_to_older_instructions_has_no_fast_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_cpu_fields", lambda: {"flags": "avx2 avx512_bf16"})
    assert fast_on_cpu()[0] == "bfloat16"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    assert fast_on_cpu() == ("float32",)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert fast_on_cpu()[0] == "bfloat16"


@pytest.mark.parametrize(
    ("capability", "first"), [((6, 1), "float32"), ((7, 5), "float16"), ((9, 0), "bfloat16")]
)
def test_a_gpu_is_fast_in_what_its_generation_has(capability: tuple[int, int], first: str) -> None:
    assert fast_on_cuda(capability)[0] == first
    assert fast_on_cuda(capability)[-1] == "float32"
