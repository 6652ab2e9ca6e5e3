"""A longer queue of batches, in real scripts: which loaders get it, and that the batches stay what they are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hotloop.core import child
from hotloop.core.census import Census, LoaderUse
from hotloop.optimizations.prefetch import PREFETCH

SCRIPT = """
import json
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

class Squares(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.tensor(float(index)) + torch.rand(())

torch.manual_seed(0)
loaders = [
    DataLoader(Squares(), 2, shuffle=True, num_workers=2),
    DataLoader(Squares(), batch_size=None, num_workers=1, persistent_workers=True),
    DataLoader(Squares(), 2),
    DataLoader(Squares(), 2, num_workers=1),
]
seen = [[each.tolist() for each in loader] for loader in loaders[:3] for _ in range(2)]
print(json.dumps([seen, [each.prefetch_factor for each in loaders]]))
"""


def test_a_longer_queue_gives_the_same_batches(run_foreign: Any) -> None:
    first = SCRIPT.split("\n").index("loaders = [") + 2
    made = [f"script.py:{line}" for line in range(first, first + 3)]
    told = {"site": made[0], "made": made, "workdir": ""}
    plain = run_foreign(SCRIPT)
    fixed = run_foreign(SCRIPT, {"prefetch": 6}, environment={child.LOADER: json.dumps(told)})
    assert plain.printed[1] == [2, 2, None, 2]
    assert fixed.printed == [plain.printed[0], [6, 6, None, 2]]
    assert set(fixed.applied) == {"the loader of Squares has prefetch_factor=6"}
    assert fixed.refused == ["Squares has no loader workers"]


def test_without_a_loader_that_was_seen_there_is_none_to_change(run_foreign: Any) -> None:
    fixed = run_foreign("import torch; print(1)", {"prefetch": 6})
    assert fixed.refused == ["where the loader that trains is made was not seen in the first run"]


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
