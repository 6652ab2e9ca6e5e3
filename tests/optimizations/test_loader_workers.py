"""Workers for the loader that trains, as an edit of its call would have them, and for no other loader."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import warm_python
from hotloop.core.census import Census, LoaderUse
from hotloop.core.child import APPLIED_FILE, LOADER
from hotloop.core.files import read_json
from hotloop.core.ledger import TriedFix
from hotloop.doctor.fix_campaign import _outcome
from hotloop.optimizations.loader_workers import LOADER_WORKERS
from script_runs import lines_of, variables

LIBRARIES = {
    "accelerate.py": """
from torch.utils.data import DataLoader
def prepare(*loaders):
    return tuple(rebuilt(each) for each in loaders)
def rebuilt(old):
    return DataLoader(old.dataset, batch_sampler=old.batch_sampler, num_workers=old.num_workers)
""",
    "torchdata/__init__.py": "",
    "torchdata/stateful_dataloader/__init__.py": "from .stateful_dataloader import *",
    "torchdata/stateful_dataloader/stateful_dataloader.py": """
from torch.utils.data import DataLoader
class StatefulDataLoader(DataLoader):
    def __init__(self, dataset, batch_size=1, num_workers=0):
        whole = DataLoader(dataset, batch_size, num_workers=num_workers)
        vars(self).update(vars(whole))  # torchdata sets each by itself
""",
}
SCRIPT = """
import json, random, sys
sys.path.insert(0, "lib/site-packages")
import torch
from accelerate import prepare
from torchdata.stateful_dataloader import StatefulDataLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
torch.set_num_threads(1)

class Points(Dataset):
    scale = 0.0
    def __init__(self, n): self.x = torch.randn(n, 6)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i] + self.scale

class Stream(IterableDataset):
    def __iter__(self): return iter(torch.arange(36.0).view(6, 6))

class Own(DataLoader):
    def __init__(self, dataset): super().__init__(dataset, 3, shuffle=True)

class Eager:
    def __init__(self): self.batches = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    def __len__(self): return 4
    def __iter__(self):
        random.shuffle(self.batches)
        return iter(self.batches)

def scaled(number): get_worker_info().dataset.scale = 1.0
def made(n, **more): return DataLoader(Points(n), 3, **more)

def in_a_dict():
    loaders = {key: DataLoader(Points(n), 3) for key, n in (("train", 12), ("check", 6))}
    return loaders["train"], loaders["check"]
def by_a_function(): return made(12, shuffle=True), made(6)
def by_a_class():
    train = Own(Points(12))
    return train, Own(Points(6))
def by_a_library(): return prepare(DataLoader(Points(12), 3), DataLoader(Points(6), 3))
def stateful():
    train = StatefulDataLoader(Points(12), 3)
    return train, StatefulDataLoader(Points(6), 3)
def eager(): return DataLoader(Points(12), batch_sampler=Eager()), made(6)
def begun(): return DataLoader(Points(12), 3, worker_init_fn=scaled), made(6)
def stream(): return DataLoader(Stream(), 3), made(6)
def many():
    return DataLoader(Points(12), 3, num_workers=1, persistent_workers=True, prefetch_factor=3, timeout=60,
                      multiprocessing_context="fork"), made(6)
ONCE = [in_a_dict, by_a_function, by_a_class, by_a_library, stateful, eager, begun, stream, many]
REMADE = []

def train(make):
    torch.manual_seed(0); random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loaders, losses, workers = make and make(), [], []
    for epoch in range(2):
        loader, check = loaders or (DataLoader(Points(12), 3, shuffle=True), made(6))
        for x in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            for x in check: losses.append(model(x).sum().item())
        workers += [loader.num_workers, check.num_workers]
    return losses, workers
found = {make.__name__: train(make) for make in ONCE if make is not many}
found |= {"each_epoch": train(None), "many": train(many)}
print(json.dumps(found))
"""

Run = Callable[..., dict[str, tuple[list[float], list[int]]]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("project")
    for name, text in LIBRARIES.items():
        path = place / "lib" / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (place / "train.py").write_text(SCRIPT)
    return place


def run(work: Path, **put: str) -> dict[str, tuple[list[float], list[int]]]:
    """What the script printed, by how its loaders are made: losses, and their workers at the end of each epoch."""
    done = warm_python.run(["train.py"], env=put, cwd=work, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plain(work: Path) -> dict[str, tuple[list[float], list[int]]]:
    """As the doctor's first run sees it."""
    (work / "seen").mkdir()
    return run(work, **variables(), HOTLOOP_DOCTOR=str(work / "seen"))


def seen(work: Path, *, workers: int = 0) -> list[LoaderUse]:
    loaders = read_json(work / "seen" / "census-0.json", Census).loaders
    return [each for each in loaders if each.trains and each.num_workers == workers]


def fixed(
    work: Path, value: Any, loaders: list[LoaderUse]
) -> tuple[dict[str, tuple[list[float], list[int]]], list[tuple[bool, str]]]:
    """What the script printed, and what became of the fix."""
    (work / APPLIED_FILE).unlink(missing_ok=True)
    made = [name for each in loaders for name in each.made]
    told = {"site": "train.py:1", "made": made, "workdir": str(work)}
    put = variables({"loader_workers": value}, into=work)
    found = run(work, **put, **{LOADER: json.dumps(told)})
    return found, [(each["applied"], each["what"]) for each in lines_of(work)]


SAME = ["in_a_dict", "by_a_function", "by_a_class", "by_a_library", "stateful", "each_epoch"]
OTHERWISE = ["eager", "begun"]  # as with `num_workers=2` written there: torch's own meaning of it


@pytest.mark.at_once(2)
def test_exactly_the_loaders_that_train_have_workers(work: Path, plain: dict[str, Any]) -> None:
    found, told = fixed(work, 2, seen(work))
    assert all(found[name][1] == [2, 0, 2, 0] for name in (*SAME, *OTHERWISE))
    assert all(found[name] == plain[name] for name in ("stream", "many"))
    assert {name for name in SAME if found[name][0] != plain[name][0]} == set()
    assert {name for name in OTHERWISE if found[name][0] != plain[name][0]} == set(OTHERWISE)
    refused = {what for applied, what in told if not applied}
    assert refused == {
        "Stream is an IterableDataset: what a worker gives depends on how many there are"
    }
    assert {what for applied, what in told if applied} == {"the loader of Points has num_workers=2"}


@pytest.mark.at_once(2)
def test_workers_that_live_on_give_the_same_first_epoch(work: Path, plain: dict[str, Any]) -> None:
    found, told = fixed(work, "2 persistent", seen(work))
    assert {what for applied, what in told if applied} == {
        "the loader of Points has num_workers=2, persistent_workers=True"
    }
    assert found["by_a_function"][1] == [2, 0, 2, 0]
    assert found["by_a_function"][0][:4] == plain["by_a_function"][0][:4]
    assert found["by_a_function"][0] != plain["by_a_function"][0]  # shuffled otherwise


def test_a_value_of_workers_says_all_that_it_sets() -> None:
    setting, edit = LOADER_WORKERS.setting, LOADER_WORKERS.source_edit
    assert setting is not None
    assert edit is not None
    assert setting(2) == {"num_workers": 2}
    assert setting("2 persistent") == {"num_workers": 2, "persistent_workers": True}
    entry = TriedFix("loader_workers", "2 persistent", "rejected", "slower", ("HL108",), None)
    assert _outcome(entry).setting == {"num_workers": 2, "persistent_workers": True}
    made = edit("2 persistent", {})
    assert getattr(made, "values", None) == {"num_workers": "2", "persistent_workers": "True"}
    lives_on = census(use(num_workers=2, persistent_workers=True))
    assert LOADER_WORKERS.observed(lives_on, "2 persistent") is True
    assert LOADER_WORKERS.observed(census(use(num_workers=2)), "2 persistent") is False
    assert LOADER_WORKERS.observed(lives_on, 2) is True  # the script's own


def test_persistent_workers_of_batches_that_draw_nothing_are_compared_as_other_draws() -> None:
    """From the second epoch on they shuffle otherwise."""
    other_draws_in = LOADER_WORKERS.other_draws_in
    assert other_draws_in is not None
    assert other_draws_in(census(short(draws_random=False, num_workers=2)))
    assert not other_draws_in(census(short(draws_random=False)))


def test_workers_are_taken_away_with_all_that_needs_them(work: Path, plain: dict[str, Any]) -> None:
    found, told = fixed(work, 0, seen(work, workers=1))
    assert plain["many"][1] == [1, 0, 1, 0]
    assert found["many"][1] == [0, 0, 0, 0]
    assert [what for applied, what in told if applied] == [
        "the loader of Points has num_workers=0, persistent_workers=False, prefetch_factor=None, "
        "multiprocessing_context=None, timeout=0"
    ]


def test_loader_that_is_not_made_where_it_was_is_not_applied_in_words(
    work: Path, plain: dict[str, Any]
) -> None:
    moved = [replace(seen(work)[0], made=("train.py:9999 < train.py:1",))]
    found, told = fixed(work, 2, moved)
    assert found == plain
    (line,) = set(told)
    why = "before the first step no loader was made at train.py:1 the way it was in the first run"
    assert line == (False, why)


def use(**changes: Any) -> LoaderUse:
    values: dict[str, Any] = dict.fromkeys(LoaderUse.__slots__)
    values |= {
        "site": "train.py:3",
        "trains": True,
        "dataset": "Points",
        "iterable": False,
        "num_workers": 0,
        "pin_memory": False,
        "persistent_workers": False,
        "num_batches": 100,
        "num_epochs": 1,
        "fetch_s": 0.23,
        "wait_s": 0.23,
        "fetch_cpu_fraction": 0.02,
        "made": ("train.py:3",),
    }
    return LoaderUse(**{**values, **changes})


def short(**changes: Any) -> LoaderUse:
    """An epoch of it takes 8 s."""
    values = {"draws_random": True, "per_epoch": 30, "changes_between_epochs": False}
    return use(**{**values, "fetch_cpu_fraction": 0.97, **changes})


def census(loader: LoaderUse, **changes: Any) -> Census:
    return Census(**{"cpus": 2.0, "profiled_step_s": 0.28, "loaders": (loader,), **changes})


@pytest.mark.parametrize(
    ("seen", "values"),
    [
        (census(use()), (8,)),  # it waits: no fewer than that, which cost little
        (census(use(fetch_s=0.5, wait_s=0.5), profiled_step_s=0.55), (11,)),
        (census(use(), profiled_step_s=None), (8,)),
        (census(use(fetch_cpu_fraction=0.97)), (2,)),  # it computes: at most the CPUs
        (census(use(fetch_cpu_fraction=0.97, wait_s=0.02, fetch_s=0.02)), (1,)),
        (  # profiled while everything took three times as long as later
            census(
                use(fetch_cpu_fraction=0.97, wait_s=0.036, fetch_s=0.036),
                profiled_step_s=0.125,
                profiled_wait_s=0.12,
            ),
            (2,),
        ),
        (census(use(fetch_cpu_fraction=0.4)), (5,)),  # and at most what the CPUs can feed
        (census(use(num_workers=8, num_epochs=5)), ()),  # so many are there
        (census(use(iterable=True)), ()),
        (census(use(draws_random=True)), (8,)),
        (census(use(fetch_cpu_fraction=0.97, wait_s=0.02, fetch_s=0.02, draws_random=True)), (2,)),
        (census(short()), ("2 persistent",)),  # 8 s an epoch, which starting workers would cut into
        (census(short(changes_between_epochs=True)), (2,)),
        (census(short(changes_between_epochs=None)), (2,)),  # one epoch was seen
        (census(short(per_epoch=400)), (2,)),
        (census(short(draws_random=False)), (2,)),  # the same bits as without workers
        (census(short(draws_random=False, num_workers=2)), ("2 persistent",)),
        (census(short(num_workers=2, persistent_workers=True)), ()),
        (census(use(trains=False)), ()),
        (Census(), ()),
        (census(use(num_workers=4, fetch_s=0.001, wait_s=0.01)), (0,)),
    ],
)
def test_number_of_workers_follows_what_was_seen(seen: Census, values: tuple[Any, ...]) -> None:
    assert LOADER_WORKERS.values_for is not None
    assert LOADER_WORKERS.values_for(seen) == values
