"""Random numbers of batches, held fixed in a real loader, and what is written down of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import warm_python
from hotloop.core.parity_records import RngLog, read_rng_log

SCRIPT = """
import sys
from pathlib import Path
import random
import numpy as np
import torch
from torch.utils.data import DataLoader
from hotloop.trial.fixed_batch_rng import FixedBatchRng
from hotloop.trial.seeding import _draw_in_each_epoch

class Drawn:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return i, torch.rand(()).item(), random.random(), np.random.rand()

def constant(worker):
    np.random.seed(worker)

def by_torch(worker):
    np.random.seed(torch.initial_seed() % 2**32)

torch.set_num_threads(2)
_draw_in_each_epoch(torch.utils.data.dataloader)
FixedBatchRng(int(sys.argv[2]), Path(sys.argv[1])).install()
torch.manual_seed(0); random.seed(0); np.random.seed(0)
kept = None
for epoch in range(2):
    begin = {"none": None, "constant": constant, "torch": by_torch, "persistent": None}[sys.argv[4]]
    persistent = sys.argv[4] == "persistent"
    if kept is None or not persistent:
        kept = DataLoader(Drawn(), 2, shuffle=True, num_workers=int(sys.argv[3]), worker_init_fn=begin,
                          persistent_workers=persistent)
    for batch in kept:
        print([part.tolist() for part in batch], torch.rand(()).item())
print(random.random(), np.random.rand(), torch.get_num_threads())
"""


def run(place: Path, number: int, workers: int, begin: str = "none") -> tuple[str, RngLog]:
    place.mkdir()
    script = place.with_suffix(".py")
    script.write_text(SCRIPT)
    arguments = [str(script), str(place), str(number), str(workers), begin]
    done = warm_python.run(arguments, env=os.environ, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout, read_rng_log(place)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, RngLog]]:
    place = tmp_path_factory.mktemp("draws")
    given = {"main": (1, 0), "workers": (1, 2), "other": (2, 0)}
    return {name: run(place / name, *each) for name, each in given.items()}


def test_batches_are_the_same_whichever_process_makes_them(
    runs: dict[str, tuple[str, RngLog]],
) -> None:
    assert runs["main"][0] == runs["workers"][0]


def test_another_number_draws_others_for_the_same_samples_and_nothing_else(
    runs: dict[str, tuple[str, RngLog]],
) -> None:
    one, other = (runs[name][0].splitlines() for name in ("main", "other"))
    for mine, theirs in zip(one[:8], other[:8], strict=True):
        (rows, *drawn), (other_rows, *other_drawn) = (eval(line.rsplit(" ", 1)[0]) for line in (mine, theirs))  # fmt: skip
        assert rows == other_rows
        assert not {tuple(each) for each in drawn} & {tuple(each) for each in other_drawn}
        assert mine.rsplit(" ", 1)[1] == theirs.rsplit(" ", 1)[1]
    assert one[8] == other[8]


def test_epochs_draw_different_numbers(runs: dict[str, tuple[str, RngLog]]) -> None:
    lines = runs["main"][0].splitlines()[:8]
    assert len({line.split("], [")[1] for line in lines}) == 8


def test_workers_that_live_on_make_the_same_batches_in_the_same_order(
    tmp_path: Path, runs: dict[str, tuple[str, RngLog]]
) -> None:
    printed, log = run(tmp_path / "persistent", 1, 2, "persistent")
    assert printed == runs["main"][0]
    assert [start.num_workers for start in log.epochs] == [2, 2]
    assert len({start.epoch for start in log.epochs}) == 2
    # each worker, in each epoch, goes on with numbers that it did not begin with
    assert len({each.found["torch"] for each in log.batches}) == 4


def test_log_says_what_workers_found_and_left(runs: dict[str, tuple[str, RngLog]]) -> None:
    log = runs["workers"][1]
    assert [start.num_workers for start in log.epochs] == [2, 2]
    assert sorted((each.epoch, each.worker) for each in log.batches) == sorted(
        (start.epoch, number) for start in log.epochs for number in (0, 0, 1, 1)
    )
    assert len({each.found["numpy.random"] for each in log.batches}) == 4
    assert all(set(each.left) == {"torch", "random", "numpy.random"} for each in log.batches)
    assert {each.worker for each in runs["main"][1].batches} == {None}


@pytest.mark.parametrize(("begin", "alike"), [("constant", True), ("torch", False)])
def test_workers_own_seeding_is_looked_at_with_another_seed(
    tmp_path: Path, runs: dict[str, tuple[str, RngLog]], begin: str, alike: bool
) -> None:
    printed, log = run(tmp_path / begin, 1, 2, begin)
    assert printed == runs["main"][0]
    looked = [each for each in log.batches if each.next_epoch is not None]
    assert len(looked) == 4  # each worker of each epoch, once
    for each in looked:
        assert each.next_epoch is not None
        assert (each.next_epoch["numpy.random"] == each.found["numpy.random"]) == alike
        assert each.next_epoch["torch"] != each.found["torch"]
    assert not any(each.next_epoch for each in runs["workers"][1].batches)
