"""The line under a running training: what is known, within 80 columns."""

from __future__ import annotations

from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.report.live import live_line

HOST = TelemetrySample(1.0, process_cpus=1.96, process_bytes=1_000_000_000)


def test_line_names_speed_loss_mfu_and_the_host() -> None:
    line = live_line(
        step=612, total=1000, tokens_per_s=5290.4, loss=3.2119, mfu=0.512, sample=HOST, cpus=2.0
    )
    assert line == "612/1000  5,290 tokens/s  loss 3.212  MFU 51 %  cpu 98 %  mem 1.0 GB"


def test_what_is_not_known_is_left_out() -> None:
    assert live_line(step=1, total=10) == "1/10"
    assert live_line(step=1, total=10, sample=TelemetrySample(1.0), cpus=2.0) == "1/10"
    assert live_line(step=1, total=10, loss=float("nan")) == "1/10  loss nan"


def test_on_a_gpu_its_busy_time_power_and_memory_stand_there() -> None:
    gpu = GpuSample(0, busy_fraction=0.97, power_w=612.4, memory_bytes=61_000_000_000)
    line = live_line(
        step=99_612, total=100_000, tokens_per_s=1_252_290.0, loss=3.2119, mfu=0.412, sample=HOST,
        cpus=16.0, gpu=gpu,
    )  # fmt: skip
    assert line.endswith("MFU 41 %  gpu 97 %  612 W  61 GB")
    assert len(line) <= 78
