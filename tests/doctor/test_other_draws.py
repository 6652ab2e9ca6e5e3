"""Real scripts whose batches draw random numbers, made by loader workers: what is proven, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loader_uses import SHUFFLES_IN_ITER, runner_of, trains

from hotloop.core.judgement import Parity
from hotloop.doctor.budget import num_losses
from hotloop.doctor.compared_arms import OTHER_RNG, unfinished_runs
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparisons
from hotloop.doctor.trial_costs import LOSS_RUNS
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.judge.rng_parity import OTHER_RNG_RUNS
from hotloop.optimizations.catalogue import CATALOGUE

pytestmark = pytest.mark.usefixtures("without_compiler", "forked_losses")

HEAD = """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
torch.set_num_threads(1)

class Points(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(7)
        self.x = torch.randn(64, 8, generator=g)
        self.y = self.x @ torch.randn(8, 1, generator=g)
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return self.x[i], self.y[i]
"""
TRAINS = trains("Linear(8, 16)", "Tanh()", "Dropout(0.1)", "Linear(16, 1)", epochs=4)
NOISY = """
class Noisy(Points):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + DRAW, y

loader = DataLoader(Noisy(), 4, shuffle=True)
"""
BY_TORCH = NOISY.replace("DRAW", "0.1 * torch.randn(8)")
BY_NUMPY = NOISY.replace("DRAW", "0.1 * torch.from_numpy(np.random.randn(8).astype(np.float32))")
BY_RANDOM = NOISY.replace("DRAW", "random.uniform(-0.1, 0.1)")
MIXUP = """
def mixed(items):
    x, y = default_collate(items)
    lam, order = np.random.beta(0.4, 0.4), torch.randperm(len(x))
    return lam * x + (1 - lam) * x[order], lam * y + (1 - lam) * y[order]

loader = DataLoader(Points(), 4, shuffle=True, collate_fn=mixed)
"""
OWN_GENERATOR = """
class Noisy(Points):
    rng = np.random.default_rng(0)
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.1 * torch.randn(8) + 0.1 * float(self.rng.standard_normal()), y

loader = DataLoader(Noisy(), 4, shuffle=True)
"""
COUNTS = """
class Noisy(Points):
    calls = 0
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        self.calls += 1
        return x + 1e-4 * self.calls * torch.randn(8), y

loader = DataLoader(Noisy(), 4, shuffle=True)
"""
IN_ITER = SHUFFLES_IN_ITER + BY_TORCH.replace(
    "Noisy(), 4, shuffle=True", "Noisy(), batch_sampler=ByLength()"
)
DRAWS_AHEAD = """
class Drawn:
    def __iter__(self):
        return (int(torch.randint(64, ())) for _ in range(64))
    def __len__(self):
        return 64

""" + BY_TORCH.replace("shuffle=True", "sampler=Drawn()")
SAME_IN_EACH = BY_NUMPY.replace(
    "shuffle=True", "shuffle=True, worker_init_fn=lambda worker: np.random.seed(3)"
)
SAME_IN_EACH_EPOCH = BY_NUMPY.replace(
    "shuffle=True", "shuffle=True, worker_init_fn=lambda worker: np.random.seed(worker)"
)
SEEDS_ITSELF = BY_TORCH.replace("return x +", "torch.manual_seed(i)\n        return x +")
NO_NUMPY_SEED = """
from torch.utils.data._utils import worker
worker.HAS_NUMPY = False
"""


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Makes a doctor's trial runner for a script in whose loader random draws were seen."""

    def make(script: str, steps: int = 60) -> TrialRunner:
        seen = {"num_batches": 64, "num_workers": 0, "draws": True}
        return runner_of(tmp_path, script, epochs=4, loss_steps=steps, num_steps=64, **seen)

    return make


def _workers(number: int = 2) -> Fix:
    return Fix(CATALOGUE["loader_workers"], number, ("HL102",), 1.5)


def _compare_losses(runner: TrialRunner, number: int = 2) -> Parity:
    return (
        LossComparisons(runner, [_workers(number)]).of("loader_workers", [_workers(number)]).parity
    )


OTHER_RATE = ("lr=0.05", "lr=0.051")
BATCH_LEFT_OUT = (
    "for x, y in loader:\n",
    "for n, (x, y) in enumerate(loader):\n        if n == 7: continue\n",
)


@pytest.mark.parametrize(
    ("loader", "mistake"),
    [
        pytest.param(BY_NUMPY, OTHER_RATE, id="numpy"),
        pytest.param(BY_TORCH, BATCH_LEFT_OUT, id="torch"),
        pytest.param(BY_RANDOM, OTHER_RATE, id="random"),
        pytest.param(MIXUP, BATCH_LEFT_OUT, id="mixup"),
    ],
)
@pytest.mark.at_once(1)
def test_other_augmentation_numbers_learn_the_same_and_a_mistake_is_found_beneath_them(
    made: Any, tmp_path: Path, loader: str, mistake: tuple[str, str]
) -> None:
    script = HEAD + loader + TRAINS
    runner = made(script)
    assert num_losses(runner, _workers()) == LOSS_RUNS + OTHER_RNG_RUNS + 2
    parity = _compare_losses(runner)
    assert num_losses(runner, _workers()) == 0
    assert (parity.result, parity.parity_class) == ("within_noise", "other_draws"), parity.reason
    assert (
        "the same samples in the same order, with other random numbers in augmentation"
        in parity.reason
    )
    assert "equal to the last bit over 60 steps" in parity.reason
    runs = tmp_path / "doctor" / "trials" / OTHER_RNG
    assert len(list(runs.iterdir())) == OTHER_RNG_RUNS

    patched = script.replace("shuffle=True", "shuffle=True, num_workers=2")
    edited = patched.replace(*mistake)
    assert script != patched != edited
    arm = runner.with_fixes("together", [], edited={"train.py": edited.encode()})
    parity = LossComparisons(runner, [_workers()]).of_arm(arm, [_workers()]).parity
    assert parity.result == "different", parity.reason
    assert "held fixed too, losses part by" in parity.reason


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (OWN_GENERATOR, "held fixed too, losses part by"),
        (SAME_IN_EACH, "draw from `numpy.random`, and 8 workers begin with the same numbers"),
        (COUNTS, "held fixed too, losses part by"),
        (IN_ITER, "held fixed too, losses part by"),
        (DRAWS_AHEAD, "held fixed too, losses part by"),
        (SAME_IN_EACH_EPOCH, "draw from `numpy.random`, and 4 workers begin with the same numbers"),
        (NO_NUMPY_SEED + BY_NUMPY, "draw from `numpy.random`, and 8 workers begin with the same"),
        (SEEDS_ITSELF, "seeds torch's generator itself"),
    ],
    ids=[
        *("own_generator", "same_in_each", "counts", "shuffles_in_iter", "draws_ahead"),
        *("same_in_each_epoch", "numpy_is_not_seeded", "seeds_itself"),
    ],
)
@pytest.mark.at_once(2)
def test_what_workers_do_otherwise_is_found_beneath_the_noise(
    made: Any, loader: str, reason: str
) -> None:
    parity = _compare_losses(made(HEAD + loader + TRAINS))
    assert parity.result == "different", parity.reason
    assert parity.parity_class == "other_draws"
    assert reason in parity.reason


@pytest.mark.parametrize(
    ("loader", "steps", "workers", "reason"),
    [
        (BY_TORCH, 60, 1, None),
        (
            SAME_IN_EACH_EPOCH.replace("Noisy(), 4", "Noisy(), 1").replace(
                "np.random.seed(worker)", "np.random.seed(torch.initial_seed() % 2**32)"
            ),
            60,
            2,
            None,
        ),
        (BY_TORCH.replace("Noisy(), 4", "Noisy(), 1"), 60, 1, "one worker in one epoch"),
        (
            SAME_IN_EACH_EPOCH.replace("Noisy(), 4", "Noisy(), 1"),
            60,
            2,
            "its loader has a worker_init_fn, so it takes two epochs",
        ),
    ],
    ids=[
        *("one_worker", "own_seeds_by_epoch", "one_worker_in_one_epoch"),
        "own_seeds_in_one_epoch",
    ],
)
@pytest.mark.slow
def test_what_cannot_be_told_is_not_claimed(
    made: Any, loader: str, steps: int, workers: int, reason: str | None
) -> None:
    parity = _compare_losses(made(HEAD + loader + TRAINS, steps), workers)
    if reason is None:
        assert parity.result == "within_noise", parity.reason
    else:
        assert parity.result == "not_checked", parity.reason
        assert reason in parity.reason


PADDED = """
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(3)
rows = torch.randint(2, 50, (240, 32)) * (torch.arange(32) < torch.arange(240)[:, None] % 7 * 2 + 3)
data = [{"input_ids": row, "attention_mask": (row > 0).long()} for row in rows]
table, head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.05)

def seen(ids, mask):
    drawn = torch.nn.functional.dropout(table(ids), 0.3)
    return (drawn * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

loader = DataLoader(data, 4)
for batch in loader:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    loss = torch.nn.functional.cross_entropy(head(SEEN), ids[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MASKED = PADDED.replace("SEEN", "seen(ids, mask)")
COUNTS_PADDING = PADDED.replace("SEEN", "seen(ids, torch.ones_like(mask))")
DROPS_ITSELF = MASKED.replace(
    "torch.nn.functional.dropout(table(ids), 0.3)",
    "table(ids) * (torch.rand(ids.shape) > 0.3)[..., None]",
)


def _padding(runner: TrialRunner) -> Parity:
    fix = Fix(CATALOGUE["dynamic_padding"], 8, ("HL111",), 4.0)
    arm = runner.with_fixes("dynamic_padding", [fix])
    assert unfinished_runs(runner, arm, [fix]) == 1
    parity = LossComparisons(runner, [fix]).of("dynamic_padding", [fix]).parity
    assert num_losses(runner, fix) == unfinished_runs(runner, arm, [fix]) == 0
    return parity


@pytest.mark.at_once(1)
def test_padding_that_a_mask_leaves_out_may_go_though_dropout_draws_in_another_shape(
    made: Any,
) -> None:
    parity = _padding(made(MASKED))
    assert (parity.result, parity.parity_class) == ("within_noise", "other_draws"), parity.reason
    assert parity.num_steps == 60
    assert parity.max_difference is not None
    assert parity.max_difference < 1e-5
    assert parity.reason.startswith("without dropout its losses are ")


@pytest.mark.at_once(2)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(COUNTS_PADDING, id="counts"),
        pytest.param(DROPS_ITSELF, id="drops_itself", marks=pytest.mark.slow),
    ],
)
def test_padding_that_a_model_computes_with_stays(made: Any, script: str) -> None:
    parity = _padding(made(script))
    assert parity.result == "different", parity.reason
    assert "without dropout, losses part" in parity.reason
