from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.hardware.device import why_memory_cannot_be_kept
from hotloop.hardware.limits import Machine
from hotloop.optimizations.host_memory import HOST_MEMORY

FAULTS = """
import resource, sys
import torch
from hotloop.optimizations.host_memory.trainer import is_kept, keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory(1 << 30)
    assert is_kept()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(48 << 18)
before = faults()
for _ in range(10):
    torch.ones(48 << 18)
print(faults() - before)
"""


def page_faults(how: str) -> int:
    """Of ten tensors of 48 MiB, each freed before the next one is asked for."""
    ended = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
    )
    return int(ended.stdout)


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.skipif(why_memory_cannot_be_kept() is not None, reason="not glibc's allocator")
def test_kept_memory_is_not_faulted_in_again() -> None:
    assert page_faults("keep") < 200
    assert page_faults("default") > 1000


def test_it_is_for_the_cpu_and_for_an_allocator_that_can() -> None:
    cpu = Machine("cpu", ("bfloat16",), None, 2)
    gpu = Machine("cuda", ("bfloat16",), None, 2)
    other = Machine("cpu", ("bfloat16",), None, 2, why_no_kept_memory="another C library")
    assert HOST_MEMORY.choose(cpu, {}).value == "keep"
    assert HOST_MEMORY.choose(gpu, {}).value == "default"
    assert HOST_MEMORY.choose(other, {}).value == "default"
    assert HOST_MEMORY.why_not(other, "keep", {}) == "another C library"
    assert HOST_MEMORY.why_not(other, "default", {}) is None


def test_a_preloaded_allocator_keeps_its_own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert "preloaded" in (why_memory_cannot_be_kept() or "")


MAPPED = """
import mmap, sys
import torch
from hotloop.optimizations.host_memory.trainer import keep_freed_memory, off_their_file

if sys.argv[1] == "keep":
    assert keep_freed_memory(1 << 30)
with open(sys.argv[2], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
model = torch.nn.ModuleList([torch.nn.Linear(256, 256, bias=False) for _ in range(2)])
for part in model:
    part.weight.data = torch.frombuffer(mapped, dtype=torch.float32, offset=8, count=256 * 256).view(256, 256)
model[1].weight.requires_grad_(False)
own, frozen = (part.weight for part in model)
before = own.data_ptr()
off_their_file(model)
assert model[0].weight is own
assert torch.equal(own, frozen)
print(own.data_ptr() != before, frozen.data_ptr() == before)
"""


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.skipif(why_memory_cannot_be_kept() is not None, reason="not glibc's allocator")
@pytest.mark.parametrize(("how", "moves"), [("keep", True), ("default", False)])
def test_trained_weights_leave_the_mapping_of_their_file(
    how: str, moves: bool, tmp_path: Path
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(8 + 4 * 256 * 256))
    command = [sys.executable, "-c", MAPPED, how, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(moves), "True"]
