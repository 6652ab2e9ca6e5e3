"""Workers for a loader of somebody else's script: the same batches in the same order, or none at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.census import Census, LoaderUse
from hotloop.optimizations.live import APPLIED_FILE, DIRECTORY_VARIABLE, SETTINGS_VARIABLE
from hotloop.optimizations.loader_workers import LOADER_WORKERS
from hotloop.trial import bootstrap

SOURCE = str(Path(bootstrap.__file__).parents[3])

SCRIPT = """
import hashlib, json, os, random, sys
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

torch.manual_seed(7); random.seed(7)
DIGEST = hashlib.sha256()
MADE = os.open(f"made-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

class Points(Dataset):
    def __init__(self, n=24):
        self.x = torch.randn(n, 6)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        os.write(MADE, f"{os.getpid()}\\n".encode())
        return {"x": self.x[i], "name": f"point {i}"}

EXTRA

model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
LOADER
losses = []
for epoch in range(3):
    BEFORE_EPOCH
    for batch in loader:
        DIGEST.update(str(batch["name"]).encode() + batch["x"].numpy().tobytes())
        loss = model(batch["x"]).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
        AFTER_STEP
main = os.getpid()
makers = [int(line) for line in open(f"made-{main}")]
print(json.dumps({
    "losses": losses, "digest": DIGEST.hexdigest(), "state": torch.randn(1).item(),
    "here": makers.count(main), "elsewhere": len(makers) - makers.count(main),
    "processes": len(set(makers) - {main}),
}))
"""


def run(
    tmp_path: Path,
    fixes: dict[str, Any],
    *,
    extra: str = "",
    loader: str = "loader = DataLoader(Points(), batch_size=3, shuffle=True)",
    before_epoch: str = "pass",
    after_step: str = "pass",
) -> tuple[dict[str, Any], list[tuple[bool, str]]]:
    """What the script printed, and what became of the fixes."""
    text = SCRIPT.replace("EXTRA", extra).replace("LOADER", loader)
    text = text.replace("BEFORE_EPOCH", before_epoch).replace("AFTER_STEP", after_step)
    path = tmp_path / "script.py"
    path.write_text(text)
    (tmp_path / APPLIED_FILE).unlink(missing_ok=True)
    own = [str(Path(bootstrap.__file__).parent), SOURCE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "OMP_NUM_THREADS": "1"}
    if fixes:
        environment |= {DIRECTORY_VARIABLE: str(tmp_path), SETTINGS_VARIABLE: json.dumps(fixes)}
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    applied = tmp_path / APPLIED_FILE
    lines = applied.read_text().splitlines() if applied.exists() else []
    told = [json.loads(line) for line in lines]
    return json.loads(done.stdout.splitlines()[-1]), [(t["applied"], t["what"]) for t in told]


def same_training(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[key] == other[key] for key in ("losses", "digest", "state"))


@pytest.mark.at_once(2)
@pytest.mark.parametrize(
    ("loader", "here"),
    [
        ("loader = DataLoader(Points(), batch_size=3, shuffle=True)", 6),
        ("loader = DataLoader(Points(), batch_size=5, shuffle=True, drop_last=True)", 10),
        (
            "g = torch.Generator().manual_seed(3)\n"
            "loader = DataLoader(Points(), 4, shuffle=True, generator=g)",
            8,
        ),
        (
            "from torch.utils.data import RandomSampler\n"
            "sampler = RandomSampler(range(24), replacement=True, num_samples=30)\n"
            "loader = DataLoader(Points(), 4, sampler=sampler)",
            8,
        ),
        (
            "batches = [[1, 2], [3, 4], [5], [6, 0], [7, 8], [9, 1]]\n"
            "loader = DataLoader(Points(), batch_sampler=batches)",
            4,
        ),
    ],
)
def test_workers_give_the_same_batches_in_the_same_order(
    tmp_path: Path, loader: str, here: int
) -> None:
    plain, _ = run(tmp_path, {}, loader=loader)
    fixed, told = run(tmp_path, {"loader_workers": 2}, loader=loader)
    assert told == [(True, "2 workers make the batches of Points")]
    assert same_training(plain, fixed)
    assert plain["elsewhere"] == 0
    assert fixed["here"] == here  # two batches
    assert fixed["processes"] == 2  # the same two in every epoch


def test_epochs_that_are_broken_off_keep_their_order(tmp_path: Path) -> None:
    loader = "g = torch.Generator().manual_seed(3)\nloader = DataLoader(Points(), 3, shuffle=True, generator=g)"
    after = "if len(losses) % 6 == 0: break"
    plain, _ = run(tmp_path, {}, loader=loader, after_step=after)
    fixed, told = run(tmp_path, {"loader_workers": 3}, loader=loader, after_step=after)
    assert [applied for applied, _ in told] == [True]
    assert same_training(plain, fixed)


@pytest.mark.at_once(2)
@pytest.mark.parametrize(
    ("extra", "loader", "why"),
    [
        (
            "class Augmented(Points):\n"
            "    def __getitem__(self, i):\n"
            "        item = super().__getitem__(i)\n"
            "        return {**item, 'x': item['x'] + torch.randn(6)}",
            "loader = DataLoader(Augmented(), 3)",
            "draws random numbers",
        ),
        (
            "class Flipped(Points):\n"
            "    def __getitem__(self, i):\n"
            "        item = super().__getitem__(i)\n"
            "        return item if random.random() < 0.5 else {**item, 'x': -item['x']}",
            "loader = DataLoader(Flipped(), 3)",
            "draws random numbers",
        ),
        (
            "from torch.utils.data import default_collate\n"
            "def collate(items):\n"
            "    batch = default_collate(items)\n"
            "    batch['x'] += torch.rand(1)\n"
            "    return batch",
            "loader = DataLoader(Points(), 3, collate_fn=collate)",
            "draws random numbers",
        ),
        (
            "class Own(Points):\n"
            "    def __init__(self):\n"
            "        super().__init__(); self.rng = random.Random(3)\n"
            "    def __getitem__(self, i):\n"
            "        item = super().__getitem__(i)\n"
            "        return {**item, 'x': item['x'] * self.rng.random()}",
            "loader = DataLoader(Own(), 3)",
            "changes itself",
        ),
        (
            "RNG = random.Random(3)\n"
            "class Hidden(Points):\n"
            "    def __getitem__(self, i):\n"
            "        item = super().__getitem__(i)\n"
            "        return {**item, 'x': item['x'] * RNG.random()}",
            "loader = DataLoader(Hidden(), 3)",
            "another batch",
        ),
        (
            "class Drawing(Sampler):\n"
            "    def __len__(self): return 24\n"
            "    def __iter__(self):\n"
            "        for _ in range(24): yield int(torch.randint(24, ()))",
            "loader = DataLoader(Points(), 3, sampler=Drawing())",
            "sampler draws",
        ),
        (
            "class Stream(Points):\n"
            "    def __init__(self):\n"
            "        super().__init__(); self.file = open(__file__, 'rb')\n"
            "    def __getitem__(self, i):\n"
            "        self.file.seek(i); self.file.read(10)\n"
            "        return super().__getitem__(i)",
            "loader = DataLoader(Stream(), 3)",
            "script.py",
        ),
        (
            "class Lazy(Points):\n"
            "    def __getitem__(self, i):\n"
            "        if not hasattr(self, 'file'): self.file = open(__file__, 'rb')\n"
            "        return super().__getitem__(i)",
            "loader = DataLoader(Lazy(), 3)",
            "script.py",
        ),
        (
            "from torch.utils.data import default_collate\n"
            "class Batch(dict):\n"
            "    pass\n"
            "def collate(items):\n"
            "    batch = Batch(default_collate(items)); batch.key = lambda: 1\n"
            "    return batch",
            "loader = DataLoader(Points(), 3, collate_fn=collate)",
            "cannot come from workers",
        ),
        (
            "class Learns(Points):\n"
            "    def __getitem__(self, i):\n"
            "        return {**super().__getitem__(i), 'w': torch.ones(1, requires_grad=True) * 2}",
            "loader = DataLoader(Learns(), 3, shuffle=True)",
            "history of gradients",
        ),
    ],
)
def test_what_would_change_is_refused_in_words(
    tmp_path: Path, extra: str, loader: str, why: str
) -> None:
    plain, _ = run(tmp_path, {}, extra=extra, loader=loader)
    fixed, told = run(tmp_path, {"loader_workers": 2}, extra=extra, loader=loader)
    ((applied, what),) = told
    assert not applied
    assert why in what
    assert same_training(plain, fixed)
    if why != "another batch":  # that one is only seen in what a worker made
        assert fixed["elsewhere"] == 0


@pytest.mark.at_once(2)
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("more", ["", ", persistent_workers=True"])
def test_workers_of_the_script_are_replaced(tmp_path: Path, number: int, more: str) -> None:
    loader = f"loader = DataLoader(Points(), batch_size=2, shuffle=True, num_workers=2{more})"
    plain, _ = run(tmp_path, {}, loader=loader)
    fixed, told = run(tmp_path, {"loader_workers": number}, loader=loader)
    who = "3 workers make" if number else "the process that trains makes"
    assert told == [(True, f"{who} the batches of Points")]
    assert same_training(plain, fixed)
    assert plain["here"] == 0
    assert (fixed["here"] > 2 * 24) == (number == 0)
    assert fixed["processes"] == 2 + number


def test_workers_that_draw_random_numbers_are_left_alone(tmp_path: Path) -> None:
    extra = (
        "class Augmented(Points):\n"
        "    def __getitem__(self, i):\n"
        "        item = super().__getitem__(i)\n"
        "        return {**item, 'x': item['x'] + torch.randn(6)}"
    )
    loader = "loader = DataLoader(Augmented(), 2, shuffle=True, num_workers=2)"
    plain, _ = run(tmp_path, {}, extra=extra, loader=loader)
    fixed, told = run(tmp_path, {"loader_workers": 3}, extra=extra, loader=loader)
    assert told == [(False, "its workers draw random numbers")]
    assert same_training(plain, fixed)


def test_stream_of_samples_is_left_alone(tmp_path: Path) -> None:
    extra = (
        "class Stream(IterableDataset):\n"
        "    def __init__(self): self.points = Points()\n"
        "    def __iter__(self): return (self.points[i] for i in range(24))"
    )
    fixed, told = run(
        tmp_path, {"loader_workers": 2}, extra=extra, loader="loader = DataLoader(Stream(), 3)"
    )
    assert told == [(False, "Stream is an IterableDataset: each worker would give all of it")]
    assert fixed["elsewhere"] == 0


def test_dataset_that_the_script_changes_between_epochs_is_forked_anew(tmp_path: Path) -> None:
    before = "loader.dataset.x = loader.dataset.x + epoch"
    plain, _ = run(tmp_path, {}, before_epoch=before)
    fixed, told = run(tmp_path, {"loader_workers": 2}, before_epoch=before)
    assert [applied for applied, _ in told] == [True]
    assert same_training(plain, fixed)
    assert fixed["processes"] == 6


DRAWS_LATE = (
    "class Late(Points):\n"
    "    def __getitem__(self, i):\n"
    "        item = super().__getitem__(i)\n"
    "        return {**item, 'x': item['x'] + torch.randn(6)} if i > 19 else item"
)


@pytest.mark.at_once(2)
@pytest.mark.parametrize(
    ("extra", "loader", "after_step", "why"),
    [
        (
            "",
            "loader = DataLoader(Points(), batch_size=3, shuffle=True)",
            "if len(losses) == 5: loader.dataset.x = loader.dataset.x + 1",
            "the script changed its dataset",
        ),
        (  # broken off, and changed again before the next epoch
            "",
            "loader = DataLoader(Points(), batch_size=3, shuffle=True)",
            "if len(losses) % 6 == 5: loader.dataset.x = loader.dataset.x + 1\n"
            "        if len(losses) % 6 == 0: break",
            "the script changed its dataset",
        ),
        (
            "class Drawing(Sampler):\n"
            "    def __len__(self): return 24\n"
            "    def __iter__(self):\n"
            "        for i in range(24): yield i if i < 15 else int(torch.randint(24, ()))",
            "loader = DataLoader(Points(), 3, sampler=Drawing())",
            "pass",
            "its sampler drew random numbers",
        ),
        (DRAWS_LATE, "loader = DataLoader(Late(), 3)", "pass", "drew random numbers in a worker"),
        (
            DRAWS_LATE,
            "loader = DataLoader(Late(), 3, num_workers=1)",
            "pass",
            "drew random numbers in a worker",
        ),
    ],
)
def test_what_shows_after_workers_took_over_is_wrong(
    tmp_path: Path, extra: str, loader: str, after_step: str, why: str
) -> None:
    _, told = run(
        tmp_path, {"loader_workers": 2}, extra=extra, loader=loader, after_step=after_step
    )
    assert any(applied for applied, _ in told)  # a worker may say its line first
    wrong = wrong_in(tmp_path)
    assert wrong
    assert all(why in each for each in wrong)


@pytest.mark.parametrize(
    ("extra", "after_step", "why"),
    [
        (DRAWS_LATE, "pass", "draws random numbers"),
        ("Late = Points", "if len(losses) == 9: loader.dataset.x += 1", "changed its dataset"),
    ],
)
def test_what_shows_after_the_scripts_workers_ended_is_wrong(
    tmp_path: Path, extra: str, after_step: str, why: str
) -> None:
    loader = "loader = DataLoader(Late(), 2, num_workers=2)"
    _, told = run(
        tmp_path, {"loader_workers": 0}, extra=extra, loader=loader, after_step=after_step
    )
    assert told[0] == (True, f"the process that trains makes the batches of {name_of(extra)}")
    (wrong,) = wrong_in(tmp_path)
    assert why in wrong


def name_of(extra: str) -> str:
    return "Points" if extra == "Late = Points" else "Late"


def wrong_in(tmp_path: Path) -> set[str]:
    lines = map(json.loads, (tmp_path / APPLIED_FILE).read_text().splitlines())
    return {line["what"] for line in lines if line.get("wrong")}


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    "loader",
    [
        "loader = DataLoader(Points(), batch_size=3, shuffle=True)",
        "loader = DataLoader(Points(), batch_size=3, shuffle=True, num_workers=1)",
        "loader = DataLoader(Points(), batch_size=3, shuffle=True, num_workers=1,\n"
        "    persistent_workers=True)",
    ],
)
def test_change_after_the_last_batch_is_between_epochs(tmp_path: Path, loader: str) -> None:
    after = "if len(losses) % 8 == 0: loader.dataset.x = loader.dataset.x + 1"
    plain, _ = run(tmp_path, {}, loader=loader, after_step=after)
    fixed, told = run(tmp_path, {"loader_workers": 2}, loader=loader, after_step=after)
    assert told == [(True, "2 workers make the batches of Points")]
    assert same_training(plain, fixed)


def test_sampler_that_draws_as_an_epoch_begins_is_right(tmp_path: Path) -> None:
    extra = (
        "class Drawing(Sampler):\n"
        "    def __len__(self): return 24\n"
        "    def __iter__(self): yield from torch.randperm(24).tolist()"
    )
    loader = "loader = DataLoader(Points(), 3, sampler=Drawing())"
    plain, _ = run(tmp_path, {}, extra=extra, loader=loader)
    fixed, told = run(tmp_path, {"loader_workers": 2}, extra=extra, loader=loader)
    assert told == [(True, "2 workers make the batches of Points")]
    assert same_training(plain, fixed)


def test_change_in_a_run_that_ends_within_the_epoch_is_seen(tmp_path: Path) -> None:
    after = (
        "if len(losses) == 5: loader.dataset.x = loader.dataset.x + 1\n"
        "        if len(losses) == 6:\n"
        "            from hotloop.probe.foreign_process import end_process\n"
        "            print('{}'); end_process()"
    )
    run(tmp_path, {"loader_workers": 2}, after_step=after)
    (wrong,) = wrong_in(tmp_path)
    assert "changed its dataset" in wrong


def test_loader_that_never_trains_stays_as_it_is(tmp_path: Path) -> None:
    loader = (
        "loader = DataLoader(Points(), batch_size=3, shuffle=True)\n"
        "check = DataLoader(Points(), batch_size=2)"
    )
    plain, _ = run(tmp_path, {}, loader=loader, before_epoch="for batch in check: pass")
    fixed, told = run(
        tmp_path, {"loader_workers": 2}, loader=loader, before_epoch="for batch in check: pass"
    )
    assert told == [(True, "2 workers make the batches of Points")]
    assert same_training(plain, fixed)
    assert fixed["here"] == 3 * 24 + 6


@pytest.mark.at_once(1)
@pytest.mark.parametrize("how", ["raise ValueError('only here')", "os._exit(3)"])
def test_worker_that_fails_costs_no_batch(tmp_path: Path, how: str) -> None:
    extra = (
        "MAIN = os.getpid()\n"
        "class Fragile(Points):\n"
        "    def __getitem__(self, i):\n"
        f"        if os.getpid() != MAIN and i == 20: {how}\n"
        "        return super().__getitem__(i)"
    )
    loader = "loader = DataLoader(Fragile(), batch_size=3)"
    plain, _ = run(tmp_path, {}, extra=extra, loader=loader)
    fixed, told = run(tmp_path, {"loader_workers": 2}, extra=extra, loader=loader)
    assert same_training(plain, fixed)
    assert [applied for applied, _ in told] == [True, False]
    assert "a worker fails" in told[1][1]


def test_error_of_the_dataset_reaches_the_script_as_it_was(tmp_path: Path) -> None:
    extra = (
        "class Broken(Points):\n"
        "    def __getitem__(self, i):\n"
        "        if i == 11: raise LookupError(f'no point {i}')\n"
        "        return super().__getitem__(i)"
    )
    loader = (
        "loader = DataLoader(Broken(), batch_size=3)\n"
        "def guarded(batches):\n"
        "    batches = iter(batches)\n"
        "    while True:\n"
        "        try: yield next(batches)\n"
        "        except LookupError as error: assert error.args == ('no point 11',)\n"
        "        except StopIteration: return\n"
        "class Guarded:\n"
        "    def __iter__(self): return guarded(wrapped)\n"
        "wrapped, loader = loader, Guarded()"
    )
    plain, _ = run(tmp_path, {}, extra=extra, loader=loader)
    fixed, _ = run(tmp_path, {"loader_workers": 2}, extra=extra, loader=loader)
    assert len(plain["losses"]) == 21
    assert same_training(plain, fixed)


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
    }
    return LoaderUse(**{**values, **changes})


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
        (census(use(fetch_cpu_fraction=0.4)), (5,)),  # and at most what the CPUs can feed
        (census(use(iterable=True)), ()),
        (census(use(draws_random=True)), ()),
        (census(use(trains=False)), ()),
        (Census(), ()),
        (census(use(num_workers=4, fetch_s=0.001, wait_s=0.01)), (0,)),
    ],
)
def test_number_of_workers_follows_what_was_seen(seen: Census, values: tuple[int, ...]) -> None:
    assert LOADER_WORKERS.values_for is not None
    assert LOADER_WORKERS.values_for(seen) == values
