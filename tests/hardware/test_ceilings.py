"""Ceilings: measured, kept per machine, and never lowered by a busy moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hotloop.core.ceilings import Ceilings, MatmulCeiling
from hotloop.hardware import ceilings as hardware
from hotloop.hardware.ceilings import measure_ceilings
from hotloop.hardware.device import read_environment
from hotloop.hardware.environment import (
    ceilings_path,
    higher,
    store_ceilings,
    stored_ceilings,
)

PRODUCT = MatmulCeiling("float32", 100e9, (8, 8, 8), 90e9, True, 1000.0)
KNOWN = Ceilings("CPU", "CPU", 2.0, 2, "2.13", matmul=(PRODUCT,))


pytestmark = pytest.mark.usefixtures("own_cache")


def test_every_ceiling_is_a_number_with_its_shape_or_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "CPU_SHAPES", ((16, 16, 16), (32, 16, 32)))
    before = torch.get_num_threads()
    found = measure_ceilings(
        read_environment("cpu"),
        torch.device("cpu"),
        num_threads=2,
        matmul_s=0.01,
    )
    assert torch.get_num_threads() == before
    known = {each.dtype for each in found.matmul} | set(found.not_measured)
    assert {"float32", "bfloat16", "float16"} <= known
    assert "tf32" not in known
    fp32 = found.of("float32")
    assert fp32 is not None
    assert fp32.native
    assert fp32.flops_per_s >= fp32.median_flops_per_s > 0
    assert fp32.shape in hardware.CPU_SHAPES


def test_dtype_without_hardware_is_measured_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "CPU_SHAPES", ((16, 16, 16),))
    found = hardware._matmul(torch.device("cpu"), ("float32",), 0.0, {})
    assert {each.dtype: each.native for each in found}["bfloat16"] is False


def test_product_that_cannot_run_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("not implemented for 'Half'\nmore")

    monkeypatch.setattr(torch, "mm", refuse)
    missing: dict[str, str] = {}
    assert hardware._matmul(torch.device("cpu"), ("float32",), 0.0, missing) == ()
    assert missing["float16"] == "not implemented for 'Half'"


def test_slow_dtype_is_not_tried_on_shapes_that_would_take_the_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def product(name: str, shape: tuple[int, int, int], device: object) -> hardware._Product:
        tried.append((name, shape))
        flops_per_s = 1e6 if name == "float16" else 1e15
        m, k, n = shape
        return hardware._Product(name, shape, lambda: 2.0 * m * k * n / flops_per_s)

    monkeypatch.setattr(hardware, "_product", product)
    found = hardware._matmul(torch.device("cpu"), ("float32",), 0.01, {})
    shapes = {name: [s for n, s in tried if n == name] for name, _ in tried}
    assert shapes["float16"] == [hardware.CPU_SHAPES[0]]
    assert shapes["float32"] == list(hardware.CPU_SHAPES)
    assert found[0].flops_per_s == pytest.approx(1e15)


def test_stored_ceilings_come_back_for_this_machine_and_no_other() -> None:
    here = read_environment("cpu")
    store_ceilings(here, KNOWN)
    assert stored_ceilings(here, 2) == KNOWN
    assert stored_ceilings(here, 1) is None
    for other in ({"device": "other CPU"}, {"torch": "9.9"}, {"cpu_quota": 1.5}):
        assert stored_ceilings(replace(here, **other), 2) is None


def test_threads_do_not_matter_for_a_gpus_ceilings() -> None:
    gpu = replace(read_environment("cpu"), device="GPU", cuda="13.0")
    assert ceilings_path(gpu, 1) == ceilings_path(gpu, 8)


def test_damaged_cache_is_measured_again_and_not_an_error() -> None:
    here = read_environment("cpu")
    store_ceilings(here, KNOWN)
    ceilings_path(here, 2).write_text("{")
    assert stored_ceilings(here, 2) is None


def test_busy_moment_does_not_lower_a_ceiling_and_a_free_one_raises_it() -> None:
    slower = replace(KNOWN, matmul=(replace(PRODUCT, flops_per_s=50e9),))
    faster = replace(KNOWN, matmul=(replace(PRODUCT, flops_per_s=150e9),))
    assert higher(KNOWN, slower).of("float32") == PRODUCT
    raised = higher(KNOWN, faster).of("float32")
    assert raised is not None
    assert raised.flops_per_s == 150e9
    missing = replace(KNOWN, matmul=(), not_measured={"float32": "no memory"})
    assert higher(KNOWN, missing).not_measured == {}
