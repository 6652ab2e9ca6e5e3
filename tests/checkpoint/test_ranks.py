"""`Checkpointer(every_rank=True)`: two processes that are killed continue as if they had not been."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loops import Rows, losses, process_of
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from hotloop.checkpoint import Checkpointer, ResumableLoader
from hotloop.core.errors import UsageError

NUM_STEPS = 9
"""Three epochs of three batches on each of two ranks."""


def join_group(meeting: Path, rank: int, num_ranks: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks
    )


def leave_group() -> None:
    """Ends the process: gloo now and then hangs in what undoes a group."""
    dist.barrier()
    os._exit(0)


def train(root: Path, rank: int, meeting: str, kill_at: int | None) -> None:
    """Its losses before they are averaged go to `root/RANK/losses`: dropout and augmentation are each rank's own."""
    join_group(root / meeting, rank, 2)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(100 + rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = Rows()
    loader = ResumableLoader(DataLoader(rows, 4, sampler=DistributedSampler(rows)))
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    step = epoch = 0
    with Checkpointer(root / "checkpoints", every_rank=True, background=False) as checkpointer:
        if resumed := checkpointer.load_latest(**parts):
            step, epoch = resumed.step, resumed.extra
        for epoch in range(epoch, 3):  # noqa: B020
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                with (root / str(rank) / "losses").open("a") as file:
                    file.write(json.dumps([step, loss.item().hex()]) + "\n")
                if step % 2 == 0:
                    checkpointer.save(step, **parts, extra=epoch)
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
    leave_group()


def both(function: Any, *arguments: Any) -> list[int | None]:
    """Exit codes of two processes: `function(first, RANK, *rest)`."""
    processes = [process_of(function, arguments[0], rank, *arguments[1:]) for rank in range(2)]
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def test_each_rank_continues_with_its_own_random_numbers_and_samples(tmp_path: Path) -> None:
    for name, kills in (("whole", (None,)), ("killed", (3, 5, None))):
        for rank in range(2):
            (tmp_path / name / str(rank)).mkdir(parents=True)
        for number, kill_at in enumerate(kills):
            code = 0 if kill_at is None else -signal.SIGKILL
            assert both(train, tmp_path / name, f"meeting-{number}", kill_at) == [code, code]
    for rank in ("0", "1"):
        whole = losses(tmp_path / "whole" / rank)
        assert len(whole) == NUM_STEPS
        assert losses(tmp_path / "killed" / rank) == whole
    assert losses(tmp_path / "whole" / "0") != losses(tmp_path / "whole" / "1")


def save_and_load(root: Path, rank: int) -> None:
    """What needs a group, each in a checkpoint of its own; what was seen goes to `root/RANK.json`."""
    join_group(root / "meeting", rank, 2)
    model, seen = nn.Linear(2, 2), {}
    torch.manual_seed(rank)
    if rank == 0:
        Checkpointer(root / "one", background=False).save(1, model=model)
    Checkpointer(root / "each", background=False, every_rank=True).save(1, model=model)
    Checkpointer(root / str(rank), background=False).save(rank + 1, model=model)
    dist.barrier()
    now = torch.get_rng_state()
    torch.manual_seed(50 + rank)
    mine = torch.get_rng_state()
    Checkpointer(root / "one").load_latest(model=model)
    seen["of rank 0 alone"] = [torch.equal(torch.get_rng_state(), each) for each in (now, mine)]
    Checkpointer(root / "each").load_latest(model=model)
    seen["of each"] = [torch.equal(torch.get_rng_state(), each) for each in (now, mine)]
    try:
        Checkpointer(root / str(rank), every_rank=True).load_latest(model=model)
    except UsageError as error:
        seen["steps"] = error.what
    (root / f"{rank}.json").write_text(json.dumps(seen))
    leave_group()


def test_a_rank_never_takes_the_random_numbers_of_another(tmp_path: Path) -> None:
    assert both(save_and_load, tmp_path) == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["of rank 0 alone"] == [True, False]
    assert second["of rank 0 alone"] == [False, True]
    assert first["of each"] == second["of each"] == [True, False]
    what = "the newest checkpoints that the 2 processes find are of steps [1, 2]"
    assert first["steps"] == second["steps"] == what


def test_loader_of_two_ranks_is_not_continued_by_one(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    assert both(train, tmp_path, "meeting", 3) == [-signal.SIGKILL] * 2
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    loader = ResumableLoader(DataLoader(Rows(), 4, shuffle=True))
    checkpointer = Checkpointer(tmp_path / "checkpoints", every_rank=True)
    with pytest.raises(UsageError, match="`loader` is at the position of one of 2 processes"):
        checkpointer.load_latest(model=model, loader=loader)
    resumed = checkpointer.load_latest(model=model)
    assert resumed is not None
    assert resumed.step == 2
