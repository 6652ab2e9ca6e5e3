from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from hotloop.probe.attach.operators import device_seconds, length, summed, thread_seconds

MS = 1_000_000


@dataclass(frozen=True)
class Event:
    """One of the profiler's, in milliseconds."""

    label: str
    begin: float
    end: float
    index: int = 0
    type: str = "kernel"
    number: int = 0
    linked: int = 0

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_type(self) -> SimpleNamespace:
        on_host = self.type in ("cpu_op", "cuda_runtime", "overhead")
        return SimpleNamespace(name="CPU" if on_host else "CUDA")

    def start_thread_id(self) -> int:
        return 1

    def sequence_nr(self) -> int:
        return -1

    def dtypes(self) -> list[str]:
        return ["float"] if self.type == "cpu_op" else []

    def shapes(self) -> list[list[int]]:
        return []

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return int(self.begin * MS)

    def duration_ns(self) -> int:
        return int((self.end - self.begin) * MS)

    def device_index(self) -> int:
        return self.index

    def activity_type(self) -> str:
        return self.type

    def is_user_annotation(self) -> bool:
        return self.type == "gpu_user_annotation"


def test_union_counts_what_overlaps_once() -> None:
    assert length([(5, 7), (0, 2), (1, 4), (1, 2)]) == 6
    assert length([]) == 0


def test_device_is_at_work_on_any_stream_and_communicates_where_nothing_else_runs() -> None:
    events = [
        Event("gemm", 0, 10),
        Event("Memcpy HtoD (Pinned -> Device)", 8, 12, type="gpu_memcpy"),
        Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5, 20),
        Event("nccl:all_reduce", 0, 100, type="gpu_user_annotation"),
        Event("Context Sync", 0, 100, type="cuda_sync"),
        Event("gemm", 50, 60, index=1),
    ]
    assert device_seconds(events, 0) == pytest.approx((0.020, 0.008))
    assert device_seconds(events, 1) == pytest.approx((0.010, 0.0))
    assert device_seconds(events[3:5], 0) is None


def test_a_kernel_is_its_operations_though_a_call_of_cuda_has_the_same_number() -> None:
    events = [
        Event("aten::mm", 0, 2, type="cpu_op", number=7),
        Event("cudaLaunchKernel", 1, 2, type="cuda_runtime", number=1007, linked=7),
        Event("aten::relu", 3, 4, type="cpu_op", number=8),
        Event("cudaLaunchKernel", 3, 4, type="cuda_runtime", number=7, linked=8),
        Event("cudaEventRecord", 5, 6, type="cuda_runtime", number=8),
        Event("Activity Buffer Request", 5, 9, type="overhead", number=7),
        Event("gemm", 10, 20, number=1007, linked=7),
        Event("elementwise", 20, 21, number=7, linked=8),
        Event("Optimizer.step#SGD.step", 10, 21, type="gpu_user_annotation"),
    ]
    uses = summed(events, 1).operators
    assert "Activity Buffer Request" not in {use.name for use in uses}
    found = {use.name: use.device_s for use in uses if use.device_s}
    assert found == pytest.approx({"aten::mm": 0.010, "aten::relu": 0.001})


def test_collectives_on_a_cpu_are_hidden_by_operations_alone() -> None:
    events = [
        Event("aten::mm", 0, 10),
        Event("c10d::allreduce_", 10, 11),
        Event("gloo:all_reduce", 5, 30),
        Event("gloo:all_reduce", 20, 40),
        Event("aten::copy_", 38, 45),
    ]
    assert thread_seconds(events) == pytest.approx(0.028)
    assert thread_seconds(events[:2]) is None


@pytest.mark.parametrize(("capability", "matmul"), [((9, 0), "tf32"), ((7, 5), "float32")])
def test_float32_that_the_gpu_rounds_is_told_as_tf32(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], matmul: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    before = torch.backends.cuda.matmul.fp32_precision
    events = [Event("aten::addmm", 0, 1, type="cpu_op")]
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert summed(events, 1, device_index=0).matmul_dtypes == (matmul,)
        assert summed(events, 1).matmul_dtypes == ("float32",)  # on the CPU
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert summed(events, 1, device_index=0).matmul_dtypes == ("float32",)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
