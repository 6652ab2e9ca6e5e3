"""Techniques that go on and off within one process: when, and that it is really so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.child import TOGGLED
from hotloop.trial.toggling import ALTERNATE, SETTLING, ToggleSchedule

RunForeign = Callable[..., Any]
SEEDS = [str(number) for number in range(20)]


def schedule(seed: str = "0", after: int = 5, block_steps: int = 6) -> ToggleSchedule:
    return ToggleSchedule(("fused_optimizer",), after, block_steps, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_group_of_blocks_has_drift_in_both_halves_alike(seed: str) -> None:
    drawn = schedule(seed)
    for group in range(5):
        first = drawn.after + 4 * group * drawn.block_steps
        blocks = [
            {drawn.is_on(first + block * drawn.block_steps + step) for step in range(6)}
            for block in range(4)
        ]
        assert blocks in ([{True}, {False}, {False}, {True}], [{False}, {True}, {True}, {False}])


def test_orders_are_drawn() -> None:
    starts = {tuple(schedule(seed).is_on(5 + 24 * group) for group in range(5)) for seed in SEEDS}
    assert len(starts) > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_halves_have_as_many_steps_and_so_have_those_of_the_noise(seed: str) -> None:
    drawn = schedule(seed)
    steps = [step for step in range(5 + ALTERNATE * 6) if drawn.counts(step)]
    off = [step for step in steps if not drawn.is_on(step)]
    first = [step for step in off if drawn.is_first_off(step)]
    assert len(steps) == ALTERNATE * (6 - SETTLING)
    assert len(off) == len(steps) / 2
    assert len(first) == len(off) / 2
    # The middle of the halves' steps is the same: a speed that drifts steadily is no difference.
    on = set(steps) - set(off)
    assert sum(on) == sum(off)


def test_it_is_on_until_the_first_block_and_what_follows_a_change_is_not_counted() -> None:
    drawn = schedule()
    assert all(drawn.is_on(step) and not drawn.counts(step) for step in range(5))
    assert [drawn.counts(5 + step) for step in range(7)] == [False] * 2 + [True] * 4 + [False]


def test_survives_the_way_through_the_environment() -> None:
    assert ToggleSchedule.from_json(schedule().to_json()) == schedule()


TRAIN = """
import json, threading, torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
x, y = torch.randn(8, 16), torch.randn(8, 4)
{before}
optimizer = {made}
losses, fused = [], []
for _ in range(40):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    fused.append([bool(group["fused"]) for group in optimizer.param_groups][0])
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, fused]))
"""
MADE = [
    "torch.optim.AdamW(model.parameters(), lr=1e-2)",
    "torch.optim.Adam(model.parameters(), lr=1e-2)",
    "torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)",
    "torch.optim.Adagrad(model.parameters(), lr=1e-2)",
]
FIX = {"fused_optimizer": True}


def turns(tmp_path: Path) -> dict[str, object]:
    said: dict[str, object] = json.loads((tmp_path / "turns.json").read_text())
    return said


@pytest.mark.parametrize("made", MADE)
def test_fused_optimizer_goes_on_and_off_and_learns_the_same(
    run_foreign: RunForeign, tmp_path: Path, made: str
) -> None:
    drawn = schedule(after=3, block_steps=4)
    script = TRAIN.format(made=made, before="")
    plain = run_foreign(script)
    ran = run_foreign(script, FIX, environment={TOGGLED: drawn.to_json()})
    assert ran.printed[1] == [drawn.is_on(step) for step in range(40)]
    assert ran.printed[0] == pytest.approx(plain.printed[0], rel=1e-5)
    assert turns(tmp_path)["turned"] == ["fused_optimizer"]


def test_without_a_plan_to_switch_it_only_says_that_it_could(
    run_foreign: RunForeign, tmp_path: Path
) -> None:
    ran = run_foreign(TRAIN.format(made=MADE[0], before=""), FIX)
    assert ran.printed[1] == [True] * 40
    assert turns(tmp_path) == {
        "can": ["fused_optimizer"], "turned": [], "children": 0, "threads": [],
    }  # fmt: skip


def test_threads_and_processes_that_could_make_batches_are_told(
    run_foreign: RunForeign, tmp_path: Path
) -> None:
    before = """
import multiprocessing, time
threading.Thread(target=time.sleep, args=(60,), daemon=True, name="prefetcher").start()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
child.start()
"""
    run_foreign(TRAIN.format(made=MADE[0], before=before), FIX)
    assert (turns(tmp_path)["threads"], turns(tmp_path)["children"]) == (["prefetcher"], 1)


def test_what_only_passes_things_on_is_no_maker_of_batches(
    run_foreign: RunForeign, tmp_path: Path
) -> None:
    before = """
data = torch.utils.data.TensorDataset(x, y)
loading = iter(torch.utils.data.DataLoader(data, num_workers=2, batch_size=4))
next(loading)
queue = __import__("multiprocessing").Queue()
queue.put(1)
"""
    run_foreign(TRAIN.format(made=MADE[0], before=before), FIX)
    assert (turns(tmp_path)["threads"], turns(tmp_path)["children"]) == ([], 2)


def test_technique_that_cannot_be_turned_everywhere_is_not_offered(
    run_foreign: RunForeign, tmp_path: Path
) -> None:
    """On a machine with an accelerator the optimizer's state would lie on the wrong side."""
    before = """
answers = iter([{first}, True])
torch.accelerator.is_available = lambda: next(answers, False)
other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
"""
    for first in (True, False):
        script = TRAIN.format(made=MADE[0], before=before.format(first=first))
        run_foreign(script, FIX)
        assert turns(tmp_path)["can"] == []


def test_turning_that_fails_is_told_and_the_script_goes_on(
    run_foreign: RunForeign, tmp_path: Path
) -> None:
    before = """
class Broken(torch.optim.SGD):
    def __setattr__(self, name, value):
        if name == "_step_supports_amp_scaling" and not value:
            raise RuntimeError("no")
        super().__setattr__(name, value)
"""
    drawn = schedule(after=3, block_steps=4)
    script = TRAIN.format(made="Broken(model.parameters(), lr=1e-2)", before=before)
    ran = run_foreign(script, FIX, environment={TOGGLED: drawn.to_json()})
    assert ran.refused == ["it could not be turned on and off: RuntimeError: no"]
    assert json.loads((tmp_path / "fixes.jsonl").read_text().splitlines()[-1])["wrong"]
    assert turns(tmp_path)["turned"] == []
