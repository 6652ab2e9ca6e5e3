"""GPUs that are not here."""

from __future__ import annotations

import pytest

from hotloop.core.errors import UsageError
from hotloop.hardware.gpus import known_gpu, machine_with


def test_a_name_is_known_whatever_its_case_and_auto_knows_its_dtypes() -> None:
    machine = machine_with(known_gpu("a100-80gb"))
    assert machine.device_type == "cuda"
    assert machine.fast_dtypes[0] == "bfloat16"
    assert machine_with(known_gpu("T4")).fast_dtypes[0] == "float16"


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="H300") as refused:
        known_gpu("H300")
    assert "H200" in str(refused.value.do)
