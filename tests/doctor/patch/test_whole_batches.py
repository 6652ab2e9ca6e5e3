"""Batches of a TensorDataset picked at once: the same to the bit, live and in the patched script, and in no other loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_uses import loader_use, seen_at
from torch.utils.data import (  # fmt: skip
    BatchSampler,
    ConcatDataset,
    DataLoader,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from hotloop.core.census import Census
from hotloop.core.child import LOADER
from hotloop.optimizations.whole_batches import DEFINITION, NAME, WHOLE_BATCHES, _arguments

Try = Callable[..., Any]

SCRIPT = """\
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

torch.set_num_threads(1)
torch.manual_seed(0)
points = TensorDataset(torch.randn(37, 4), torch.randint(0, 3, (37,)))
train, test = random_split(points, [30, 7])

loader = DataLoader(ARGUMENTS)
check = DataLoader(points, 5)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses += [model(x).sum().item() + y.sum().item() for x, y in check]
print(json.dumps([losses, hasattr(loader.dataset, "__getitems__") and loader.collate_fn is list]))
"""


@pytest.mark.parametrize(
    ("arguments", "edited"),
    [
        ("points, 4, True", "whole_batches(points), 4, True, collate_fn=list"),
        (
            "batch_size=7, dataset=train, shuffle=True, num_workers=1",
            "batch_size=7, dataset=whole_batches(train), shuffle=True, num_workers=1, collate_fn=list",
        ),
        (
            "train, 4, collate_fn=None, drop_last=True",
            "whole_batches(train), 4, collate_fn=list, drop_last=True",
        ),
    ],
)
def test_the_patched_loader_gives_the_same_training(
    tried: Try,
    run_script: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    edited: str,
) -> None:
    script = SCRIPT.replace("ARGUMENTS", arguments)
    site = f"train.py:{script.split('loader = DataLoader')[0].count(chr(10)) + 1}"
    seen_at(monkeypatch, site)
    found = tried({"train.py": script}, {NAME: True})
    monkeypatch.delenv(LOADER)
    found.census = Census(loaders=(loader_use(site),))
    losses, picked = run_script(found.workdir, "train.py")
    assert not picked
    (fix,) = found.write().fixes
    assert fix.patch == "edited", fix.patch_text
    found.apply()
    text = (found.workdir / "train.py").read_text()
    assert f"loader = DataLoader({edited})" in text
    assert run_script(found.workdir, "train.py") == found.printed == [losses, True]


PADDED = """\
import json

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
mask = (torch.arange(32) < torch.randint(3, 9, (24, 1))).long()
ids = torch.randint(1, 50, (24, 32)) * mask
loader = DataLoader(TensorDataset(ids, mask), batch_size=4)
table = torch.nn.Embedding(50, 4)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
shapes = []
for ids, mask in loader:
    loss = (table(ids) * mask.unsqueeze(-1)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shapes.append(ids.shape[1])
print(json.dumps(shapes))
"""


def test_of_two_fixes_that_set_the_same_argument_one_is_not_edited(
    tried: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_at(monkeypatch, "train.py:9")
    found = tried({"train.py": PADDED}, {"dynamic_padding": 8, NAME: True})
    monkeypatch.delenv(LOADER)
    found.census = Census(loaders=(loader_use("train.py:9"),))
    by_name = {fix.name: fix for fix in found.write().fixes}
    edited = [fix.patch == "edited" for fix in by_name.values()]
    assert sorted(edited) == [False, True], [fix.patch_text for fix in by_name.values()]
    assert "another fix sets `collate_fn=" in "".join(
        fix.patch_text or "" for fix in by_name.values()
    )


DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
TENSOR = st.tuples(st.sampled_from([(), (3,), (2, 3), (1, 0)]), st.sampled_from(DTYPES))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    tensors=st.lists(TENSOR, min_size=1, max_size=3),
    batch=st.integers(1, 40),
    nested=st.integers(0, 2),
    drop_last=st.booleans(),
)
def test_batches_are_what_stacking_gives(
    rows: int, tensors: list[Any], batch: int, nested: int, drop_last: bool
) -> None:
    dataset: Any = TensorDataset(
        *(torch.randint(0, 2, (rows, *shape)).to(dtype) for shape, dtype in tensors)
    )
    for _ in range(nested):
        dataset = Subset(dataset, list(range(len(dataset)))[::-1])
    scope: dict[str, Any] = {"torch": torch}
    exec(DEFINITION, scope)
    given_to = {"batch_size": batch, "shuffle": True, "drop_last": drop_last}
    torch.manual_seed(0)
    before = list(DataLoader(dataset, **given_to))
    torch.manual_seed(0)
    after = list(DataLoader(scope[NAME](dataset), collate_fn=list, **given_to))
    assert len(before) == len(after)
    for old, new in zip(before, after):
        assert type(old) is type(new)
        for one, other in zip(old, new, strict=True):
            assert torch.equal(one, other)
            assert (one.dtype, one.shape, one.stride()) == (
                other.dtype,
                other.shape,
                other.stride(),
            )


POINTS = TensorDataset(torch.zeros(6, 4))


class Twice(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * each for each in super().__getitem__(index))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"dataset": Twice(torch.zeros(6, 4))}, "is no TensorDataset"),
        ({"dataset": ConcatDataset([POINTS, POINTS])}, "is no TensorDataset"),
        ({"dataset": TensorDataset(torch.zeros(4, 6).t())}, "not dense and contiguous"),
        ({"dataset": TensorDataset(torch.zeros(6, 4, requires_grad=True))}, "not dense"),
        ({"collate_fn": lambda samples: samples}, "a collate function of its own"),
        ({"batch_size": None}, "gives whole batches already"),
        ({"batch_sampler": [(0, 1), (2, 3)]}, "has a batch sampler of its own"),
    ],
)
def test_what_would_give_other_batches_is_refused(changed: dict[str, Any], why: str) -> None:
    usual = {
        "dataset": POINTS,
        "batch_size": 2,
        "batch_sampler": None,
        "collate_fn": default_collate,
    }
    assert isinstance(_arguments(True, usual), dict)
    batches = BatchSampler(SequentialSampler(POINTS), 2, drop_last=False)
    assert isinstance(_arguments(True, {**usual, "batch_sampler": batches}), dict)
    assert why in str(_arguments(True, {**usual, **changed}))


def test_it_is_tried_on_tensor_datasets_alone() -> None:
    assert WHOLE_BATCHES.values_for is not None
    for dataset, collate, values in (
        ("TensorDataset", None, (True,)),
        ("Words", None, ()),
        ("TensorDataset", "train.py:3", ()),
    ):
        loader = loader_use("train.py:9")
        seen = Census(loaders=(replace(loader, dataset=dataset, collate_site=collate),))
        assert WHOLE_BATCHES.values_for(seen) == values
