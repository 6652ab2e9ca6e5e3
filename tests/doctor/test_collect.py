"""Reading what a command left, also where it was cut off or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop.core.census import Census
from hotloop.core.command_run import CommandRun
from hotloop.core.measurement import Environment
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.doctor.collect import collect, is_attached, probe_notes
from hotloop.doctor.throttling import with_throttling
from hotloop.hardware.environment import read_machine
from hotloop.judge.diagnose import diagnose

RUN = CommandRun(("python", "train.py"), "/work", 1e9, "0.1.0")


@pytest.fixture(scope="module")
def machine() -> Environment:
    return read_machine()


def write_steps(directory: Path, count: int, *, rest: str = "") -> None:
    lines = [
        StepRecord(n, 0.1, {"forward": 0.1}, tags=("warmup",) if n < 2 else ()).to_json()
        for n in range(count)
    ]
    (directory / "steps-0.jsonl").write_text("\n".join(lines) + "\n" + rest)


def test_an_empty_directory_is_an_empty_measurement(tmp_path: Path, machine: Environment) -> None:
    found = collect(tmp_path, RUN, machine)
    assert (found.measurement.records, found.measurement.census) == ((), None)
    assert not is_attached(tmp_path)
    assert diagnose(found.measurement).breakdown == {}
    assert found.measurement.environment.python == "not recorded"


def test_a_torn_last_line_and_a_damaged_census_are_left_out(
    tmp_path: Path, machine: Environment
) -> None:
    write_steps(tmp_path, 10, rest='{"step": 10, "wa')
    (tmp_path / "census-0.json").write_text("{")
    (tmp_path / "clock-0.json").write_text("[]")
    found = collect(tmp_path, RUN, machine)
    assert len(found.measurement.records) == 10
    assert len(found.problems) == 2
    assert [len(lines) for _, lines in found.damaged_steps] == [1]
    assert diagnose(found.measurement).breakdown["forward"] == pytest.approx(1.0)


def test_notes_of_many_processes_are_said_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the same\nthe same\n\nanother\n" + "".join(f"{n}\n" for n in range(20)))  # fmt: skip
    notes = probe_notes(tmp_path)
    assert notes[:2] == ["the same", "another"]
    assert notes[-1] == "and 14 more lines in notes.txt"


def gpu_seconds(count: int, *, clock: float, why: tuple[str, ...] = ()) -> list[TelemetrySample]:
    gpus = [
        GpuSample(0, uuid="GPU-other", busy_fraction=1.0, throttled_by=("power_cap",)),
        GpuSample(1, "NVIDIA H200", "GPU-1-2", 0.9, sm_clock_mhz=clock, throttled_by=why),
    ]
    return [TelemetrySample(1e9 + n, gpus=tuple(gpus)) for n in range(count)]


def test_a_gpu_that_was_held_down_is_told_by_its_own_seconds() -> None:
    samples = gpu_seconds(30, clock=1980.0) + gpu_seconds(10, clock=1485.0, why=("power_cap",))
    found = with_throttling(Census(device="cuda:0", device_uuid="1-2"), samples)
    assert found.throttled_fraction == pytest.approx(0.25)
    assert found.throttled_by == ("power_cap",)
    assert found.clock_drop_fraction == pytest.approx(0.25)


def test_too_few_seconds_or_another_gpu_say_nothing_about_throttling() -> None:
    census = Census(device="cuda:0", device_uuid="1-2")
    assert with_throttling(census, gpu_seconds(5, clock=1.0)).throttled_fraction is None
    unknown = Census(device="cuda:0")
    assert with_throttling(unknown, gpu_seconds(30, clock=1.0)).throttled_fraction is None


def test_a_gpu_is_named_by_what_the_command_saw(tmp_path: Path, machine: Environment) -> None:
    write_steps(tmp_path, 10)
    census = Census(device="cuda:0", device_uuid="GPU-1-2", num_ranks=2)
    (tmp_path / "census-0.json").write_text(json.dumps(census.to_mapping()))
    samples = gpu_seconds(2, clock=1.0)
    (tmp_path / "telemetry.jsonl").write_text("".join(s.to_json() + "\n" for s in samples))
    found = collect(tmp_path, RUN, machine).measurement.environment
    assert (found.device, found.num_devices) == ("NVIDIA H200", 2)
    (tmp_path / "telemetry.jsonl").unlink()
    assert "not known" in collect(tmp_path, RUN, machine).measurement.environment.device
