"""What the progress line of a training says, and where its MFU comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hotloop.core.ceilings import Ceilings, MatmulCeiling
from hotloop.core.settings import load_settings
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.hardware.device import read_environment
from hotloop.hardware.environment import store_ceilings
from hotloop.train import meter
from hotloop.train.meter import Live, Meter
from hotloop.train.start import start

Shown = list[tuple[str, float, float | None, str]]


def lines_of(records: list[StepRecord], live: Live | None = None) -> list[str]:
    shown: Shown = []
    watch = Meter(lambda *now: shown.append(now), total=len(records), live=live)
    for record in records:
        watch(record)
    return [note for *_, note in shown]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "SHOW_EVERY_S", 0.0)


@pytest.mark.usefixtures("always")
def test_rate_is_the_median_of_steps_without_a_tag() -> None:
    records = [
        StepRecord(0, 20.0, tokens=1000, loss=9.0, tags=("compile",)),
        StepRecord(1, 0.5, tokens=1000, loss=8.0),
        StepRecord(2, 5.0, tokens=1000, loss=7.5, tags=("eval",)),
        StepRecord(3, 0.25, tokens=1000, loss=7.0),
    ]
    assert lines_of(records) == [
        "1/4  loss 9.000",
        "2/4  2,000 tokens/s  loss 8.000",
        "3/4  2,000 tokens/s  loss 7.500",
        "4/4  3,000 tokens/s  loss 7.000",
    ]


@pytest.mark.usefixtures("always")
def test_what_has_no_tokens_is_counted_in_samples() -> None:
    records = [StepRecord(step, 0.5, samples=32) for step in range(2)]
    assert [*lines_of(records)] == ["1/2  64 samples/s", "2/2  64 samples/s"]


def test_first_step_alone_is_no_steady_state() -> None:
    records = [
        StepRecord(0, 2.0, tokens=1000),
        StepRecord(1, 0.5, tokens=1000, tags=("eval",)),
        StepRecord(2, 0.5, tokens=1000, tags=("eval",)),
    ]
    watch = Meter(lambda *_: None, total=3)
    watch(records[0])
    assert watch.tokens_per_s() == 500  # all there is
    for record in records[1:]:
        watch(record)
    assert watch.tokens_per_s() is None
    watch(StepRecord(3, 0.25, tokens=1000))
    assert watch.tokens_per_s() == 2250


@pytest.mark.usefixtures("always")
def test_the_newest_sample_and_the_ceiling_are_shown() -> None:
    sample = TelemetrySample(1.0, process_cpus=1.5, process_bytes=1_000_000_000)
    live = Live(newest=lambda: sample, cpus=2.0, mfu_per_token=0.51 / 2000)
    (line,) = lines_of([StepRecord(0, 0.5, tokens=1000, loss=3.0)], live)
    assert line == "1/1  2,000 tokens/s  loss 3.000  MFU 51 %  cpu 75 %  mem 1.0 GB"


@pytest.mark.usefixtures("always")
def test_of_many_gpus_the_one_that_trains_is_shown() -> None:
    gpus = (GpuSample(0, uuid="GPU-b", power_w=70.0), GpuSample(1, uuid="GPU-A", power_w=612.0))
    live = Live(newest=lambda: TelemetrySample(1.0, process_bytes=9, gpus=gpus), gpu="GPU-a")
    assert lines_of([StepRecord(0, 0.5)], live) == ["1/1  612 W"]
    unseen = Live(newest=lambda: TelemetrySample(1.0, gpus=gpus[:1]), gpu="GPU-a")
    assert lines_of([StepRecord(0, 0.5)], unseen) == ["1/1"]


@pytest.mark.usefixtures("always")
def test_what_is_not_known_is_left_out() -> None:
    live = Live(newest=lambda: TelemetrySample(1.0), cpus=2.0)
    assert lines_of([StepRecord(0, 0.5)], live) == ["1/1"]
    assert lines_of([StepRecord(0, 0.5, loss=float("nan"))]) == ["1/1  loss nan"]


@pytest.mark.usefixtures("always")
def test_the_line_fits_a_terminal_of_80_columns() -> None:
    gpu = GpuSample(0, uuid="a", busy_fraction=0.97, power_w=612.4, memory_bytes=61_000_000_000)
    sample = TelemetrySample(1.0, process_cpus=1.96, process_bytes=1_000_000_000, gpus=(gpu,))
    live = Live(newest=lambda: sample, cpus=16.0, mfu_per_token=0.412 / 1_252_290, gpu="a")
    watch = Meter(lambda *now: shown.append(now[3]), total=100_000, live=live)
    shown: list[str] = []
    watch(StepRecord(99_611, 1.0, tokens=1_252_290, loss=3.2119))
    assert shown[0].endswith("MFU 41 %  gpu 97 %  612 W  61 GB")
    assert len(shown[0]) <= 78


def test_most_steps_of_a_fast_run_are_not_drawn() -> None:
    shown = lines_of([StepRecord(n, 1e-4, tokens=10) for n in range(10_000)])
    assert len(shown) < 100
    assert shown[-1].startswith("10000/10000")


def test_mfu_is_shown_where_the_ceiling_was_measured_and_only_there(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(meter, "SHOW_EVERY_S", 0.0)

    def notes(name: str) -> list[str]:
        shown: Shown = []
        start(load_settings(tiny_config), tmp_path / name, progress=lambda *now: shown.append(now))
        return [note for what, _, _, note in shown if what == "training"]

    without = notes("without")
    assert any("tokens/s" in note for note in without)
    assert not any("MFU" in note for note in without)

    environment = read_environment("cpu")
    peak = MatmulCeiling("float32", 1e12, (64, 64, 64), 1e12, native=True, measured_at=1.0)
    ceilings = Ceilings(
        environment.device, environment.cpu_model, environment.cpu_quota, 1, environment.torch or "",
        matmul=(peak,),
    )  # fmt: skip
    store_ceilings(environment, ceilings)
    last = notes("with")[-1]
    found = re.search(r"([\d,]+) tokens/s  loss [\d.]+  MFU ([\d.]+) %", last)
    assert found is not None, last
    # 6 x (layer: 4 x 16^2 + 8 x 16^2; head: 257 or so x 16) + 12 x 16 x 16, per token and TFLOP/s.
    rate, mfu = float(found[1].replace(",", "")), float(found[2]) / 100
    per_token = mfu * 1e12 / rate
    assert 30_000 < per_token < 60_000
