"""Whatever is in a file, a command ends soon, with a documented exit code and one clear error.

The same inputs in every run; `benchmarks/fuzz_inputs.py --minutes 60` tries others for an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fuzzers import FUZZERS
from ground import Ground
from hypothesis import HealthCheck, Phase, given, settings
from warm import Warm


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Once, though workers give some of the tests below to each other: eight seconds."""
    root = tmp_path_factory.mktemp("fuzz")
    warm = Warm(root / "warm")
    yield Ground(warm, root)
    warm.close()


@pytest.mark.parametrize("name", FUZZERS)
def test_every_input_ends_in_a_documented_way(name: str, ground: Ground) -> None:
    fuzzer = FUZZERS[name]

    @settings(
        max_examples=fuzzer.examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(fuzzer.cases)
    def check(case: Any) -> None:
        assert fuzzer.run(ground, case).problem() is None

    check()
