from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from hotloop.optimizations.gradient_compression import trainer as gradient_compression
from hotloop.optimizations.gradient_compression.trainer import sum_over_ranks, wait_for_callbacks


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_every_function_that_is_handed_to_the_group_is_waited_for(
    alone: None, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: set[Any] = set()
    monkeypatch.setattr(gradient_compression, "_callbacks", handed)
    gradients = torch.full((8,), 3.0)
    future, _ = sum_over_ranks(gradients, compression)
    future.wait()
    assert gradients.tolist() == [3.0] * 8
    assert len(handed) == 1


def test_a_training_ends_after_the_last_function_that_the_group_held() -> None:
    def called_when_summed() -> None: ...

    gradient_compression._callbacks.add(called_when_summed)
    kept = [called_when_summed]
    del called_when_summed

    def hold() -> None:
        """As a thread of the group does that is not scheduled for a while."""
        time.sleep(0.3)
        kept.clear()

    thread = threading.Thread(target=hold)
    thread.start()
    wait_for_callbacks(timeout_s=30)
    assert not kept
    thread.join()


def test_one_that_is_never_let_go_of_does_not_hold_up_the_end() -> None:
    def called_when_summed() -> None: ...

    gradient_compression._callbacks.add(called_when_summed)
    wait_for_callbacks(timeout_s=0.05)
    assert len(gradient_compression._callbacks) == 1
