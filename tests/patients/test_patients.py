"""Every recorded patient is named right, and its healthy twin is left in peace."""

from __future__ import annotations

import ast
import sys

import pytest
from cases import CASES, HERE, RECORDED, Case
from live import what_is_wrong
from record import load

from hotloop.judge.diagnose import diagnose

HERE_OR_GPU = [
    pytest.param(case, marks=[pytest.mark.gpu] if "cuda" in case.needs else [], id=case.name)
    for case in CASES
]


@pytest.mark.parametrize("case", HERE_OR_GPU)
def test_sickness_is_named_first(case: Case) -> None:
    assert what_is_wrong(diagnose(load(case.recorded(healthy=False))), case, healthy=False) is None


@pytest.mark.parametrize("case", HERE_OR_GPU)
def test_healthy_twin_is_promised_nothing(case: Case) -> None:
    assert what_is_wrong(diagnose(load(case.recorded(healthy=True))), case, healthy=True) is None


@pytest.mark.parametrize("case", HERE_OR_GPU)
def test_breakdown_of_a_recording_adds_up(case: Case) -> None:
    for healthy in (False, True):
        fractions = diagnose(load(case.recorded(healthy))).breakdown
        assert sum(fractions.values()) == pytest.approx(1, abs=0.005)


def test_every_script_is_a_case() -> None:
    programs = {"cases", "live", "record", "conftest"}
    scripts = {path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_")}
    assert scripts - programs == {case.name for case in CASES}


def test_every_recording_belongs_to_a_case() -> None:
    wanted = {case.recorded(healthy) for case in CASES for healthy in (False, True)}
    assert set(RECORDED.glob("*")) <= wanted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_patient_imports_torch_alone(case: Case) -> None:
    """It is somebody's script: nothing of ours may help it to be understood."""
    imported = set()
    for node in ast.walk(ast.parse(case.script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch"}
