"""What changes between epochs in what a dataset holds, as workers that live on would not see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

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


def test_what_a_collate_method_belongs_to_is_looked_at() -> None:
    data = Pictures()
    held = data.collate
    first = state_of(None, held)
    data.epoch = 3
    assert state_of(None, held) != first


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("train_loader.dataset.mosaic = False", True),
        ("self.train_loader.dataset.close_mosaic(hyp=1)", True),
        ("dataset.transform.size = 64", True),
        ("sampler.set_epoch(epoch)", True),  # a sampler's would do no harm
        ("print(len(loader.dataset), loader.dataset.classes)", False),
        ("if loader.dataset.epoch == 3: pass", False),
        ("data = datasets.MNIST('data')", False),
        ("item = loader.dataset.__getitem__(3)", False),
    ],
)
def test_a_line_that_may_change_a_dataset_late_is_found(
    tmp_path: Path, line: str, changes: bool
) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{line}\n")
    files = [str(tmp_path / "gone.py"), str(tmp_path / "train.py")]
    assert may_change(files) == changes
