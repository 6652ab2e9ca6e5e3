"""A plain training loop, as somebody would write it: run in processes of its own, killed and continued."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from hotloop.checkpoint import Checkpointer, ResumableLoader

ROWS, BATCH, EPOCHS = 22, 4, 3
STEPS = EPOCHS * -(-ROWS // BATCH)


class Rows(Dataset[Any]):
    """Augmented from all three random generators; `seen` is where indices that were fetched are written."""

    def __init__(self, seen: Path | None = None, *, augmented: bool = True) -> None:
        self.seen = seen
        self.augmented = augmented

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if self.seen is not None:
            with self.seen.open("a") as file:
                file.write(f"{index}\n")
        row = torch.sin(torch.arange(8.0) * (index + 1))
        if self.augmented:
            row = row + torch.rand(8) + random.random() + float(np.random.rand())
        return row, torch.tensor([index % 3 / 3.0])


class EagerOrder(Sampler[int]):
    """Draws the whole order when it is asked for an iterator, from NumPy."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(ROWS).tolist())


class OwnGenerator(EagerOrder):
    """One that nobody outside knows of."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(ROWS).tolist())


def make_loader(kind: str, seen: Path | None = None) -> DataLoader[Any]:
    rows = Rows(seen, augmented="workers" not in kind and kind != "generator")
    if kind == "workers":
        return DataLoader(rows, BATCH, shuffle=True, num_workers=2, multiprocessing_context="fork")
    if kind == "persistent_workers":
        return DataLoader(
            rows,
            BATCH,
            shuffle=True,
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
    if kind == "generator":
        return DataLoader(rows, BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))
    if kind == "replacement":
        sampler = torch.utils.data.RandomSampler(rows, replacement=True)
        return DataLoader(rows, BATCH, sampler=sampler)
    if kind in ("eager", "own"):
        return DataLoader(rows, BATCH, sampler=EagerOrder() if kind == "eager" else OwnGenerator())
    if kind == "single":
        return DataLoader(rows, batch_size=None, sampler=EagerOrder())
    return DataLoader(rows, BATCH, shuffle=True)


def train(directory: Path, kind: str, kill_at: int | None, every: int, background: bool) -> None:
    """Losses go to `directory/losses`, one JSON line a step; the weights' digest to `directory/end`."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=100)
    loader = ResumableLoader(make_loader(kind))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    step = epoch = 0
    with Checkpointer(directory / "checkpoints", background=background) as checkpointer:
        if resumed := checkpointer.load_latest(**parts):
            step, epoch = resumed.step, resumed.extra["epoch"]
        for epoch in range(epoch, EPOCHS):  # noqa: B020
            for x, y in loader:
                x, y = x.reshape(-1, 8), y.reshape(-1, 1)
                if len(x) == 1:
                    x, y = x.repeat(2, 1), y.repeat(2, 1)
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                step += 1
                with (directory / "losses").open("a") as file:
                    file.write(json.dumps([step, loss.item().hex()]) + "\n")
                if step % every == 0:
                    checkpointer.save(step, **parts, extra={"epoch": epoch})
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    (directory / "end").write_text(digest.hexdigest())


def losses(directory: Path) -> dict[int, str]:
    """The last one that was seen of each step."""
    lines = (directory / "losses").read_text().splitlines()
    return dict(map(json.loads, lines))


def process_of(function: Any, *arguments: Any) -> Any:
    """One that was started: forked from a process that has loaded torch and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "numpy", "loops"])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def in_new_process(function: Any, *arguments: Any) -> int | None:
    """Its exit code."""
    process = process_of(function, *arguments)
    process.join(120)
    code = process.exitcode
    process.kill()
    return code
