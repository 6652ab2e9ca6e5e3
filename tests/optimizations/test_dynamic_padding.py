"""Batches are cut to their longest sequence where a mask says what is padding, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.core.child import LOADER, NO_DROPOUT, TOGGLED, TOGGLES_FILE
from hotloop.optimizations.dynamic_padding import DEFINITION, DYNAMIC_PADDING
from hotloop.optimizations.dynamic_padding.live import find_mask
from hotloop.trial.toggling import ToggleSchedule

LENGTH = 32
SCRIPT = """
import json, torch
from torch.utils.data import DataLoader, default_collate
torch.manual_seed(0)
torch.set_num_threads(1)

def item(number):
    used = 3 + number % 7 * 3
    ids = torch.zeros(32, dtype=torch.long)
    ids[:used] = torch.randint(2, 50, (used,))
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor(number % 2)}

items = [ITEM for each in map(item, range(24))]
lengths, losses = [], []
loader = DataLoader(items, 3OPTIONS)
table = torch.nn.Embedding(50, 8)
head = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.5)
for epoch in range(2):
    for batch in loader:
        ids, mask, labels = BATCH
        lengths.append(ids.shape[1])
        seen = (table(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        loss = torch.nn.functional.cross_entropy(head(seen), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(json.dumps({"lengths": lengths, "losses": losses}))
"""
NAMED = SCRIPT.replace("ITEM", "each").replace(
    "BATCH", 'batch["input_ids"], batch["attention_mask"], batch["labels"]'
)
PLACED = SCRIPT.replace("ITEM", "tuple(each.values())").replace("BATCH", "batch")


@pytest.fixture(autouse=True)
def told_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    line = SCRIPT.split("\n").index("loader = DataLoader(items, 3OPTIONS)") + 1
    told = {"site": f"script.py:{line}", "made": [f"script.py:{line}"], "workdir": ""}
    monkeypatch.setenv(LOADER, json.dumps(told))


@pytest.mark.parametrize("options", ["", ", num_workers=1", ", collate_fn=default_collate"])
@pytest.mark.parametrize(
    ("script", "mask"), [(NAMED, "'attention_mask'"), (PLACED, "1")], ids=["named", "placed"]
)
def test_batches_are_as_long_as_their_longest_row_and_learn_the_same(
    run_foreign: Any, script: str, mask: str, options: str
) -> None:
    script = script.replace("OPTIONS", options)
    plain = run_foreign(script).printed
    ran = run_foreign(script, {"dynamic_padding": 8})
    assert plain["lengths"] == [LENGTH] * 16
    # Rows of a batch follow each other: 3, 6, 9 tokens; then 12, 15, 18; then 21, 3, 6; ...
    assert ran.printed["lengths"][:4] == [16, 24, 24, 16]
    assert max(ran.printed["lengths"]) < LENGTH
    assert ran.printed["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert set(ran.applied) == {f"batches are cut by {mask}"}


def test_batches_without_a_mask_are_left_and_that_is_said(run_foreign: Any) -> None:
    script = SCRIPT.replace("ITEM", '(each["input_ids"], each["labels"])').replace("OPTIONS", "")
    ran = run_foreign(
        script.replace("BATCH", "batch[0], (batch[0] > 0).long(), batch[1]"), {"dynamic_padding": 8}
    )
    assert ran.printed["lengths"] == [LENGTH] * 16
    assert ran.refused == ["no tensor of its batches is seen to be an attention mask"]


def test_it_goes_on_and_off_between_steps(run_foreign: Any, tmp_path: Path) -> None:
    schedule = ToggleSchedule(("dynamic_padding",), after=2, block_steps=2, seed="a")
    ran = run_foreign(
        NAMED.replace("OPTIONS", ""),
        {"dynamic_padding": 8},
        environment={TOGGLED: schedule.to_json()},
    )
    whole = {n for n, length in enumerate(ran.printed["lengths"]) if length == LENGTH}
    assert whole == {n for n in range(16) if not schedule.is_on(n)}
    said = json.loads((tmp_path / TOGGLES_FILE).read_text())
    assert said["can"] == ["dynamic_padding"]


def mask_of(*lengths: int, left: bool = False) -> torch.Tensor:
    rows = torch.arange(8)[None] < torch.tensor(lengths)[:, None]
    return (rows.flip(1) if left else rows).long()


IDS = torch.arange(2, 18).view(2, 8)
SEGMENTS = torch.tensor([[0] * 4 + [1] * 4] * 2)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ({"input_ids": IDS, "attention_mask": mask_of(8, 8)}, ("attention_mask",)),
        ({"input_ids": IDS * mask_of(5, 7), "mask": mask_of(5, 7)}, ("mask",)),
        ([IDS * mask_of(5, 7), SEGMENTS, mask_of(5, 7), torch.ones(2)], (2,)),
        ([IDS * mask_of(8, 8), mask_of(8, 8)], None),
        ([IDS, mask_of(5, 7)], None),  # what it would cut off are ids
        ([IDS, torch.ones(2)], None),
        ({"attention_mask": mask_of(5, 7, left=True)}, "its batches are not padded on the right"),
        (
            [IDS * mask_of(5, 7), mask_of(5, 7), mask_of(5, 7)],
            "several tensors of a batch may be the mask",
        ),
        (
            {"attention_mask": mask_of(5, 7), "pairs": torch.ones(2, 8, 8)},
            "a tensor of a batch has the padded length in another dimension, too",
        ),
        (IDS, "a batch is a Tensor: no mask is known in it"),
    ],
)
def test_mask_is_found_only_where_it_is_certain(batch: Any, found: Any) -> None:
    assert find_mask(batch) == found


def test_cut_tensors_can_be_viewed_and_all_else_stays() -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(DEFINITION, scope)
    trim = scope["TrimPadding"](dict)
    kept = torch.ones(2, 3)
    long = {"input_ids": torch.cat([IDS, IDS], 1), "x": kept, "names": ["a", "b"]}
    for longest, length in ((10, 16), (8, 8), (5, 8), (0, 16)):
        mask = (torch.arange(16)[None] < torch.tensor([[longest], [3 * (longest > 0)]])).long()
        ids = long["input_ids"] * mask
        made = trim({**long, "input_ids": ids, "attention_mask": mask})
        assert torch.equal(made["input_ids"].view(-1), ids[:, :length].flatten())
        assert made["attention_mask"].shape == (2, length)
        assert made["x"] is kept
        assert made["names"] == ["a", "b"]


def test_targets_that_are_longer_than_their_texts_stay_whole() -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(DEFINITION, scope)
    mask = torch.zeros(2, 32, dtype=torch.int64)
    mask[:, :5] = 1
    ids, targets = mask * 7, torch.full((2, 32), -100)
    targets[0, :20] = torch.arange(20)
    batch = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": targets,
        "short": targets[:, :32] * 0,
    }
    batch |= {"position_ids": torch.arange(32).repeat(2, 1)}
    found = scope["TrimPadding"](lambda made: made)(batch)
    lengths = {key: value.shape[1] for key, value in found.items()}
    assert lengths == {
        "input_ids": 8,
        "attention_mask": 8,
        "labels": 32,
        "short": 8,
        "position_ids": 8,
    }


def test_a_third_to_all_of_the_padding_goes() -> None:
    assert DYNAMIC_PADDING.expect is not None
    found = DYNAMIC_PADDING.expect(
        {"padded_fraction": 0.5, "forward_backward_fraction": 0.8}, value=8
    )
    assert found == pytest.approx((1 / (1 - 0.4 / 3), 1 / 0.6))


DROPS = """
import json, torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(2, 4, 8)
attention = nn.functional.scaled_dot_product_attention
layers = {
    "module": nn.Dropout(0.5),
    "function": lambda x: nn.functional.dropout(x, 0.5),
    "channels": lambda x: nn.functional.dropout1d(x, p=0.5),
    "alpha": nn.AlphaDropout(0.5),
    "attention": lambda x: attention(x, x, x, None, 0.5),
    "attention by name": lambda x: attention(x, x, x, dropout_p=0.5),
    "recurrent": lambda x, made=nn.LSTM(8, 8, 2, dropout=0.5): made(x)[0],
}
print(json.dumps({name: torch.equal(call(x), call(x)) for name, call in layers.items()}))
"""


def test_nothing_is_dropped_where_losses_of_other_shapes_are_compared(run_foreign: Any) -> None:
    plain = run_foreign(DROPS).printed
    assert not any(plain.values())
    held = run_foreign(DROPS, environment={NO_DROPOUT: "1"}).printed
    assert all(held.values()), held
