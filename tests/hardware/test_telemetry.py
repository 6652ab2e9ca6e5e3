"""Telemetry: what it says, what it costs, and that it never ends a training."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hotloop.core.telemetry import (
    GpuSample,
    TelemetrySample,
    read_telemetry,
)
from hotloop.hardware import telemetry as hardware
from hotloop.hardware.nvml import Gpus
from hotloop.hardware.telemetry import OtherPrograms, Sampler, _shares, telemetry


def fake_nvml() -> ModuleType:
    """The functions of nvidia-ml-py that are used, for one GPU that does not tell its power limit."""
    nvml = ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def refuse(handle: object) -> None:
        raise NVMLError("Not Supported")

    values = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda handle: "GPU-1",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=10, total=20),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87, memory=12),
        "nvmlDeviceGetPowerUsage": lambda handle: 450_000,
        "nvmlDeviceGetEnforcedPowerLimit": refuse,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x1 | 0x4 | 0x20,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVMLError": NVMLError,
    }
    for name, value in values.items():
        setattr(nvml, name, value)
    return nvml


def test_gpu_values_come_in_our_units_and_a_refused_one_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    gpus = Gpus()
    (gpu,) = gpus.sample()
    assert gpus.why_none is None
    assert gpu == GpuSample(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-1",
        busy_fraction=0.87,
        memory_bytes=10,
        memory_total_bytes=20,
        power_w=450.0,
        power_limit_w=None,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_c=61,
        throttled_by=("power_cap", "thermal_slowdown"),
    )
    gpus.close()
    assert gpus.sample() == ()


def test_without_nvml_or_driver_there_are_no_gpus_and_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install" in (Gpus().why_none or "")
    broken = fake_nvml()

    def fail() -> None:
        raise RuntimeError("NVML Shared Library Not Found")

    broken.nvmlInit = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    gpus = Gpus()
    assert "Not Found" in (gpus.why_none or "")
    assert gpus.sample() == ()


def test_sample_survives_its_line() -> None:
    sample = TelemetrySample(
        12.5, process_cpus=1.9, memory_bytes=7, gpus=(GpuSample(0, throttled_by=("power_cap",)),)
    )
    assert TelemetrySample.from_mapping(json.loads(sample.to_json())) == sample
    assert "None" not in sample.to_json()
    assert "null" not in sample.to_json()


def test_line_of_a_newer_version_is_read_and_a_damaged_one_counted(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    good = TelemetrySample(1.0, cpu_fraction=0.5).to_json()
    newer = good[:-1] + ',"new_field":{"a":1}}'
    bad = [
        '{"cpu_fraction":0.5}',
        "[]",
        '{"sampled_at":"x"}',
        '{"sampled_at":null}',
        '{"sampled_at":1,"gpus":[{"index":null}]}',
        "\xff",
        '{"sampled_at":1,"gpus":[3]}',
    ]
    path.write_text("\n".join([good, newer, *bad, good, good[:10]]))
    samples, damaged = read_telemetry(path)
    assert (len(samples), len(damaged)) == (3, len(bad))
    assert read_telemetry(tmp_path / "absent") == ([], {})


def test_end_of_a_long_file_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_text("".join(TelemetrySample(float(i)).to_json() + "\n" for i in range(1000)))
    samples, damaged = read_telemetry(path, tail_bytes=500)
    assert 5 < len(samples) < 50
    assert (samples[-1].sampled_at, damaged) == (999.0, {})


def test_shares_are_of_all_cpu_time_and_a_disks_wait_is_not_busy() -> None:
    fields = {"user": 10.0, "idle": 50.0, "iowait": 0.0, "steal": 0.0, "guest": 9.0}

    def times(**now: float) -> object:
        values = {**fields, **now}
        return SimpleNamespace(_fields=tuple(values), **values)

    busy, iowait, steal = _shares(times(), times(user=14.0, idle=53.0, iowait=2.0, steal=1.0))
    assert (busy, iowait, steal) == (0.5, 0.2, 0.1)
    assert _shares(times(), times()) == (None, None, None)
    assert _shares(None, times()) == (None, None, None)


def test_sample_knows_this_process_and_a_watcher_leaves_itself_out() -> None:
    sampler = Sampler()
    first, second = sampler.sample(), sampler.sample()
    assert first.process_cpus is None  # a rate needs two readings
    assert second.process_cpus is not None
    assert second.process_cpus >= 0
    assert second.process_bytes
    assert second.memory_total_bytes
    assert Sampler(process=False).sample().process_bytes is None


def test_block_is_sampled_from_its_start_with_its_own_cost(tmp_path: Path) -> None:
    with telemetry(tmp_path, every_s=0.01):
        _wait_for(lambda: len(read_telemetry(tmp_path / "telemetry.jsonl")[0]) >= 3)
    samples, damaged = read_telemetry(tmp_path / "telemetry.jsonl")
    costs = [sample.sampler_s for sample in samples]
    assert not damaged
    assert all(cost is not None and cost > 0 for cost in costs)
    assert costs == sorted(costs)  # type: ignore[type-var]


def test_the_newest_sample_is_at_hand_while_the_block_runs(tmp_path: Path) -> None:
    with telemetry(tmp_path, every_s=0.01) as newest:
        _wait_for(lambda: newest() is not None)
        seen = newest()
    assert seen is not None
    samples, _ = read_telemetry(tmp_path / "telemetry.jsonl")
    assert seen.sampled_at in [sample.sampled_at for sample in samples]
    with telemetry(tmp_path / "nowhere", wanted=False) as newest:
        assert newest() is None


def test_resumed_run_appends_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_text(TelemetrySample(1.0).to_json() + '\n{"sampled_at":2.0,"cpu_fr')
    with telemetry(tmp_path, every_s=600):
        _wait_for(lambda: len(path.read_bytes().split(b"\n")) >= 4)
    samples, damaged = read_telemetry(path)
    assert (len(samples), len(damaged)) == (2, 1)


def test_nothing_is_written_when_it_is_not_wanted(tmp_path: Path) -> None:
    with telemetry(tmp_path, wanted=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_full_disk_ends_telemetry_with_a_warning_and_not_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "telemetry.jsonl").mkdir()
    said: list[str] = []
    with telemetry(tmp_path, warn=said.append):
        reached = True
    assert reached
    assert len(said) == 1
    assert said[0].startswith("telemetry ended early: cannot write telemetry")


def test_error_in_the_block_is_not_hidden_and_the_thread_ends(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), telemetry(tmp_path):
        raise ZeroDivisionError
    assert not any(thread.name == "hotloop-telemetry" for thread in hardware.threading.enumerate())


def _wait_for(condition: object, timeout_s: float = 120.0) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.01)
    raise AssertionError("nothing was sampled")


def test_numbers_that_no_sum_could_hold_are_damage(tmp_path: Path) -> None:
    whole = TelemetrySample(1.0, process_cpus=1.0).to_json()
    lines = (whole, '{"sampled_at": 1.0, "cpu_fraction": 1e305}', '{"sampled_at": "soon"}')
    (tmp_path / "telemetry.jsonl").write_text("\n".join((*lines, "")))
    samples, damaged = read_telemetry(tmp_path / "telemetry.jsonl")
    assert len(samples) == 1
    assert damaged[2] == "damaged telemetry: a number is too large"
    assert damaged[3].startswith("damaged telemetry: sampled_at: ")


def test_what_a_process_starts_is_none_of_the_other_programs() -> None:
    burn = "import time\nwhile time.process_time() < 0.6: pass"
    source = f"""
import os, subprocess, sys
def used():
    print(sum(os.times()[:4]), flush=True)
    input()
used()
for _ in range(3): subprocess.run([sys.executable, '-c', {burn!r}])
used()
"""
    own, times = [sys.executable, "-c", source], hardware.psutil.cpu_times
    with subprocess.Popen(own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        burnt_s = -float(process.stdout.readline())
        others = OtherPrograms(process.pid)
        before = [times()]
        others.look()
        before.append(times())
        assert others.share is None
        print(file=process.stdin, flush=True)
        # Three children that have ended: what is left of all that was busy is others'.
        burnt_s += float(process.stdout.readline())
        assert burnt_s > 1.7
        after = [times()]
        others.look()
        after.append(times())
        share = others.share
        assert share is not None
        # Around the two looks, and between them: it may have had to wait before or behind each.
        (most_s, longest_s), (least_s, shortest_s) = (
            (sum(spent.values()) - spent["idle"] - spent.get("iowait", 0.0), sum(spent.values()))
            for spent in (
                hardware._spent(before[0], after[1]),
                hardware._spent(before[1], after[0]),
            )
        )
        assert share * longest_s > least_s - burnt_s - 0.3
        assert share * shortest_s < max(most_s - burnt_s, 0.0) + 0.3
        process.kill()
    others.look()
    assert others.share == share
