"""Saves of a script go beside its steps: where that took effect, where it could not, and the lines that do the same."""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.core.census import CallUse, Census
from hotloop.core.child import STEP_CLOCK, TOGGLED
from hotloop.core.judgement import Finding
from hotloop.doctor.fixes import fixes_for
from hotloop.doctor.patch.edit import edited
from hotloop.doctor.patch.imports import set_up_edit
from hotloop.doctor.patch.source import Frame, Source, Unsafe
from hotloop.hardware.limits import Machine
from hotloop.optimizations.background_saves import BACKGROUND_SAVES, LINES
from hotloop.optimizations.source_edit import SetUp
from hotloop.trial.toggling import ToggleSchedule

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


def test_files_and_losses_are_those_of_the_plain_script(run_foreign: Any, tmp_path: Path) -> None:
    plain = run_foreign(script()).printed
    ran = run_foreign(script(), {"background_saves": True})
    assert ran.printed == plain
    assert ran.said == [("background_saves", True, "a save to a path")]
    # Written after the second step, before the first save: that it can be toggled is known by then.
    assert json.loads((tmp_path / "turns.json").read_text())["can"] == ["background_saves"]


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


TURNS = """
import json, time, torch
from hotloop.checkpoint import background_files as files
finish = files.FileSave.finish
files.FileSave.finish = lambda self, **how: (time.sleep(0.5), finish(self, **how))
model = torch.nn.Linear(600, 600)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for step in range(24):
    model(torch.ones(2, 600)).square().mean().backward()
    optimizer.step()
    seen.append([files.SAVES.num_saved, len(files.SAVES.pending)])
    if step % 3 == 2:
        torch.save(model.state_dict(), "latest.pt")
print(json.dumps(seen))
"""


def test_what_a_block_saved_beside_its_steps_is_written_within_its_time(
    run_foreign: Any, tmp_path: Path
) -> None:
    schedule = ToggleSchedule(("background_saves",), 0, 3, "seed", settling=0)
    environment = {TOGGLED: schedule.to_json(), STEP_CLOCK: str(tmp_path)}
    ran = run_foreign(TURNS, {"background_saves": True}, environment=environment)
    records = [json.loads(line) for line in (tmp_path / "steps-0.jsonl").read_text().splitlines()]
    assert len(records) == 24
    saved = 0
    for block in range(8):
        is_on = schedule.is_on(3 * block)
        saved += is_on and block > 0  # what is saved after a step is of the next one
        last = 3 * block + 2
        assert ran.printed[last][0] == saved
        if is_on and block > 0 and not schedule.is_on(last + 1):
            assert ran.printed[last][1] == 0
            assert sum(records[step]["wall_s"] for step in range(last - 2, last + 1)) > 0.5
    assert 0 < saved < 7
    said = json.loads((tmp_path / "turns.json").read_text())
    assert (said["can"], said["turned"]) == (["background_saves"], ["background_saves"])
    assert said["threads"] == []


MACHINE = Machine("cpu", (), None, 1)
SAVES = CallUse("torch.save", "train.py:9", 4, 2.0)


@pytest.mark.parametrize(
    ("census", "values"),
    [
        (Census(saves=(SAVES,)), (True,)),
        (Census(saves=(replace(SAVES, what="safetensors.torch.save_file"),)), (True,)),
        (Census(saves=(SAVES,), num_ranks=2), ()),
        (Census(saves=(replace(SAVES, what="os.replace"),)), ()),
        (Census(), ()),
    ],
)
def test_it_is_tried_where_one_process_saves(census: Census, values: Any) -> None:
    assert BACKGROUND_SAVES.values_for is not None
    assert BACKGROUND_SAVES.values_for(census) == values


def test_trials_count_several_saves() -> None:
    evidence: dict[str, Any] = {"checkpoint_fraction": 0.3, "steps_between": 39.6}
    finding = Finding("HL701", "", 1.4, evidence=evidence, optimization="background_saves")
    diagnosis: Any = SimpleNamespace(findings=(finding,))
    (fix,) = fixes_for(diagnosis, MACHINE, Census(saves=(SAVES,)))
    assert fix.acts_every == 40


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
