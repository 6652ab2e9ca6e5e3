"""Each target passes and fails on what was measured, and says why where it does not apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from judge_inputs import ENVIRONMENT, curve, phased

from hotloop.core.census import Census
from hotloop.core.judgement import Diagnosis, Parity, Steps, Target, Verdict
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.model_config import ModelConfig
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.judge.targets import check_targets
from hotloop.judge.utilization import while_training

H200 = replace(ENVIRONMENT, device="NVIDIA H200", cuda="12.8")
ON_GPU = Census(device="cuda:0", device_uuid="GPU-a")
SMALL = ModelConfig(layers=12, width=768, heads=12)
PARITY = Parity("within_noise", "reduced_precision", 20, 3.6e-5, 0.002, reason="they agree.")
VERDICT = Verdict("improved", 2.9, 2.7, 3.2, 0.98, PARITY, "plain", "hotloop", num_pairs=6)


def trained(
    *,
    environment: Environment = H200,
    census: Census | None = ON_GPU,
    seconds: float = 0.1,
    tokens: int = 20_000,
    records: Sequence[StepRecord] | None = None,
) -> Measurement:
    """A training whose first step compiled for ten seconds; 100 more of equal length."""
    steps = tuple(
        StepRecord(n, 10.0 if n == 0 else seconds, tokens=tokens, tags=("compile",) * (n == 0))
        for n in range(101)
    )
    steps = steps if records is None else tuple(records)
    return Measurement("train", (), Plan(0, 101, 0.0), environment, steps, census=census)


def second_by_second(count: int = 20, **values: Any) -> list[TelemetrySample]:
    return [TelemetrySample(1000.0 + n, **values) for n in range(count)]


def on_gpu(busy: float | None = 0.9, used: int = 80, **more: Any) -> GpuSample:
    return GpuSample(0, uuid="GPU-a", busy_fraction=busy, memory_bytes=used, memory_total_bytes=100)


def target(name: str, measurement: Measurement | None = None, **given: Any) -> Target:
    (found,) = (t for t in check_targets(measurement, **given) if t.name == name)
    return found


def outcome(found: Target) -> tuple[str, float | None]:
    return found.status, None if found.value is None else round(found.value, 6)


def test_nothing_known_is_no_failure_and_every_line_has_a_reason() -> None:
    found = check_targets(None)
    assert {t.status for t in found} == {"not_applicable"}
    assert {t.value for t in found} == {None}
    assert all(t.reason and t.bar for t in found)
    assert len(found) == len({t.name for t in found}) == 13


@pytest.mark.parametrize(
    ("busy", "status", "word"),
    [
        (0.9, "pass", "inside"),
        (0.8, "fail", "inside"),
        (0.7, "fail", "below"),
        (1.0, "pass", "above"),
    ],
)
def test_gpu_busy_is_the_mean_while_training(busy: float, status: str, word: str) -> None:
    # The ten seconds of compiling, in which the GPU idled, are not counted.
    samples = second_by_second(10, gpus=(on_gpu(0.0),))
    samples += [replace(s, sampled_at=s.sampled_at + 10, gpus=(on_gpu(busy),)) for s in samples]
    found = target("gpu_busy", trained(), telemetry=samples)
    assert outcome(found) == (status, busy)
    assert found.reason.startswith(word)


@pytest.mark.parametrize(("used", "status"), [(80, "pass"), (60, "fail"), (97, "fail")])
def test_gpu_memory_is_the_highest_share_of_the_card(used: int, status: str) -> None:
    samples = [
        *second_by_second(gpus=(on_gpu(used=10),)),
        *second_by_second(1, gpus=(on_gpu(used=used),)),
    ]
    assert outcome(target("gpu_memory", trained(), telemetry=samples)) == (status, used / 100)


def test_of_several_gpus_only_the_one_that_trained_counts() -> None:
    other = GpuSample(0, uuid="GPU-b", busy_fraction=0.0)
    mine = GpuSample(1, uuid="GPU-A", busy_fraction=0.95)
    samples = second_by_second(gpus=(other, mine))
    assert outcome(target("gpu_busy", trained(), telemetry=samples)) == ("pass", 0.95)
    unknown = target("gpu_busy", trained(census=Census(device="cuda:0")), telemetry=samples)
    assert outcome(unknown) == ("not_applicable", None)
    assert "2 GPUs" in unknown.reason


def test_without_a_gpu_or_without_nvml_there_is_a_reason() -> None:
    on_cpu = trained(environment=ENVIRONMENT, census=Census(device="cpu"))
    for name in ("gpu_busy", "gpu_memory"):
        assert (
            target(name, on_cpu, telemetry=second_by_second()).reason == "no GPU: this ran on a CPU"
        )
        assert "hotloop[gpu]" in target(name, trained(), telemetry=second_by_second()).reason
        assert target(name, trained()).reason == "no telemetry was written"


@pytest.mark.parametrize(("share", "status"), [(0.01, "pass"), (0.31, "fail")])
def test_data_wait_comes_from_the_breakdown(share: float, status: str) -> None:
    diagnosis = Diagnosis("input", Steps(10, 0, 0.1), {"data_wait": share, "forward": 1 - share})
    assert outcome(target("data_wait", diagnosis=diagnosis)) == (status, share)
    no_wait = Diagnosis("compute", Steps(10, 0, 0.1), {"forward": 1.0})
    assert outcome(target("data_wait", diagnosis=no_wait)) == ("pass", 0.0)
    clocked = Diagnosis(None, Steps(10, 0, 0.1))
    assert target("data_wait", diagnosis=clocked).reason == "no phases were recorded"


def test_tokens_per_second_are_judged_on_a_data_centre_gpu_with_gpt_small_only() -> None:
    fast, slow = trained(), trained(tokens=5000)
    assert outcome(target("tokens_per_s", fast, model=SMALL)) == ("pass", 200_000.0)
    assert outcome(target("tokens_per_s", slow, model=SMALL)) == ("fail", 50_000.0)
    wide = target("tokens_per_s", fast, model=ModelConfig(layers=24, width=1024, heads=16))
    assert outcome(wide) == ("not_applicable", 200_000.0)
    assert "24 layers" in wide.reason
    card = trained(environment=replace(H200, device="NVIDIA GeForce RTX 4090"))
    assert "RTX 4090 is not listed" in target("tokens_per_s", card, model=SMALL).reason
    cpu = trained(environment=ENVIRONMENT, census=Census(device="cpu"))
    assert outcome(target("tokens_per_s", cpu, model=SMALL)) == ("not_applicable", 200_000.0)
    assert "ran on a CPU" in target("tokens_per_s", cpu).reason
    assert "classification" in target("samples_per_s", fast).reason


@pytest.mark.parametrize(("busy", "status"), [(0.6, "pass"), (0.2, "fail"), (0.95, "fail")])
def test_host_cpus_are_judged_beside_a_gpu_and_not_where_they_train(
    busy: float, status: str
) -> None:
    samples = second_by_second(cpu_fraction=busy)
    assert outcome(target("cpu", trained(), telemetry=samples)) == (status, busy)
    cpu = trained(environment=ENVIRONMENT, census=Census(device="cpu"))
    assert outcome(target("cpu", cpu, telemetry=samples)) == ("not_applicable", busy)


def test_host_memory_is_the_highest_of_machine_and_own_limit() -> None:
    roomy = {"memory_bytes": 40, "memory_total_bytes": 100, "memory_limit_bytes": 50}
    samples = second_by_second(process_bytes=30, **roomy)
    found = target("host_memory", trained(), telemetry=samples)
    assert outcome(found) == ("pass", 0.6)
    assert "this process" in found.reason
    full = [*samples, *second_by_second(1, process_bytes=30, **{**roomy, "memory_bytes": 90})]
    found = target("host_memory", trained(), telemetry=full)
    assert outcome(found) == ("fail", 0.9)
    assert "machine" in found.reason


def test_io_wait_is_a_mean_and_some_systems_do_not_tell() -> None:
    def found(**values: float) -> Target:
        return target("io_wait", trained(), telemetry=second_by_second(**values))

    assert outcome(found(iowait_fraction=0.02)) == ("pass", 0.02)
    assert outcome(found(iowait_fraction=0.3)) == ("fail", 0.3)
    assert found(cpu_fraction=0.5).reason == "this system does not tell"


def test_two_seconds_of_training_are_too_few_for_telemetry() -> None:
    short = trained(records=[StepRecord(n, 0.1, tokens=10) for n in range(20)])
    found = target("io_wait", short, telemetry=second_by_second(60, iowait_fraction=0.5))
    assert outcome(found) == ("not_applicable", None)
    assert "too few seconds" in found.reason


def test_only_the_samples_of_the_newest_process_under_way_count() -> None:
    records = [
        StepRecord(0, 100.0),
        StepRecord(1, 30.0, tags=("resumed", "compile")),
        StepRecord(2, 3.0, tags=("compile",)),
        StepRecord(3, 2.0, tags=("eval",)),
        StepRecord(4, 2.5),
    ]
    samples = second_by_second(50)
    assert [s.sampled_at for s in while_training(samples, records)] == [1046, 1047, 1048, 1049]
    assert while_training([], records) == while_training(samples, []) == ()
    assert while_training(samples, [StepRecord(0, 9.0, tags=("compile",))]) == ()


@pytest.mark.parametrize(("seconds", "status"), [(0.4, "pass"), (3.0, "fail")])
def test_checkpoint_stall_is_the_longest_save(seconds: float, status: str) -> None:
    records = [
        phased(0, 1.0, forward=1.0),
        phased(1, 1.2, "checkpoint", checkpoint=0.2, forward=1.0),
        phased(2, 1.0 + seconds, "checkpoint", checkpoint=seconds, forward=1.0),
    ]
    found = target("checkpoint_stall", trained(records=records))
    assert outcome(found) == (status, seconds)
    assert "2 saves" in found.reason
    assert "nothing was saved" in target("checkpoint_stall", trained(records=records[:1])).reason


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ("same", "pass"),
        ("within_noise", "pass"),
        ("different", "fail"),
        ("not_checked", "not_applicable"),
    ],
)
def test_quality_is_the_verdicts_parity(result: Any, status: str) -> None:
    verdict = replace(VERDICT, parity=replace(PARITY, result=result))
    assert target("quality", verdict=verdict).status == status
    assert target("quality").reason == "only a comparison of two arms shows it"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "pass"),
        ({"ratio_low": 1.99}, "fail"),
        ({"parity": replace(PARITY, result="different")}, "fail"),
        ({"parity": replace(PARITY, result="not_checked")}, "not_applicable"),
        (
            {"outcome": "incomparable", "ratio_low": None, "reasons": ("Other GPUs.",)},
            "not_applicable",
        ),
    ],
)
def test_half_the_time_needs_the_low_end_and_the_same_loss(change: Any, status: str) -> None:
    found = target("half_the_time", verdict=replace(VERDICT, **change))
    assert found.status == status
    if change.get("outcome"):
        assert "Other GPUs" in found.reason


def test_reproducible_needs_repeated_runs_that_agree() -> None:
    losses = [9.0 - 0.1 * n for n in range(25)]
    same, apart = curve(losses), curve([loss * 1.05 for loss in losses])
    assert outcome(target("reproducible", repeats=[same, same, same])) == ("pass", 0.0)
    rounded = curve([loss * (1 + 1e-4) for loss in losses])
    assert target("reproducible", repeats=[same, rounded]).status == "fail"
    # What bf16 may do is more.
    assert target("reproducible", repeats=[same, rounded], verdict=VERDICT).status == "pass"
    assert target("reproducible", repeats=[same, apart], verdict=VERDICT).status == "fail"
    assert target("reproducible", repeats=[same]).reason == "not known: these settings ran once"
    assert "at least 20" in target("reproducible", repeats=[same[:5], same[:5]]).reason


def test_values_that_are_no_numbers_are_not_averaged() -> None:
    samples = second_by_second(10, iowait_fraction=0.02)
    samples += second_by_second(5, iowait_fraction=float("nan"))
    assert outcome(target("io_wait", trained(), telemetry=samples)) == ("pass", 0.02)
