"""A longer queue of batches, in real scripts: which loaders get it, and that the batches stay what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotloop.core.census import Census, LoaderUse
from hotloop.optimizations.prefetch import PREFETCH

SCRIPT = """
import json
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

class Squares(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.tensor(float(index)) + torch.rand(())

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(24.0))

class Drawn(Sampler):
    def __len__(self):
        return 24
    def __iter__(self):
        for _ in range(24):
            yield int(torch.randint(24, ()))

torch.manual_seed(0)
loader = LOADER
seen, queued = [], []
for epoch in range(2):
    iterator = iter(loader)
    queued.append(getattr(iterator, "_prefetch_factor", None))
    for batch in iterator:
        seen.append(batch.tolist())
        torch.rand(3)  # dropout, say
print(json.dumps([seen, queued]))
"""


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(Squares(), batch_size=2, shuffle=True, num_workers=2)",
        "DataLoader(Squares(), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True)",
        "DataLoader(Squares(), batch_size=None, num_workers=1)",
    ],
)
def test_a_longer_queue_gives_the_same_batches(run_foreign: Any, loader: str) -> None:
    script = SCRIPT.replace("LOADER", loader)
    plain, fixed = run_foreign(script), run_foreign(script, {"prefetch": 6})
    assert plain.printed == [fixed.printed[0], [2, 2]]
    assert fixed.printed[1] == [6, 6]
    assert fixed.applied == ["6 batches of Squares per worker"]
    assert not fixed.refused


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        ("DataLoader(Stream(), batch_size=2, num_workers=2)", "an IterableDataset"),
        ("DataLoader(Squares(), batch_size=2, sampler=Drawn(), num_workers=1)", "Drawn may draw"),
    ],
)
def test_where_batches_could_change_the_queue_stays(
    run_foreign: Any, loader: str, why: str
) -> None:
    script = SCRIPT.replace("LOADER", loader)
    fixed = run_foreign(script, {"prefetch": 6})
    assert run_foreign(script).printed == fixed.printed
    assert why in fixed.refused[0]
    assert not fixed.applied


@pytest.mark.parametrize("loader", ["num_workers=0", "num_workers=1, prefetch_factor=9"])
def test_what_has_no_workers_or_a_longer_queue_is_left_alone(run_foreign: Any, loader: str) -> None:
    script = SCRIPT.replace("LOADER", f"DataLoader(Squares(), batch_size=2, {loader})")
    fixed = run_foreign(script, {"prefetch": 6})
    assert run_foreign(script).printed == fixed.printed
    assert not fixed.said


LOADER = LoaderUse(
    site="train.py:3", trains=True, dataset="Squares", dataset_site=None, collate_site=None, iterable=False,
    in_memory=False, num_workers=2, batch_size=2, pin_memory=False, persistent_workers=False, prefetch_factor=2,
    num_batches=60, batch_bytes=8, wait_s=0.001, wait_p99_s=0.1, fetch_s=0.01, collate_s=0.0, pin_s=None,
    fetch_cpu_fraction=1.0, num_epochs=2, epoch_start_s=None, per_epoch=12,
)  # fmt: skip


def test_the_queue_leads_by_what_was_waited_for() -> None:
    values_for = PREFETCH.values_for
    assert values_for is not None

    def chosen(profiled_step_s: float | None, loader: LoaderUse = LOADER) -> tuple[int, ...]:
        return values_for(Census(loaders=(loader,), profiled_step_s=profiled_step_s))

    assert chosen(0.0060) == (12,)  # 2 workers lead by 10 ms with each batch more
    assert chosen(None) == (4,)
    assert chosen(0.0001) == (64,)
    assert chosen(1.0, replace(LOADER, prefetch_factor=4)) == (8,)
    assert chosen(0.0060, replace(LOADER, num_workers=0)) == ()
    assert chosen(0.0060, replace(LOADER, iterable=True)) == ()
