"""What changes between epochs in what a dataset holds, as workers that live on would not see it."""

from __future__ import annotations

import os
import sys
import weakref
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

import warm_python
from hotloop.probe.attach.dataset_state import may_change, state_of


class Crop:
    def __init__(self) -> None:
        self.size = 32

    def __call__(self, picture: Any) -> Any:
        return picture


class Pictures:
    def __init__(self) -> None:
        self.x = torch.zeros(4)
        self.epoch = 0
        self.transforms = [Crop(), torch.nn.Dropout(0.1)]
        self.paths = {"a": "a.png"}
        self.me = self

    def collate(self, samples: Any) -> Any:
        return samples


CHANGES: dict[str, Callable[[Pictures], Any]] = {
    "an epoch": lambda data: setattr(data, "epoch", 1),
    "the size of a transform": lambda data: setattr(data.transforms[0], "size", 64),
    "a module's rate": lambda data: setattr(data.transforms[1], "p", 0.5),
    "a tensor in place": lambda data: data.x.add_(1),
    "another file": lambda data: data.paths.update(b="b.png"),
    "another transform": lambda data: data.transforms.append(Crop()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_a_dataset_holds_is_noticed(what: str) -> None:
    data = Pictures()
    whole = Subset(data, [0, 1])  # type: ignore[arg-type]  # it has no length
    before = state_of(whole, None)
    assert state_of(whole, None) == before
    CHANGES[what](data)
    assert state_of(whole, None) != before


class Cache(UserDict[str, int]):
    """Remembers what was asked for last."""

    asked: tuple[str, ...] = ()

    def __getitem__(self, key: str) -> int:
        self.asked += (key,)
        return super().__getitem__(key)


def test_nothing_of_the_datasets_own_is_run_to_look_at_it() -> None:
    data = Cache({"a": 1})
    before = state_of(data)
    assert data.asked == ()
    data["b"] = 2
    assert state_of(data) != before


def test_a_loop_whose_variables_were_looked_at_lets_go_of_them() -> None:
    held = weakref.WeakSet[Crop]()
    data = Pictures()

    def loop() -> int:
        crop = Crop()
        held.add(crop)
        may_change([data], frames=[sys._getframe()], files=[], own=lambda code: False)
        del crop
        return len(held)

    assert loop() == 0


def test_what_a_collate_method_belongs_to_is_looked_at() -> None:
    data = Pictures()
    held = data.collate
    first = state_of(None, held)
    data.epoch = 3
    assert state_of(None, held) != first


SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader
from hotloop.probe.attach.dataset_state import may_change
import other

SIZE, STATE, RATE = 32, {"stage": 1}, 0.5
def scaled(x): return x * RATE
def in_stage(x): return x * STATE["stage"]
class Crop:
    def __init__(self): self.size = 32
    def __call__(self, x): return x[: self.size]
class Trainer:
    def __init__(self, data): self.train_data = data
def made():
    strength = [1.0]
    def jitter(x): return x * strength[0]
    return jitter
class Pictures:
    def __init__(self, *transforms): self.transforms, self.x = transforms, torch.zeros(4)
    def __len__(self): return 4
    def __getitem__(self, i): return BODY
def main():
    crop = Crop()
    data = Pictures(crop, TRANSFORM)
    trainer = Trainer(data)
    loader = DataLoader(data)
    frame = sys._getframe()
    own = lambda code: code.co_filename in (__file__, other.__file__)
    print(may_change([loader.dataset], frames=[frame], files=[__file__, other.__file__], own=own))
    return
    LINE
main()
"""


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("loader.dataset.mosaic = False", True),
        ("loader.dataset.close_mosaic(hyp=1)", True),
        ("data.stage = 3", True),  # its name here
        ("data.stage += 1", True),
        ("trainer.train_data.stage = 3", True),  # as an attribute
        ("crop.size = 64", True),  # what it holds
        ("data.transforms[0] = None", True),
        ("setattr(data, 'stage', 3)", True),
        ("sampler.set_epoch(epoch)", True),  # a sampler's would do no harm
        ("pass", False),
        ("print(len(loader.dataset), loader.dataset.classes, data.x, crop.size)", False),
        ("if data.epoch == 3 and crop.size == 2: pass", False),
        ("datasets.MNIST('data'); loader.dataset.__getitem__(3)", False),
    ],
)
def test_a_line_that_may_change_a_dataset_late_is_found(
    tmp_path: Path, line: str, changes: bool
) -> None:
    assert changing(tmp_path, line=line) == changes


@pytest.mark.parametrize(
    ("body", "line", "changes"),
    [
        ("self.x[i] * SIZE", "pass", False),  # a constant
        ("self.x[i] * SIZE", "global SIZE; SIZE = 64", True),
        ("self.x[i] * STATE['stage']", "pass", True),
        ("in_stage(self.x[i])", "pass", True),  # by a function that it calls
        ("scaled(self.x[i])", "pass", False),
        ("scaled(self.x[i])", "train.RATE = 1", True),
        ("self.x[i] * other.STAGE", "pass", False),
        ("self.x[i] * other.STAGE", "other.STAGE = 2", True),
        ("self.x[i] * other.CONFIG['stage']", "pass", True),
        ("other.read()", "pass", True),
        ("torch.randn(3)", "pass", False),
        ("[SIZE for _ in range(3)] + [STATE for _ in range(3)]", "pass", True),
    ],
)
def test_what_else_a_dataset_reads_may_change(
    tmp_path: Path, body: str, line: str, changes: bool
) -> None:
    assert changing(tmp_path, body=body, line=line) == changes


@pytest.mark.parametrize(("transform", "changes"), [("made()", True), ("scaled", False), ("lambda x: x / 255", False), ("in_stage", True)])  # fmt: skip
def test_what_a_transform_reads_may_change(tmp_path: Path, transform: str, changes: bool) -> None:
    assert changing(tmp_path, transform=transform) == changes


def changing(place: Path, *, line: str = "pass", body: str = "self.x[i]", transform: str = "None") -> bool:  # fmt: skip
    text = SCRIPT.replace("LINE", line).replace("BODY", body).replace("TRANSFORM", transform)
    if line.startswith("global"):
        text = text.replace("main()\n", "def late(): " + line + "\nmain()\n").replace("    " + line + "\ndef", "    pass\ndef")  # fmt: skip
    (place / "train.py").write_text(text)
    (place / "other.py").write_text(
        "STAGE, CONFIG, HELD = 1, {'stage': 1}, [1]\ndef read(): return HELD[0]\n"
    )
    done = warm_python.run(["train.py"], env=os.environ, cwd=place)
    assert done.returncode == 0, done.stderr
    return {"True": True, "False": False}[done.stdout.strip()]
