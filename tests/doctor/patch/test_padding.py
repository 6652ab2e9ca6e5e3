"""Where batches are cut to their longest sequence: the patch does in the script what its live form did."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from loader_uses import loader_use, seen_at

import warm_python
from hotloop.core.census import Census
from hotloop.core.child import DOCTOR, LOADER
from hotloop.core.files import read_json
from script_runs import variables

Try = Callable[..., Any]

PLAIN = """\
import json

from torch import nn, ones, optim, randint, manual_seed, set_num_threads
from torch.utils.data import DataLoader, default_collate

set_num_threads(1)
manual_seed(0)


class Words:
    def __len__(self):
        return 24

    def __getitem__(self, number):
        used = 3 + number % 5
        ids = randint(2, 50, (32,))
        ids[used:] = 0
        return ITEM


def collate(items):
    return default_collate(items)


loader = DataLoader(ARGUMENTS)
table, head = nn.Embedding(50, 8), nn.Linear(8, 2)
optimizer = optim.SGD([*table.parameters(), *head.parameters()], lr=0.5)
losses, lengths = [], []
for batch in loader:
    ids, mask = PAIR
    seen = (table(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    loss = head(seen).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    lengths.append(ids.shape[1])
print(json.dumps([losses, lengths]))
"""
NAMED = PLAIN.replace("ITEM", '{"input_ids": ids, "attention_mask": (ids > 0).long()}').replace(
    "PAIR", 'batch["input_ids"], batch["attention_mask"]'
)
PLACED = PLAIN.replace("ITEM", "ids, (ids > 0).long()").replace("PAIR", "batch")


@pytest.fixture
def cut(tried: Try, monkeypatch: pytest.MonkeyPatch) -> Try:
    """`cut(script, arguments)`: run with the fix, its loader made with these arguments."""

    def make(script: str, arguments: str) -> Any:
        script = script.replace("ARGUMENTS", arguments)
        site = f"train.py:{script.split('loader = DataLoader')[0].count(chr(10)) + 1}"
        seen_at(monkeypatch, site)
        found = tried({"train.py": script}, {"dynamic_padding": 8})
        found.census = Census(loaders=(loader_use(site),))
        monkeypatch.delenv(LOADER)
        return found

    return make


@pytest.mark.parametrize(
    ("script", "arguments", "edited"),
    [
        (NAMED, "Words(), 4", "Words(), 4, collate_fn=TrimPadding()"),
        (NAMED, "Words(), 4, collate_fn=None", "Words(), 4, collate_fn=TrimPadding()"),
        (PLACED, "Words(), 4", "Words(), 4, collate_fn=TrimPadding(mask=1)"),
        (
            PLACED,
            "Words(), 4, collate_fn=collate, drop_last=True",
            "Words(), 4, collate_fn=TrimPadding(collate, mask=1), drop_last=True",
        ),
        (
            NAMED,
            "Words(), 4, False, None, None, 0, lambda each: collate(each)",
            "Words(), 4, False, None, None, 0, TrimPadding(lambda each: collate(each))",
        ),
    ],
)
def test_collate_function_is_wrapped_where_the_loader_is_made(
    cut: Try, run_script: Callable[..., Any], script: str, arguments: str, edited: str
) -> None:
    found = cut(script, arguments)
    losses, lengths = run_script(found.workdir, "train.py")
    assert set(lengths) == {32}
    (fix,) = found.write().fixes
    assert fix.patch == "edited", fix.patch_text
    found.apply()
    text = (found.workdir / "train.py").read_text()
    assert f"loader = DataLoader({edited})" in text
    assert "\n\n\nclass TrimPadding:" in text
    after, shorter = run_script(found.workdir, "train.py")
    assert (after, shorter) == tuple(found.printed)
    assert after == pytest.approx(losses, rel=1e-5)
    assert set(shorter) == {8}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("Words(), 4, **dict(shuffle=False)", "may hold `collate_fn` already"),
        ("*(Words(), 4)", "`collate_fn` may be given by its place already"),
    ],
)
def test_loader_that_may_have_a_collate_function_is_words(
    cut: Try, arguments: str, why: str
) -> None:
    found = cut(NAMED, arguments)
    (fix,) = found.write().fixes
    assert fix.patch == "words"
    assert why in (fix.patch_text or "")
    assert "give `collate_fn=TrimPadding(collate_fn)`" in (fix.patch_text or "")


LIBRARY = """\
import torch
from torch.utils.data import DataLoader, default_collate

class Trainer:
    def __init__(self, model, data, data_collator=None):
        self.model, self.data = model, data
        self.data_collator = data_collator or default_collate
    def train(self):
        optimizer, losses = torch.optim.SGD(self.model.parameters(), lr=0.5), []
        for batch in DataLoader(self.data, 4, collate_fn=self.data_collator):
            loss = self.model(**batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses
"""
TRAINER = """\
import json
import sys

sys.path.insert(0, "lib/site-packages")
import torch
from transformers.trainer import Trainer

torch.set_num_threads(1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)
        self.lengths = []

    def forward(self, input_ids, attention_mask):
        self.lengths.append(input_ids.shape[1])
        mask = attention_mask[..., None]
        return self.head((self.table(input_ids) * mask).sum(1) / mask.sum(1)).logsumexp(1).mean()


def main():
    torch.manual_seed(0)
    rows = torch.randint(2, 50, (24, 32)) * (torch.arange(32) < torch.arange(24)[:, None] % 5 + 3)
    trainer = Trainer(Model(), [{"input_ids": row, "attention_mask": (row > 0).long()} for row in rows])
    if len(rows):
        losses = trainer.train()
    print(json.dumps([losses, trainer.model.lengths]))


if __name__ == "__main__":
    main()
"""
FILES = {
    "train.py": TRAINER,
    "lib/site-packages/transformers/__init__.py": "",
    "lib/site-packages/transformers/trainer.py": LIBRARY,
}


@pytest.fixture
def examined(tmp_path: Path) -> Callable[[Mapping[str, str]], Census]:
    """What the doctor's first run sees of a script."""

    def examine(files: Mapping[str, str]) -> Census:
        workdir, seen = tmp_path / "examined", tmp_path / "seen"
        seen.mkdir()
        for name, text in files.items():
            (workdir / name).parent.mkdir(parents=True, exist_ok=True)
            (workdir / name).write_text(text)
        env = variables() | {DOCTOR: str(seen)}
        done = warm_python.run(["train.py"], env=env, cwd=workdir)
        assert done.returncode == 0, done.stderr
        return read_json(seen / "census-0.json", Census)

    return examine


def test_transformers_trainer_has_its_collator_wrapped_before_it_trains(
    tried: Try,
    run_script: Callable[..., Any],
    examined: Callable[[Mapping[str, str]], Census],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    census = examined(FILES)
    (loader,) = (each for each in census.loaders if each.trains)
    told = {"site": loader.site, "made": loader.made, "workdir": ""}
    monkeypatch.setenv(LOADER, json.dumps(told))
    found = tried(FILES, {"dynamic_padding": 8})
    found.census = census
    monkeypatch.delenv(LOADER)
    losses, lengths = run_script(found.workdir, "train.py")
    assert set(lengths) == {32}
    (fix,) = found.write().fixes
    assert fix.patch == "edited", fix.patch_text
    assert "its evaluation is cut likewise" in (fix.patch_text or "")
    found.apply()
    text = (found.workdir / "train.py").read_text()
    line = "        trainer.data_collator = TrimPadding(trainer.data_collator)\n        losses ="
    assert line in text
    after, shorter = run_script(found.workdir, "train.py")
    assert after == pytest.approx(losses, rel=1e-4)
    assert set(shorter) == {8}
