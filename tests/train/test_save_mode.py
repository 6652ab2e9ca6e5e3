"""`checkpoint.background: auto`: the cheaper way to save, as it was seen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainings import train

from hotloop.checkpoint.background import Saver
from hotloop.core.step import StepRecord
from hotloop.train.save_mode import SaveMode


def record(step: int, wall_s: float, *, held_s: float | None = None) -> StepRecord:
    return StepRecord(
        step=step,
        wall_s=wall_s,
        host={"checkpoint": held_s} if held_s is not None else {},
        tags=("checkpoint",) if held_s is not None else (),
    )


def modes(
    *,
    held_s: dict[bool, float],
    slower_s: dict[bool, float],
    setting: Any = "auto",
    fits: bool = True,
) -> list[bool]:
    """How ten saves are made, ten steps apart, that hold up and slow down the steps so long."""
    config = SimpleNamespace(checkpoint=SimpleNamespace(background=setting))
    state_bytes = 8 if fits else 1 << 60
    run: Any = SimpleNamespace(config=config, saver=Saver(), state_bytes=state_bytes)
    mode, found = SaveMode(run), []
    for number in range(10):
        found.append(mode.beside())
        mode(record(10 * number, 1.0 + held_s[found[-1]], held_s=held_s[found[-1]]))
        for step in range(9):
            slower = slower_s[found[-1]] / 3 if step < 3 else 0.0
            mode(record(10 * number + step + 1, 1.0 + slower))
    return found


@pytest.mark.parametrize(
    ("held_s", "slower_s", "kept"),
    [
        ({False: 3.0, True: 0.3}, {False: 0.0, True: 1.0}, True),
        ({False: 3.0, True: 0.3}, {False: 0.0, True: 3.0}, False),
        ({False: 0.1, True: 0.2}, {False: 0.0, True: 0.0}, False),
    ],
)
def test_each_way_is_tried_twice_and_the_cheaper_one_kept(
    held_s: dict[bool, float], slower_s: dict[bool, float], kept: bool
) -> None:
    found = modes(held_s=held_s, slower_s=slower_s)
    assert found == [False, True, False, True, *[kept] * 6]


def test_a_copy_that_does_not_fit_into_memory_is_not_tried() -> None:
    held_s = {False: 3.0, True: 0.3}
    assert modes(held_s=held_s, slower_s={False: 0.0, True: 0.0}, fits=False) == [False] * 10


@pytest.mark.parametrize("setting", [False, True])
def test_what_is_set_is_done(setting: bool) -> None:
    held_s = {False: 1.0, True: 1.0}
    assert modes(held_s=held_s, slower_s=held_s, setting=setting) == [setting] * 10


def test_a_training_measures_both_ways(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SaveMode] = []
    made = SaveMode.__init__
    monkeypatch.setattr(
        SaveMode, "__init__", lambda self, run: (made(self, run), seen.append(self))[0]
    )
    train(
        tiny_config,
        tmp_path / "run",
        "train.steps=40",
        "checkpoint.every_steps=5",
        "checkpoint.background=auto",
    )
    costs = seen[0].costs_s
    assert (len(costs[False]) >= 2, len(costs[True]) >= 2) == (True, True)
    assert sum(map(len, costs.values())) >= 6  # the newest is not over, the last one is waited for
    assert all(each > 0 for each in costs[False])
