"""Items that are made once: later epochs learn the same, and what is not the same twice is made anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.core.census import Census, LoaderUse
from hotloop.core.child import APPLIED_FILE, LOADER
from hotloop.hardware import limits
from hotloop.optimizations.item_cache import ITEM_CACHE
from hotloop.optimizations.item_cache.item_store import SHARE_OF_MEMORY, ItemStore, memory_for_items
from hotloop.optimizations.item_cache.samples import decoded, encoded, fingerprint, same

SCRIPT = """
import json, os, random
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(7); random.seed(7)
MADE = os.open(f"made-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

class Points(Dataset):
    def __init__(self, n=12):
        self.x = torch.randn(n, 6)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        os.write(MADE, f"{os.getpid()} {i}\\n".encode())
        return {"x": self.x[i] * 2, "name": f"point {i}", "length": i}

EXTRA

model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
if __name__ == "__main__":
    LOADER
    losses = []
    for epoch in range(3):
        BEFORE_EPOCH
        for batch in loader:
            loss = model(batch["x"]).square().mean() + batch["length"].sum() * 0
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            batch["x"].zero_()
            losses.append(loss.item())
    made = [line.split() for line in open(f"made-{os.getpid()}")]
    print(json.dumps({"losses": losses, "state": torch.randn(1).item(), "made": len(made)}))
"""


def run(
    run_foreign: Any,
    fixes: dict[str, Any],
    *,
    extra: str = "",
    loader: str = "loader = DataLoader(Points(), batch_size=3, shuffle=True)",
    before_epoch: str = "pass",
) -> tuple[dict[str, Any], list[tuple[bool, str]]]:
    """What the script printed, and what became of the fixes."""
    text = SCRIPT.replace("EXTRA", extra).replace("LOADER", loader)
    ran = run_foreign(text.replace("BEFORE_EPOCH", before_epoch), fixes)
    return ran.printed, list(dict.fromkeys((applied, what) for _, applied, what in ran.said))


MANY = """
class Many(Points):
    def __getitems__(self, indices):
        return [self[i] for i in indices]
"""


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("extra", "loader", "made"),
    [
        # every item once, 4 again right away, 1 again in each later epoch
        ("", "loader = DataLoader(Points(), batch_size=3, shuffle=True)", 12 + 4 + 2 * 1),
        (
            "",
            f"loader = DataLoader(Points(), batch_size=3, sampler={[5, 5, 5, 2, 2, 1]})",
            3 + 3 + 1 + 2 * 1,  # what comes again in an epoch is from memory, too
        ),
        # batches at once: the second one's is made again because the fourth item is in it
        (MANY, "loader = DataLoader(Many(), batch_size=3, shuffle=True)", 12 + 6 + 2 * 1),
    ],
)
def test_items_are_made_in_the_first_epoch_alone(
    run_foreign: Any, extra: str, loader: str, made: int
) -> None:
    plain, _ = run(run_foreign, {}, extra=extra, loader=loader)
    fixed, told = run(run_foreign, {"item_cache": 64}, extra=extra, loader=loader)
    assert [applied for applied, _ in told] == [True]
    assert plain["made"] == (18 if "sampler" in loader else 36)
    assert fixed["made"] == made
    assert (fixed["losses"], fixed["state"]) == (plain["losses"], plain["state"])


def test_workers_share_what_any_of_them_made(run_foreign: Any) -> None:
    loader = "loader = DataLoader(Points(), batch_size=3, shuffle=True, num_workers=2)"
    plain, _ = run(run_foreign, {}, loader=loader)
    fixed, told = run(run_foreign, {"item_cache": 64}, loader=loader)
    assert [applied for applied, _ in told] == [True]
    assert (fixed["losses"], fixed["state"]) == (plain["losses"], plain["state"])
    assert plain["made"] == 36
    assert fixed["made"] <= 12 + 2 * 6 + 3 * 2  # checks are made in each worker


def test_kept_items_and_workers_go_together(
    run_foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = run(run_foreign, {})
    line = next(n for n, line in enumerate(SCRIPT.split("\n"), 1) if line.endswith("LOADER"))
    place = f"script.py:{line}"
    monkeypatch.setenv(LOADER, json.dumps({"site": place, "made": [place], "workdir": ""}))
    fixed, told = run(run_foreign, {"item_cache": 64, "loader_workers": 2})
    assert all(applied for applied, _ in told)
    assert len(told) == 2
    assert (fixed["losses"], fixed["state"]) == (plain["losses"], plain["state"])
    assert fixed["made"] < plain["made"]


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (
            "class Other(Points):\n"
            "    def __getitem__(self, i):\n"
            "        return {**super().__getitem__(i), 'x': self.x[i] + torch.randn(6)}",
            "draws random numbers",
        ),
        (
            "class Other(Points):\n"
            "    calls = 0\n"
            "    def __getitem__(self, i):\n"
            "        Other.calls += 1\n"
            "        return {**super().__getitem__(i), 'x': self.x[i] + Other.calls}",
            "not the same when they are made again",
        ),
        (
            "class Other(Points):\n"
            "    def __getitem__(self, i):\n"
            "        return {**super().__getitem__(i), 'x': self.x[i] + epoch}",
            "not the same in another epoch",
        ),
    ],
)
def test_items_that_differ_are_made_as_ever(run_foreign: Any, extra: str, why: str) -> None:
    loader = "loader = DataLoader(Other(), batch_size=3, shuffle=True)"
    plain, _ = run(run_foreign, {}, extra=extra, loader=loader)
    fixed, told = run(run_foreign, {"item_cache": 64}, extra=extra, loader=loader)
    ((applied, what),) = told
    assert not applied
    assert why in what
    if "calls" not in extra:  # who counts its calls sees those that found it out
        assert (fixed["losses"], fixed["state"]) == (plain["losses"], plain["state"])


def test_a_dataset_of_each_epoch_is_the_reason_why_nothing_is_kept(run_foreign: Any) -> None:
    anew = "loader = DataLoader(Points(), batch_size=3, shuffle=True)"
    plain, _ = run(run_foreign, {}, loader="pass", before_epoch=anew)
    fixed, told = run(run_foreign, {"item_cache": 64}, loader="pass", before_epoch=anew)
    assert told == [(False, "another dataset object is made for each epoch, so nothing is kept")]
    assert fixed["losses"] == plain["losses"]


TURNING = (
    "class Turning(torch.utils.data.Sampler):\n"
    "    def __len__(self): return 12\n"
    "    def __iter__(self): return iter([(i + epoch) % 12 for i in range(12)])\n"
)


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (  # the item that is checked in the second epoch is the same, the one in the third is not
            "class Other(Points):\n"
            "    def __getitem__(self, i):\n"
            "        return {**super().__getitem__(i), 'x': self.x[i] + (epoch if i > 1 else 0)}",
            "not the same in another epoch",
        ),
        (
            "class Other(Points):\n"
            "    def __getitem__(self, i):\n"
            "        if epoch == 2 and i == 2: torch.rand(1)\n"
            "        return super().__getitem__(i)",
            "draws random numbers",
        ),
        (
            "class Other(Points): pass\n"
            "class Changing(DataLoader):\n"
            "    def __iter__(self):\n"
            "        for number, batch in enumerate(super().__iter__()):\n"
            "            yield batch\n"
            "            if number == 1 and epoch: self.dataset.x = self.dataset.x + 1\n"
            "DataLoader = Changing",
            "was changed within an epoch",
        ),
    ],
)
def test_item_that_was_given_and_not_made_again_may_have_been_wrong(
    run_foreign: Any, tmp_path: Path, extra: str, why: str
) -> None:
    loader = "loader = DataLoader(Other(), batch_size=3, sampler=Turning())"
    _, told = run(run_foreign, {"item_cache": 64}, extra=TURNING + extra, loader=loader)
    assert told[0] == (True, "items of Other come from memory")
    lines = map(json.loads, (tmp_path / APPLIED_FILE).read_text().splitlines())
    (wrong,) = {line["what"] for line in lines if line.get("wrong")}
    assert why in wrong


def test_dataset_that_the_script_changes_is_made_anew(run_foreign: Any) -> None:
    before = "loader.dataset.x = loader.dataset.x + epoch"
    plain, _ = run(run_foreign, {}, before_epoch=before)
    fixed, told = run(run_foreign, {"item_cache": 64}, before_epoch=before)
    assert told == [(False, "Points is changed from epoch to epoch")]
    assert (fixed["losses"], fixed["state"]) == (plain["losses"], plain["state"])


def test_store_gives_back_what_was_put_and_nothing_beyond_its_room() -> None:
    store = ItemStore(3, 10)
    assert store.get(0) is None
    assert store.put(0, b"first")
    assert not store.put(1, b"too long")
    assert store.put(2, b"2nd")
    assert (store.get(0), store.get(1), store.get(2)) == (b"first", None, b"2nd")
    store.clear()
    assert store.get(0) is None
    assert store.put(1, b"too long")


def test_processes_share_a_store() -> None:
    store = ItemStore(2, 100)
    child = os.fork()
    if child == 0:
        store.put(1, b"from a child")
        store.head.closed = True
        os._exit(0)
    os.waitpid(child, 0)
    assert store.get(1) == b"from a child"
    assert store.head.closed


@pytest.mark.parametrize(
    "value",
    [
        {"x": torch.arange(6.0).view(2, 3), "name": "a", "none": None, "f": float("nan")},
        (torch.tensor([]), torch.tensor(True), torch.tensor(1 + 2j)),
        [torch.arange(10)[2:5], torch.ones(2, 3, dtype=torch.bfloat16).t(), b"", 3],
    ],
)
def test_copy_is_the_same_and_shares_nothing(value: Any) -> None:
    content = encoded(value)
    one, other = decoded(content), decoded(content)
    assert same(one, value)
    for tensor in one.values() if isinstance(one, dict) else one:
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            tensor.zero_()
    assert same(other, value)


def test_copy_of_a_view_is_not_the_size_of_what_it_shows() -> None:
    assert len(encoded(torch.zeros(1_000_000)[:10])) < 1000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(1), -torch.zeros(1)),
        (torch.zeros(1), torch.zeros(1, dtype=torch.float64)),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": True}),
    ],
)
def test_what_differs_in_a_bit_is_not_the_same(one: Any, other: Any) -> None:
    assert not same(one, other)


class Holder:
    def __init__(self) -> None:
        self.values = [1, 2, 3]
        self.x = torch.zeros(3)
        self.inner = {"deep": [{"here": 1}]}


def test_fingerprint_sees_changes_and_nothing_else() -> None:
    holder = Holder()
    before = fingerprint(holder)
    assert fingerprint(holder) == before
    holder.inner["deep"][0]["here"] = 2
    assert fingerprint(holder) != before
    before = fingerprint(holder)
    holder.x += 1
    assert fingerprint(holder) != before
    before = fingerprint(holder)
    holder.values[1] = 5
    assert fingerprint(holder) != before


def use(**changes: Any) -> LoaderUse:
    values: dict[str, Any] = dict.fromkeys(LoaderUse.__slots__)
    values |= {"trains": True, "iterable": False, "num_workers": 0, "num_batches": 100}
    return LoaderUse(**{**values, "fetch_s": 0.2, **changes})


def test_it_is_tried_where_an_item_comes_twice() -> None:
    assert ITEM_CACHE.values_for is not None
    assert ITEM_CACHE.warmup_for is not None
    once = use(per_epoch=40, num_epochs=1)
    assert ITEM_CACHE.values_for(Census(loaders=(once,))) == ()
    assert ITEM_CACHE.values_for(Census(loaders=(once,), planned_steps=41))
    twice = use(per_epoch=40, num_epochs=2)
    assert ITEM_CACHE.values_for(Census(loaders=(twice,)))
    assert ITEM_CACHE.warmup_for(Census(loaders=(twice,), microbatches=4.0)) == 10
    # A GAN's step of 5 batches, whose generator has one backward pass more.
    gan = Census(loaders=(twice, use(per_epoch=40)), microbatches=6.0, counted_steps=40)
    assert ITEM_CACHE.warmup_for(gan) == 8
    for other in ({"iterable": True}, {"draws_random": True}):
        assert (
            ITEM_CACHE.values_for(Census(loaders=(use(per_epoch=40, num_epochs=2, **other),))) == ()
        )


def test_store_is_bounded_by_the_memory_that_a_container_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setattr(limits, "control_groups", lambda controller: [group, tmp_path])
    wanted = 1 << 20
    assert memory_for_items(wanted) == wanted
    (group / "memory.max").write_text("max\n")
    assert memory_for_items(wanted) == wanted
    (tmp_path / "memory.max").write_text("500000\n")  # of the group above
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 20000\n")
    assert memory_for_items(wanted) == 120_000 // SHARE_OF_MEMORY
    (tmp_path / "memory.current").write_text("600000\n")
    assert memory_for_items(wanted) == 0
