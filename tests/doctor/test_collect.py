"""Reading what a command left, also where it was cut off or damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.census import Census, LineUse
from hotloop.core.command_run import CommandRun
from hotloop.core.measurement import Environment
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import TELEMETRY_FILE, GpuSample, TelemetrySample
from hotloop.doctor.collect import (
    collect,
    has_stepped,
    is_attached,
    other_ranks,
    probe_notes,
    with_foreign_load,
    with_throttling,
)
from hotloop.hardware.environment import fast_on_cpu, read_host
from hotloop.judge.diagnose import diagnose

RUN = CommandRun(("python", "train.py"), "/work", 1e9, "0.1.0")


@pytest.fixture(scope="module")
def machine() -> Environment:
    return read_host()


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


def test_of_a_command_that_was_cut_off_nothing_is_claimed_to_be_looked_at(
    tmp_path: Path, machine: Environment
) -> None:
    write_steps(tmp_path, 30)
    found = diagnose(collect(tmp_path, RUN, machine).measurement)
    assert "the script's own lines: not observed" in found.not_examined
    assert found.worth is not None
    assert found.worth.answer == "not known"
    # A census from before the first sample: the sampler was at work, and saw nothing.
    early = Census(device="cpu", seen=("lines", "operators"))
    (tmp_path / "census-0.json").write_text(json.dumps(early.to_mapping()))
    found = diagnose(collect(tmp_path, RUN, machine).measurement)
    assert "the script's own lines: not observed" in found.not_examined
    assert found.worth is not None
    assert found.worth.answer == "not known"
    assert "the script's own lines: not observed" in found.worth.reason


def test_that_steps_were_made_is_known_before_they_are_written(tmp_path: Path) -> None:
    assert not has_stepped(tmp_path)
    (tmp_path / "claim-0").touch()
    assert has_stepped(tmp_path)
    (tmp_path / "claim-0").unlink()
    (tmp_path / "clock-0.json").write_text('{"finished": false}')
    assert has_stepped(tmp_path)
    (tmp_path / "clock-0.json").write_text('{"finished": true}')
    assert not has_stepped(tmp_path)


@pytest.mark.parametrize(
    ("left", "finished", "returncode"),
    [((), False, None), ((), True, 0), ((17,), False, None), ((17,), True, 0)],
)
def test_what_goes_on_or_was_cut_off_is_no_whole_run(
    left: tuple[int, ...],
    finished: bool,
    returncode: int | None,
    tmp_path: Path,
    machine: Environment,
) -> None:
    write_steps(tmp_path, 30)
    (tmp_path / "clock-0.json").write_text(json.dumps({"finished": finished}))
    run = replace(RUN, ended="by_itself", returncode=0, left_running=left)
    assert collect(tmp_path, run, machine).measurement.returncode == returncode


@pytest.mark.parametrize(
    ("finished", "ended"), [(False, "by_itself"), (False, "failed"), (True, "by_itself")]
)
def test_steps_that_were_never_written_are_missing_and_said_to_be(
    finished: bool, ended: Any, tmp_path: Path, machine: Environment
) -> None:
    write_steps(tmp_path, 43)
    (tmp_path / "clock-0.json").write_text(json.dumps({"finished": finished}))
    census = collect(tmp_path, replace(RUN, ended=ended, returncode=0), machine).measurement.census
    assert census is not None
    assert (
        any("up to a second of its last steps is missing" in note for note in census.notes)
        is not finished
    )


def test_other_processes_that_trained_are_not_examined(
    tmp_path: Path, machine: Environment
) -> None:
    write_steps(tmp_path, 43)
    for number, steps in enumerate((60, 1200)):
        (tmp_path / f"other-{number}.json").write_text(json.dumps({"steps": steps}))
    diagnosis = diagnose(collect(tmp_path, RUN, machine).measurement)
    (line,) = [line for line in diagnosis.not_examined if "trained as well" in line]
    assert line.startswith("2 other processes")
    assert "(1,200, 60 steps)" in line


def test_the_own_code_of_every_rank_is_looked_at(tmp_path: Path, machine: Environment) -> None:
    lines = (LineUse("unattributed", "ddp.py:7", "<module>", 0.7),)
    for rank, own in ((0, 0.001), (1, 0.02)):
        host = {"unattributed": own, "forward": 0.001, "backward": 0.027 - own}
        records = [StepRecord(n, 0.028, host).to_json() for n in range(400)]
        (tmp_path / f"steps-{rank}.jsonl").write_text("\n".join(records) + "\n")
        census = Census(
            device="cpu", num_ranks=2, seen=("lines", "operators"), lines=lines if rank else ()
        )
        (tmp_path / f"census-{rank}.json").write_text(json.dumps(census.to_mapping()))
    measurement = collect(tmp_path, RUN, machine).measurement
    others = other_ranks(tmp_path, measurement)
    assert list(others) == [1]
    found = diagnose(measurement, others=others)
    assert [f.code for f in found.findings] == ["HL801"]
    assert (found.findings[0].site, found.findings[0].evidence["rank"]) == ("ddp.py:7", 1)
    assert found.findings[0].gain_at_most == pytest.approx(0.028 / 0.008)


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


@pytest.mark.parametrize(
    ("device", "clock", "expected"),
    [
        ("cpu", {}, fast_on_cpu()),
        ("cuda:0", {"compute_capability": [9, 0]}, ("bfloat16", "float16", "tf32", "float32")),
        ("cuda:0", {}, ()),
        ("mps", {}, ()),
    ],
)
def test_what_the_device_multiplies_fast_is_known(
    device: str,
    clock: dict[str, Any],
    expected: tuple[str, ...],
    tmp_path: Path,
    machine: Environment,
) -> None:
    write_steps(tmp_path, 10)
    (tmp_path / "census-0.json").write_text(json.dumps(Census(device=device).to_mapping()))
    (tmp_path / "clock-0.json").write_text(json.dumps(clock))
    census = collect(tmp_path, RUN, machine).measurement.census
    assert census is not None
    assert census.fast_dtypes == expected


OWN = Census(cpu_busy=1.0, start_s=3.0)


def telemetry(*busy: float | None) -> list[TelemetrySample]:
    return [TelemetrySample(100.0 + second, cpu_fraction=b) for second, b in enumerate(busy)]


def test_what_is_not_the_process_is_foreign_and_the_start_does_not_count() -> None:
    seen = with_foreign_load(OWN, telemetry(0.1, 0.1, 0.1, 1.0, 1.0, 0.7), num_cpus=2)
    assert seen.machine_busy == pytest.approx(0.9)
    assert seen.foreign_busy == pytest.approx(0.4)


def test_what_the_process_computes_after_its_last_step_is_no_other_program(
    tmp_path: Path, machine: Environment
) -> None:
    write_steps(tmp_path, 41)
    (tmp_path / "census-0.json").write_text(json.dumps(OWN.to_mapping()))
    samples = telemetry(*[0.1] * 3, *[0.5] * 5, *[1.0] * 9)
    (tmp_path / TELEMETRY_FILE).write_text("".join(f"{each.to_json()}\n" for each in samples))
    census = collect(tmp_path, RUN, machine).measurement.census
    assert census is not None
    assert census.machine_busy == pytest.approx(0.5)


def test_it_is_never_negative() -> None:
    assert with_foreign_load(OWN, telemetry(*[0.2] * 9), num_cpus=2).foreign_busy == 0


@pytest.mark.parametrize(
    ("census", "busy"),
    [(OWN, []), (OWN, [1.0] * 5), (OWN, [None] * 9), (Census(start_s=0.0), [1.0] * 9)],
)
def test_too_little_telemetry_says_nothing(census: Census, busy: list[float | None]) -> None:
    assert with_foreign_load(census, telemetry(*busy), num_cpus=2) == census
