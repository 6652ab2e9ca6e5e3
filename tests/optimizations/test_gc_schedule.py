"""Collections leave the steps, memory stays bounded, and a script with its own schedule keeps it."""

from __future__ import annotations

from typing import Any

import pytest

TRAIN = """
import gc; gc.unfreeze()  # what the process that held torch had frozen
import json, torch
torch.manual_seed(0)
index = [{"name": str(n), "box": [n, n + 1]} for n in range(20_000)]  # what a dataset keeps
full, seen = [], []

def watch(phase, info):
    if phase == "stop" and info["generation"] == 2:
        full.append(step)

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 8), torch.randn(16, 4)
losses = []
SETUP
step = 0
gc.callbacks.append(watch)
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    LOOP
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"losses": losses, "full": full, "frozen": gc.get_freeze_count(),
                  "thresholds": gc.get_threshold(), "enabled": gc.isenabled(), "seen": seen}))
"""
KEEPS = "keep = [[n] for n in range(60_000)]; seen.append(keep)"
"""Objects that stay, with which Python comes to a full collection by itself."""


def script(*, steps: int = 12, setup: str = "", loop: str = "pass") -> str:
    return TRAIN.replace("SETUP", setup).replace("LOOP", loop).replace("STEPS", str(steps))


def test_full_collections_come_when_they_are_due_and_not_in_between(run_foreign: Any) -> None:
    text = script(loop=f"{KEEPS}; seen.clear() if step == 12 else None")
    plain = run_foreign(text).printed
    ran = run_foreign(text, {"gc_schedule": 5})
    assert [step for step in plain["full"] if step > 3], "Python makes some by itself"
    assert [step for step in ran.printed["full"] if step > 3] == [5, 10]
    assert ran.printed["losses"] == plain["losses"]
    (said,) = ran.applied
    assert "objects frozen after step 3" in said
    assert ran.printed["frozen"] > 20_000
    assert ran.printed["enabled"]
    assert ran.printed["thresholds"][:2] == plain["thresholds"][:2]


def test_collecting_by_the_script_looks_only_at_what_came_later(run_foreign: Any) -> None:
    loop = "seen.append(len(gc.get_objects())); gc.collect()"
    plain = run_foreign(script(loop=loop)).printed
    printed = run_foreign(script(loop=loop), {"gc_schedule": 100}).printed
    assert set(printed["full"]) >= set(plain["full"])  # none of the script's is left out
    assert printed["seen"][-1] < 0.5 * plain["seen"][-1]


def test_frozen_circles_go_once_memory_has_grown(run_foreign: Any) -> None:
    """A circle holds 8 MB; it was alive when things were frozen, and is garbage afterwards."""
    setup = """
import weakref
class Holder: pass
held = Holder(); held.itself = held; held.bytes = torch.zeros(2_000_000)
gone = weakref.ref(held)
grown = []
"""
    loop = """
    if step == 4: del held
    if step == 6: grown.append(torch.ones(150_000_000))
    seen.append(gone() is None)"""
    printed = run_foreign(script(steps=30, setup=setup, loop=loop), {"gc_schedule": 1000}).printed
    assert printed["seen"][20] is False
    assert printed["seen"][-1] is True


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ("gc.disable()", "turned automatic collections off"),
        ("gc.set_threshold(5000, 20, 20)", "chose when to collect: (5000, 20, 20)"),
        ("gc.collect(); gc.freeze()", "freezes objects itself"),
    ],
)
def test_script_with_its_own_schedule_keeps_it(run_foreign: Any, setup: str, why: str) -> None:
    plain = run_foreign(script(setup=setup)).printed
    ran = run_foreign(script(setup=setup), {"gc_schedule": 2})
    assert ran.applied == []
    assert why in ran.refused[0]
    for key in ("enabled", "thresholds"):
        assert ran.printed[key] == plain[key]
