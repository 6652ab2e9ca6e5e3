"""Copies to a GPU, as far as a CPU shows: which calls are meant, and when the script must be left alone.

What really is copied is tested in `tests/gpu`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hotloop.core.census import CallUse, Census
from hotloop.hardware.limits import Machine
from hotloop.optimizations.pinned_copies import PINNED_COPIES
from hotloop.optimizations.pinned_copies.live import WATCHED, Copies, goes_to_cuda


@pytest.mark.parametrize(
    ("args", "kwargs", "meant"),
    [
        (("cuda",), {}, True),
        ((torch.device("cuda", 1),), {}, True),
        ((0,), {}, True),
        ((), {"device": "cuda:0"}, True),
        ((), {"device": "cuda", "non_blocking": False}, True),
        (("cuda",), {"non_blocking": True}, False),
        (("cuda", torch.float16), {}, False),
        (("cuda",), {"dtype": torch.float16}, False),
        (("cpu",), {}, False),
        ((torch.float16,), {}, False),
        ((torch.zeros(1),), {}, False),
        ((), {}, False),
    ],
)
def test_only_plain_copies_to_a_gpu_are_meant(
    args: tuple[Any, ...], kwargs: dict[str, Any], meant: bool
) -> None:
    assert goes_to_cuda(args, kwargs) == meant


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[bool, str]] = []

    def applied(self, where: str) -> None:
        self.lines.append((True, where))

    def refused(self, why: str) -> None:
        self.lines.append((False, why))

    def wrong(self, why: str) -> None:
        self.lines.append((False, f"wrong: {why}"))


def test_host_waits_until_it_is_known_that_nobody_writes_there() -> None:
    told = Told()
    copies = Copies(told)  # type: ignore[arg-type]
    batches = [torch.zeros(2) for _ in range(WATCHED + 2)]
    assert [copies.may_run_on(batch) for batch in batches] == [False] * WATCHED + [True] * 2


def test_script_that_writes_into_what_it_copied_is_waited_for() -> None:
    told = Told()
    copies = Copies(told)  # type: ignore[arg-type]
    batch = torch.zeros(2)
    for _ in range(WATCHED + 2):
        assert not copies.may_run_on(batch)
        batch += 1
    assert told.lines == [(False, "the script writes into a batch that it has copied")]


def test_script_that_writes_later_into_what_was_not_waited_for_was_given_something_else() -> None:
    told = Told()
    copies = Copies(told)  # type: ignore[arg-type]
    batches = [torch.zeros(2) for _ in range(WATCHED + 1)]
    for batch in batches:
        copies.may_run_on(batch)
    batches[-1] += 1
    assert not copies.may_run_on(batches[0])
    assert told.lines[-1] == (False, "wrong: the script writes into a batch that it has copied")


def test_it_is_for_pageable_copies_to_a_gpu() -> None:
    pageable = CallUse("Tensor.to", "train.py:3", 10, 0.1, 100, pageable=True)
    pinned = CallUse("Tensor.to", "train.py:3", 10, 0.1, 100, pageable=False)
    assert PINNED_COPIES.observed(Census(copies=(pageable,), seen=("copies",)), True) is False
    assert PINNED_COPIES.observed(Census(copies=(pinned,), seen=("copies",)), True) is True
    assert PINNED_COPIES.observed(Census(), True) is None
    assert "CPU" in (PINNED_COPIES.why_not(Machine("cpu", (), None, 2), True, {}) or "")
    assert PINNED_COPIES.why_not(Machine("cuda", (), None, 2), True, {}) is None
