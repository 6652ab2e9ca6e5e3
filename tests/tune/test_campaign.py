"""What `hotloop tune` says of its choice."""

from __future__ import annotations

import pytest

from hotloop.core.judgement import Parity, Verdict
from hotloop.tune.campaign import other_speed


def verdict(seconds: float | None) -> Verdict:
    return Verdict(
        "inconclusive", 1.0, 0.8, 1.2, 0.95, Parity("not_checked", None), "baseline", "values",
        baseline_s_per_work=seconds,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (0.2, 0.1, "was 2.0 times faster by then"),
        (0.1, 0.25, "was 2.5 times slower by then"),
        (0.1, 0.14, ""),
        (0.14, 0.1, ""),
        (None, 0.1, ""),
        (0.1, None, ""),
    ],
)
def test_a_machine_that_has_become_another_is_told(
    before: float | None, now: float | None, said: str
) -> None:
    found = other_speed(verdict(before), verdict(now))
    assert said in found
    assert bool(found) == bool(said)
