"""Threads for the CPUs that are there, and none where the script chose."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.census import Census
from hotloop.core.child import TOGGLED, TOGGLES_FILE
from hotloop.hardware.limits import Machine
from hotloop.optimizations.threads import THREADS
from hotloop.trial.toggling import ToggleSchedule

TRAIN = """
import json, os
BEFORE
import torch
torch.manual_seed(0)
AFTER
model = torch.nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(256, 64), torch.randn(256, 4)
losses = []
for step in range(4):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([torch.get_num_threads(), losses]))
"""
ONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": None}


def script(*, before: str = "", after: str = "") -> str:
    return TRAIN.replace("BEFORE", before).replace("AFTER", after)


def test_environment_gave_one_thread_and_there_are_more(run_foreign: Any) -> None:
    threads, plain = run_foreign(script(), environment=ONE).printed
    ran = run_foreign(script(), {"threads": 2}, environment=ONE)
    assert threads == 1
    assert ran.printed[0] == 2
    assert ran.printed[1] == pytest.approx(plain, rel=1e-5)
    assert ran.said == [("threads", True, "threads: 2 instead of 1")]


def test_they_are_toggled(run_foreign: Any, tmp_path: Path) -> None:
    schedule = ToggleSchedule(("threads",), 3, 5, "seed")
    text = script().replace("range(4)", "range(43)")
    text = text.replace(
        "    loss.backward()", "    threads = torch.get_num_threads(); loss.backward()"
    )
    text = text.replace("losses.append(loss.item())", "losses.append(threads)")
    environment = {**ONE, TOGGLED: schedule.to_json()}
    ran = run_foreign(text, {"threads": 2}, environment=environment)
    turns = json.loads((tmp_path / TOGGLES_FILE).read_text())
    assert (turns["can"], turns["turned"]) == (["threads"], ["threads"])
    assert ran.printed[1] == [2 if schedule.is_on(step) else 1 for step in range(43)]


@pytest.mark.usefixtures("without_compiler")
def test_too_many_threads_become_fewer(run_foreign: Any) -> None:
    many = {"OMP_NUM_THREADS": "2"}
    threads, plain = run_foreign(script(), environment=many).printed
    ran = run_foreign(script(), {"threads": 1}, environment=many)
    assert ran.printed[0] == 1
    assert ran.printed[1] == pytest.approx(plain, rel=1e-5)
    assert ran.applied == [f"threads: 1 instead of {threads}"]


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("where", "line", "why"),
    [
        (
            "after",
            "torch.set_num_threads(1)",
            "the script calls torch.set_num_threads at script.py:6",
        ),
        ("before", "os.environ['OMP_NUM_THREADS'] = '3'", "the script sets OMP_NUM_THREADS=3"),
        ("before", "os.environ['MKL_NUM_THREADS'] = '1'", "the script sets MKL_NUM_THREADS=1"),
    ],
)
def test_number_that_the_script_chose_stays(
    run_foreign: Any, where: str, line: str, why: str
) -> None:
    text = script(**{where: line})
    plain = run_foreign(text, environment=ONE)
    ran = run_foreign(text, {"threads": 2}, environment=ONE)
    assert ran.printed == plain.printed
    assert ran.applied == []
    assert ran.refused == [why]


def test_process_that_loads_is_left_alone(run_foreign: Any) -> None:
    workers = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, n): return torch.get_num_threads()
loader = torch.utils.data.DataLoader(Data(), num_workers=1)
"""
    text = script(after=workers).replace(
        "print(json.dumps(", "print(json.dumps([int(b) for b in loader] + "
    )
    ran = run_foreign(text, {"threads": 2}, environment=ONE)
    assert ran.printed[:4] == [1, 1, 1, 1]
    assert ran.said == [("threads", True, "threads: 2 instead of 1")]


@pytest.mark.parametrize(
    ("census", "values"),
    [
        (Census(device="cpu", cpus=8.0, num_threads=1), (8,)),
        (Census(device="cpu", cpus=2.5, num_threads=64), (2,)),
        (Census(device="cpu", cpus=0.5, num_threads=4), (1,)),
        (Census(device="cpu", cpus=8.0, num_threads=1, num_ranks=4, num_local_ranks=4), (2,)),
        (Census(device="cpu", cpus=8.0, num_threads=1, num_ranks=4), ()),
        (Census(device="cpu", cpus=8.0, num_threads=8), ()),
        (Census(device="cuda:0", cpus=8.0, num_threads=1), ()),
        (Census(device="cpu", num_threads=1), ()),
    ],
)
def test_number_is_that_of_the_cpus_over_the_ranks(census: Census, values: Any) -> None:
    assert THREADS.values_for is not None
    assert THREADS.values_for(census) == values


def test_threads_of_the_cpu_are_not_tried_for_a_gpu() -> None:
    assert THREADS.why_not(Machine("cuda", (), None, 8), 8, {}) is not None
    assert THREADS.why_not(Machine("cpu", (), None, 8), os.cpu_count(), {}) is None
    assert THREADS.observed(Census(num_threads=4), 4) is True
    assert THREADS.observed(Census(num_threads=1), 4) is False
