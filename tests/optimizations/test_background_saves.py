"""Saves of a script go beside its steps: where that took effect, where it could not, and the lines that do the same."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.census import CallUse, Census
from hotloop.doctor.patch.edit import edited
from hotloop.doctor.patch.imports import set_up_edit
from hotloop.doctor.patch.source import Frame, Source, Unsafe
from hotloop.optimizations.background_saves import BACKGROUND_SAVES, LINES
from hotloop.optimizations.source_edit import SetUp

TRAIN = """
import io, json, os, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(600, 600)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
SETUP
for step in range(6):
    loss = model(torch.ones(2, 600)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 2:
        SAVE
print(json.dumps({"loss": loss.item(), "file": FILE}))
"""
SAVE = "torch.save({'model': model.state_dict(), 'step': step}, 'latest.pt')"
FILE = "open('latest.pt', 'rb').read().hex()"


def script(save: str = SAVE, setup: str = "", file: str = FILE) -> str:
    return TRAIN.replace("SAVE", save).replace("SETUP", setup).replace("FILE", file)


def test_files_and_losses_are_those_of_the_plain_script(run_foreign: Any) -> None:
    plain = run_foreign(script()).printed
    ran = run_foreign(script(), {"background_saves": True})
    assert ran.printed == plain
    assert ran.said == [("background_saves", True, "a save to a path")]


@pytest.mark.parametrize(
    ("save", "why"),
    [
        ("torch.save(model.state_dict(), io.BytesIO())", "it is not saved to a path"),
        ("torch.save(model.state_dict(), '/dev/null')", "/dev/null is no plain file"),
    ],
)
def test_what_is_saved_as_before_is_named(run_foreign: Any, save: str, why: str) -> None:
    ran = run_foreign(script(save, file="0"), {"background_saves": True})
    assert ran.applied == []
    assert [said.startswith(why) for said in ran.refused] == [True]


@pytest.mark.parametrize(
    ("setup", "wrong"),
    [
        ("", False),
        # What an ordinary save would not write.
        ("from hotloop.checkpoint import background_files as files; copy = files.FileSaves.copy; "
         "files.FileSaves.copy = lambda *a: copy(*a).fill_(0)", True),
    ],
)  # fmt: skip
def test_other_bytes_reject_it_where_losses_are_compared(
    run_foreign: Any, tmp_path: Path, setup: str, wrong: bool
) -> None:
    environment = {"HOTLOOP_SAME_RANDOMNESS": str(tmp_path)}
    ran = run_foreign(script(setup=setup), {"background_saves": True}, environment=environment)
    told = [line["what"] for line in ran.lines if line.get("wrong")]
    assert told == (["latest.pt is not the file that an ordinary save makes"] if wrong else [])
    assert ran.applied == ["a save to a path"]


SAVES = CallUse("torch.save", "train.py:9", 4, 2.0)


@pytest.mark.parametrize(
    ("census", "values", "every"),
    [
        (Census(saves=(SAVES,), counted_steps=100), (True,), 25),
        (
            Census(
                saves=(replace(SAVES, num=16, seconds=0.1), replace(SAVES, what="safetensors.torch.save_file")),
                counted_steps=100,
            ),
            (True,),
            25,
        ),
        (Census(saves=(SAVES,), counted_steps=100, num_ranks=2), (), 25),
        (Census(saves=(replace(SAVES, what="os.replace"),), counted_steps=100), (), 0),
        (Census(), (), 0),
    ],
)  # fmt: skip
def test_it_is_tried_where_one_process_saves_over_several_saves(
    census: Census, values: Any, every: int
) -> None:
    assert BACKGROUND_SAVES.values_for is not None
    assert BACKGROUND_SAVES.values_for(census) == values
    assert BACKGROUND_SAVES.acts_every(census) == every


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os\nimport torch\nx = 1\n", f"import os\nimport torch\n{LINES[0]}\n{LINES[1]}\nx = 1\n"),
        (
            '"""Trains."""\nfrom __future__ import annotations\nimport json\nx = 1\n',
            f'"""Trains."""\nfrom __future__ import annotations\nimport json\n{LINES[0]}\n{LINES[1]}\nx = 1\n',
        ),
    ],
)  # fmt: skip
def test_two_lines_after_the_imports(tmp_path: Path, before: str, after: str) -> None:
    source = source_of(tmp_path, before)
    wanted: Any = BACKGROUND_SAVES.source_edit(True, {})  # type: ignore[misc]
    assert edited(source, [set_up_edit(source, wanted, tmp_path)]).decode() == after
    ast.parse(after)


def test_lines_that_use_torch_need_its_import(tmp_path: Path) -> None:
    source = source_of(tmp_path, "import json\n")
    with pytest.raises(Unsafe, match="torch is not imported"):
        set_up_edit(source, SetUp(("torch.x = 1",)), tmp_path)


def source_of(tmp_path: Path, text: str) -> Source:
    (tmp_path / "train.py").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Source(tmp_path, Frame("train.py", 1, "<module>", None, digest, direct=True))
