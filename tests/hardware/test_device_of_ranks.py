"""Which GPU each of several processes takes. No GPU is needed: only how many torch sees is made up."""

from __future__ import annotations

import pytest
import torch

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.ranks import Ranks
from hotloop.hardware.device import pick_device

SECOND_OF_TWO = Ranks(5, 6, 1, 2, launched=True)


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:1"])
def test_rank_takes_the_gpu_of_its_number_on_this_machine(name: str) -> None:
    assert pick_device(name, SECOND_OF_TWO) == torch.device("cuda", 1)


def test_gpu_of_another_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="each on its own GPU") as caught:
        pick_device("cuda:0", SECOND_OF_TWO)
    assert "train.device=cuda" in (caught.value.do or "")


def test_more_ranks_than_gpus_are_refused_with_their_number() -> None:
    with pytest.raises(EnvironmentFailed, match="torch sees 2 GPUs") as caught:
        pick_device("auto", Ranks(2, 4, 2, 4, launched=True))
    assert "--nproc-per-node 2" in (caught.value.do or "")


def test_one_process_may_name_any_gpu() -> None:
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert pick_device("cuda") == torch.device("cuda", 0)
    assert pick_device("cpu", SECOND_OF_TWO) == torch.device("cpu")
