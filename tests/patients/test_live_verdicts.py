"""How a live run is judged: by the cause, its place, and who had the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import CASES
from live import place, robbed, what_is_wrong
from record import load

from hotloop.core.judgement import Diagnosis, Finding, Steps

CASE = next(case for case in CASES if case.name == "logging_per_step")
SOURCE = CASE.script.read_text(encoding="utf-8").splitlines()
LINE = next(number for number, line in enumerate(SOURCE, 1) if "log.debug" in line)


def diagnosed(*findings: tuple[str, float, str | None]) -> Diagnosis:
    found = tuple(Finding(code, "", gain, site=site) for code, gain, site in findings)
    return Diagnosis(None, Steps(70, 10, 0.01), findings=found)


def test_a_place_is_told_by_its_function_and_its_line() -> None:
    assert place(CASE, f"tests/{CASE.script.name}:{LINE}").startswith("main: log.debug(")
    assert place(CASE, f"{CASE.script.name}:1").startswith(': """')
    assert place(CASE, "torch/nn/modules/linear.py:125") == ""
    assert place(CASE, None) == ""


@pytest.mark.parametrize(
    ("findings", "right"),
    [
        ((("HL703", 1.5, f"{CASE.script.name}:{LINE}"),), True),
        ((("HL703", 1.5, f"{CASE.script.name}:{LINE}"), ("HL801", 1.2, None)), True),
        ((("HL703", 1.5, f"{CASE.script.name}:{LINE - 2}"),), False),
        ((("HL703", 1.5, None),), False),
        ((("HL801", 1.6, None), ("HL703", 1.5, f"{CASE.script.name}:{LINE}")), False),
        ((), False),
    ],
)
def test_a_sickness_is_named_only_first_and_at_its_place(findings: tuple, right: bool) -> None:
    assert (what_is_wrong(diagnosed(*findings), CASE, healthy=False) is None) is right


@pytest.mark.parametrize(("gain", "right"), [(1.049, True), (1.05, False)])
def test_a_healthy_script_may_be_promised_less_than_five_per_cent(gain: float, right: bool) -> None:
    assert (what_is_wrong(diagnosed(("HL801", gain, None)), CASE, healthy=True) is None) is right


def test_only_measured_load_of_other_programs_excuses_a_verdict() -> None:
    measurement = load(CASE.recorded(healthy=True))
    assert measurement.census is not None
    for machine, foreign, own, excused in (
        (1.0, 0.5, 0.79, True),
        (1.0, 0.5, 0.81, False),
        (1.0, 0.19, 0.5, False),
        (0.84, 0.5, 0.5, False),
        (None, None, 0.5, False),
        (1.0, 0.5, None, False),
    ):
        census = replace(
            measurement.census, machine_busy=machine, foreign_busy=foreign, cpu_busy=own
        )
        assert (robbed(replace(measurement, census=census), CASE) is not None) is excused
