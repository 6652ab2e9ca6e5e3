"""A sample of the live patients, about half a minute; all of them are `live.py`, in `make proof`.

Those that one CPU is enough for: they are named whatever else the machine does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES
from live import run_alone, run_examined, what_is_wrong

SAMPLE = ("logging_per_step", "frequent_checkpoint", "garbage_collection")


@pytest.mark.parametrize("name", SAMPLE)
def test_live_patient_is_named_and_trains_as_without_the_doctor(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    examined, _, diagnosis = run_examined(case, tmp_path / "run", healthy=False)
    assert what_is_wrong(diagnosis, case, healthy=False) is None
    assert examined.loss == run_alone(case, healthy=False).loss
