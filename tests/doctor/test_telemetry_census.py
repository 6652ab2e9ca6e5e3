"""What other programs did to the machine while a command trained."""

from __future__ import annotations

import pytest

from hotloop.core.census import Census
from hotloop.core.telemetry import TelemetrySample
from hotloop.doctor.telemetry_census import with_foreign_load

OWN = Census(cpu_busy=1.0, start_s=3.0)


def telemetry(*busy: float | None) -> list[TelemetrySample]:
    return [TelemetrySample(100.0 + second, cpu_fraction=b) for second, b in enumerate(busy)]


def test_what_is_not_the_process_is_foreign_and_the_start_does_not_count() -> None:
    seen = with_foreign_load(OWN, telemetry(0.1, 0.1, 0.1, 1.0, 1.0, 0.7), num_cpus=2)
    assert seen.machine_busy == pytest.approx(0.9)
    assert seen.foreign_busy == pytest.approx(0.4)


def test_it_is_never_negative() -> None:
    assert with_foreign_load(OWN, telemetry(*[0.2] * 9), num_cpus=2).foreign_busy == 0


@pytest.mark.parametrize(
    ("census", "busy"),
    [(OWN, []), (OWN, [1.0] * 5), (OWN, [None] * 9), (Census(start_s=0.0), [1.0] * 9)],
)
def test_too_little_telemetry_says_nothing(census: Census, busy: list[float | None]) -> None:
    assert with_foreign_load(census, telemetry(*busy), num_cpus=2) == census
