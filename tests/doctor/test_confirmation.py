"""What other batches, or nothing at all, comes of: workers of the loader itself, and patches that were not tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loader_uses import SHUFFLES_IN_ITER, runner_of, trains

from hotloop.core.errors import CommandFailed
from hotloop.doctor.confirmation import confirmed
from hotloop.doctor.fix_status import tried_fix
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparisons
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.source_edit import Keywords

pytestmark = pytest.mark.usefixtures("without_compiler", "forked_losses")

HEAD = """
import random
import torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)

class Points(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(4, generator=g), torch.randn(1, generator=g)
"""
TRAINS = trains("Linear(4, 8)", "Tanh()", "Linear(8, 1)", epochs=3, rate=0.1)
IN_ITER = SHUFFLES_IN_ITER + "loader = DataLoader(Points(), batch_sampler=ByLength())"
SPAWNS = """
import torch.multiprocessing
torch.multiprocessing.set_start_method("spawn")
loader = DataLoader(Points(), 4, collate_fn=lambda items: tuple(map(torch.stack, zip(*items))))
"""
SEEDS_ITS_WORKERS = """
class Noisy(Points):
    scale = 0.0
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + self.scale, y

def begin(worker):
    torch.utils.data.get_worker_info().dataset.scale = 1.0

loader = DataLoader(Noisy(), 4, worker_init_fn=begin)
"""
STEPS = 40


def _runner(place: Path, script: str) -> TrialRunner:
    return runner_of(place, script, epochs=3, loss_steps=STEPS, num_steps=STEPS)


def _workers() -> Fix:
    return Fix(CATALOGUE["loader_workers"], 2, ("HL000",), 1.5)


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    "loader", [IN_ITER, SEEDS_ITS_WORKERS], ids=["shuffles_in_iter", "worker_init_fn"]
)
def test_loader_that_gives_other_batches_with_workers_learns_something_else(
    tmp_path: Path, loader: str
) -> None:
    comparisons = LossComparisons(_runner(tmp_path, HEAD + loader + TRAINS), [_workers()])
    comparison = comparisons.of("loader_workers", [_workers()])
    assert comparison.parity.result == "different"
    assert "losses part by" in comparison.parity.reason


def test_workers_that_are_spawned_and_cannot_be_fail_in_words(tmp_path: Path) -> None:
    comparisons = LossComparisons(_runner(tmp_path, HEAD + SPAWNS + TRAINS), [_workers()])
    with pytest.raises(CommandFailed) as failed:
        comparisons.of("loader_workers", [_workers()])
    assert "pickle" in f"{failed.value.what} {failed.value.do}"


def test_patch_that_is_something_else_than_was_tried_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def also_shuffled(value: Any, facts: Any) -> Keywords:
        values = {"num_workers": "2", "shuffle": "True"}
        return Keywords("torch.utils.data", ("DataLoader",), values)

    wrong = replace(CATALOGUE["loader_workers"], source_edit=also_shuffled)
    monkeypatch.setitem(CATALOGUE, "loader_workers", wrong)
    runner = _runner(tmp_path, HEAD + "loader = DataLoader(Points(), 4)" + TRAINS)
    comparisons = LossComparisons(runner, [_workers()])
    comparison = comparisons.of("loader_workers", [_workers()])
    assert comparison.parity.result == "same", comparison.parity.reason
    entry = tried_fix(_workers(), "kept", "faster, and learns the same")
    tried = {"loader_workers": replace(entry, directory="trials/loader_workers")}
    found = confirmed(runner, comparisons, [_workers()], tried)
    assert (found.fixes, found.verdict) == ((), None)
    assert found.dropped["loader_workers"].startswith("does not train as before: losses part by")
