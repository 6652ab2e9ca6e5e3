from __future__ import annotations

import ast
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotloop.core.census as census_module
import hotloop.core.errors as errors_module
import hotloop.core.step as step_module
from hotloop.core.census import Census
from hotloop.core.files import read_json
from hotloop.core.parity_records import WeightUpdates
from hotloop.core.step import StepRecord, read_steps
from hotloop.probe import entry, foreign_process, scaled_loss, step_clock, step_rule


@pytest.fixture
def clocked(run: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Runs a script that puts up its own clock, `here`; returns what it printed last, as JSON."""

    def clocked(source: str) -> Any:
        here = f"from pathlib import Path\nhere = Path({str(tmp_path)!r})\n"
        return run(here + source, watched=False).last

    return clocked


def records(directory: Path) -> list[StepRecord]:
    return list(read_steps(directory / "steps-0.jsonl"))


def test_clock_needs_nothing_but_torch_and_the_standard_library(
    clocked: Any, tmp_path: Path
) -> None:
    source = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pydantic", "scipy", "yaml", "click", "rich", "psutil"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
before = set(sys.modules)
from hotloop.probe import step_clock
clock = step_clock.install(here)
train(*build(), 2)
clock.finish()
print(json.dumps(sorted(m for m in set(sys.modules) - before if m.startswith("hotloop"))))
"""
    assert clocked(source) == [
        "hotloop",
        "hotloop.core",
        "hotloop.core.census",
        "hotloop.core.child",
        "hotloop.core.errors",
        "hotloop.core.step",
        "hotloop.core.untrusted",
        "hotloop.hardware",
        "hotloop.hardware.limits",
        "hotloop.probe",
        "hotloop.probe.batch_queue",
        "hotloop.probe.compile_watch",
        "hotloop.probe.entry",
        "hotloop.probe.foreign_process",
        "hotloop.probe.machine",
        "hotloop.probe.phases",
        "hotloop.probe.scaled_loss",
        "hotloop.probe.step_clock",
        "hotloop.probe.step_rule",
    ]
    assert len(records(tmp_path)) == 2


def test_files_of_the_clock_import_nothing_but_torch_and_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "torch", "hotloop"}
    clock = (entry, foreign_process, scaled_loss, step_clock, step_rule)
    for module in (census_module, errors_module, step_module, *clock):
        assert module.__file__
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Import):
                assert {name.name.split(".")[0] for name in node.names} <= allowed
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in allowed


def test_clock_that_also_watches_the_weights_changes_no_loss(clocked: Any, tmp_path: Path) -> None:
    plain = clocked("print(json.dumps(train(*build(), 6)))")
    source = """
from hotloop.probe import step_clock
clock = step_clock.install(here, weights=True)
losses = train(*build(), 6)
clock.finish()
print(json.dumps(losses))
"""
    assert clocked(source) == plain
    seen = read_json(tmp_path / "weights-0.json", WeightUpdates)
    assert [tensor.steps for tensor in seen.tensors] == [(1, 2, 3, 4, 6)] * 4


def test_losses_are_bit_identical_with_and_without_the_clock(clocked: Any, tmp_path: Path) -> None:
    source = """
from hotloop.probe import step_clock
without = train(*build(), 30)
clock = step_clock.install(here)
with_clock = train(*build(), 30)
clock.finish()
print(json.dumps({"without": without, "with": with_clock}))
"""
    losses = clocked(source)
    assert losses["with"] == losses["without"]
    assert [record.loss for record in records(tmp_path)] == losses["without"]
    census = read_json(tmp_path / "census-0.json", Census)
    assert census.clock_read_s is not None
    # Two marks per step: under 0.5 % of a step of 10 ms even on a busy machine.
    assert 0 < 2 * census.clock_read_s < 0.005 * 0.010


def test_compiled_programs_keep_their_graphs_and_are_still_clocked(
    clocked: Any, tmp_path: Path
) -> None:
    source = """
import logging
from torch._dynamo.utils import counters
from hotloop.probe import step_clock
def graphs(clock=None):
    found = {}
    def note(what):
        found[what] = [counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]
        torch._dynamo.reset(); counters.clear()
    torch._dynamo.reset(); counters.clear()
    model, optimizer = build()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        loss_of(compiled).backward(); optimizer.step(); optimizer.zero_grad()
    note("model")
    model, optimizer = build()
    @torch.compile(backend="eager")
    def step():
        loss_of(model).backward(); optimizer.step(); optimizer.zero_grad()
    if clock: clock._rule._step_optimizer = None
    for _ in range(3): step()
    note("whole step")
    return found
without = graphs()
clock = step_clock.install(here)
with_clock = graphs(clock)
clock.finish()
print(json.dumps({"without": without, "with": with_clock}))
"""
    counts = clocked(source)
    assert counts["with"] == counts["without"]
    assert counts["with"]["model"] == [1, 0]
    seen = records(tmp_path)
    assert len(seen) == 6
    assert all(record.loss is not None for record in seen)


def test_accumulated_losses_are_summed_and_a_second_optimizer_falls_inside_the_step(
    clocked: Any, tmp_path: Path
) -> None:
    source = """
from hotloop.probe import step_clock
step_clock.install(here)
first, other = build(0), build(1)
halves = []
for _ in range(3):
    for _ in range(2):
        loss = loss_of(first[0]) / 2
        loss.backward()
        halves.append(loss.item())
    first[1].step()
    other[1].step()
torch.ones(3, requires_grad=True).mul(2).backward(torch.ones(3))  # no scalar, no loss
print(json.dumps(halves))
"""
    halves = clocked(source)
    seen = records(tmp_path)
    assert [r.loss for r in seen] == [sum(halves[at : at + 2]) for at in (0, 2, 4)]  # type: ignore[index]
    assert [record.clock_reads for record in seen] == [3, 4, 4]
    census = read_json(tmp_path / "census-0.json", Census)
    assert "other optimizers updated 3 times" in census.notes[-1]
    assert census.microbatches == 2


def test_only_the_first_process_that_steps_is_clocked_and_forks_of_it_are_not(
    clocked: Any, tmp_path: Path
) -> None:
    source = """
from hotloop.probe import step_clock
clock = step_clock.install(here)
model, optimizer = build()
train(model, optimizer, 2)
child = os.fork()
if not child:
    train(model, optimizer, 5)
    clock.finish()
    os._exit(0)
os.waitpid(child, 0)
late = step_clock.StepClock(here, stop_after=None)  # as another process would have
late.stepped(optimizer)
late.finish()
train(model, optimizer, 1)
print("{}")
"""
    clocked(source)
    assert len(records(tmp_path)) == 3


def test_script_goes_on_when_the_clock_fails(clocked: Any, tmp_path: Path) -> None:
    source = """
from hotloop.probe import step_clock
step_clock.install(here / "missing" / "directory", stop_after=2)
step_clock.install(here, stop_after=2)._records = lambda: 1 / 0
print(json.dumps(train(*build(), 4)))
"""
    assert len(clocked(source)) == 4
    assert "ZeroDivisionError" in (tmp_path / "notes.txt").read_text()


def test_what_is_still_saved_beside_the_last_step_is_in_its_time(
    clocked: Any, tmp_path: Path
) -> None:
    source = """
import time
from hotloop.checkpoint import background_files, save_in_background
from hotloop.probe import step_clock
finish = background_files.FileSave.finish
def slowly(self, **how):
    time.sleep(0.5)
    finish(self, **how)
background_files.FileSave.finish = slowly
save_in_background()
step_clock.install(here, stop_after=2)
model, optimizer = build()
print("{}", flush=True)
train(model, optimizer, 1)
torch.save(torch.ones(1 << 20), "weights.pt")
train(model, optimizer, 1)
"""
    clocked(source)
    assert records(tmp_path)[-1].wall_s >= 0.5


def test_workers_that_are_killed_at_the_end_cannot_keep_it_from_ending(
    clocked: Any, tmp_path: Path
) -> None:
    """torch has the death of a worker raise in the main thread, wherever that is."""
    source = """
import multiprocessing, signal, time
from hotloop.probe import step_clock
def died(*_):
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    if any(os.waitid(os.P_PID, worker.pid, how) for worker in workers):
        print(json.dumps("raised"), flush=True)
        raise RuntimeError("DataLoader worker is killed by signal: Killed.")
class Worker(multiprocessing.Process):
    def kill(self):
        super().kill()
        time.sleep(0.2)  # until its death is known
workers = [Worker(target=time.sleep, args=(60,)) for _ in range(3)]
for worker in workers:
    worker.start()
(here / "workers").write_text(json.dumps([worker.pid for worker in workers]))
signal.signal(signal.SIGCHLD, died)
step_clock.install(here, stop_after=3)
print(json.dumps("steps"), flush=True)
train(*build(), 50)
print(json.dumps("went on"))
"""
    assert clocked(source) == "steps"
    assert len(records(tmp_path)) == 3
    alive = json.loads((tmp_path / "workers").read_text())
    until = time.monotonic() + 120
    while alive and time.monotonic() < until:  # killed, but perhaps not yet gone
        alive = [pid for pid in alive if Path(f"/proc/{pid}").exists()]
    assert not alive


def test_torch_older_than_tested_is_refused_and_says_so(clocked: Any, tmp_path: Path) -> None:
    source = """
from hotloop.probe import foreign_process, step_clock
foreign_process.OLDEST_TORCH = (99, 0)
try:
    step_clock.install(here)
except foreign_process.TorchTooOld as error:
    print(json.dumps(str(error)))
"""
    assert "older than 99.0" in str(clocked(source))


def test_batches_that_workers_have_ready_are_counted_at_each_step(
    clocked: Any, tmp_path: Path
) -> None:
    source = """
import time
from torch.utils.data import DataLoader
from hotloop.probe import step_clock
clock = step_clock.install(here)
model, optimizer = build()
for number, x in enumerate(DataLoader(torch.randn(24, 8), batch_size=2, num_workers=2, prefetch_factor=3)):
    if number == 0:
        end = time.monotonic() + 60
        while clock.queue.ready < 6 and time.monotonic() < end:
            time.sleep(0.05)  # workers fill their queue meanwhile
    loss = model(x).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
clock.finish()
print("0")
"""
    clocked(source)
    found = records(tmp_path)
    assert [each.batches_taken for each in found] == [1] * 12
    assert found[0].batches_ready == 6  # two workers, three each
    assert found[-1].batches_ready == 0
    # Six are asked for at once, of twelve: from the seventh on there is none left to ask for.
    assert [each.batches_to_come for each in found] == [True] * 6 + [False] * 6


def test_steps_of_a_script_without_workers_know_no_queue(clocked: Any, tmp_path: Path) -> None:
    source = """
from hotloop.probe import step_clock
clock = step_clock.install(here)
train(*build(), 2)
clock.finish()
print("0")
"""
    clocked(source)
    assert {(each.batches_taken, each.batches_ready) for each in records(tmp_path)} == {
        (None, None)
    }


@pytest.mark.parametrize(
    ("collate", "gives"),
    [
        ("None", "x.shape[0]"),
        ("lambda items: {'id': 'a', 'x': torch.stack(items, 1)}", "x['x'].shape[1]"),
        ("lambda items: torch.cat(items)[None]", "x.shape[1] // 8"),
        ("lambda items: Graphs()", "4"),
    ],
)
def test_samples_of_a_step_are_those_that_its_loader_gave_while_gradients_were_on(
    collate: str, gives: str, clocked: Any, tmp_path: Path
) -> None:
    source = f"""
from torch.utils.data import DataLoader
from hotloop.probe import step_clock
clock = step_clock.install(here)
clock.queue.count_samples()
model, optimizer = build()
class Graphs: pass
data = torch.randn(12, 8)
with torch.no_grad():
    for x in DataLoader(data, batch_size=3):
        pass
for x in DataLoader(data, batch_size=5, collate_fn={collate}):
    loss = model(torch.randn({gives}, 8)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
loss = model(data).square().mean()
loss.backward(); optimizer.step()
clock.finish()
print("0")
"""
    clocked(source)
    assert [each.samples for each in records(tmp_path)] == [5, 5, 2, None]


@pytest.mark.parametrize("loads", [False, True])
def test_samples_that_hotloops_own_trainer_says_are_counted_where_no_loader_gives_them(
    clocked: Any, tmp_path: Path, loads: bool
) -> None:
    source = f"""
from hotloop.core.child import GIVEN
from hotloop.probe import step_clock
clock = step_clock.install(here)
clock.queue.count_samples()
loader = iter(torch.utils.data.DataLoader(range(30), batch_size=3))
model, optimizer = build()
for samples in (7, 7, 2):
    if {loads}:
        next(loader)
    for told in GIVEN:
        told(samples)
    train(model, optimizer, 1)
clock.finish()
print("0")
"""
    clocked(source)
    assert [each.samples for each in records(tmp_path)] == ([3, 3, 3] if loads else [7, 7, 2])


def test_samples_of_an_epoch_from_which_nothing_is_learned_are_no_work(
    clocked: Any, tmp_path: Path
) -> None:
    clocked("""
from torch.utils.data import DataLoader
from hotloop.probe import step_clock
clock = step_clock.install(here)
clock.queue.count_samples()
model, optimizer = build()
train_loader, valid_loader = (DataLoader(torch.randn(n, 8), batch_size=5) for n in (10, 30))
for _ in range(2):
    for x in train_loader:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    for x in valid_loader:
        with torch.no_grad(): model(x)
clock.finish()
print("0")
""")
    assert [each.samples for each in records(tmp_path)] == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ("(batch for _ in range(2) for batch in iter(loader))", [20, 20, 10]),
        ("(batch for _ in range(2) for batch, _ in zip(loader, shorter))", [24, 24]),
    ],
)
def test_samples_of_a_step_are_all_that_was_fetched_for_it_before_an_epoch_ended(
    batches: str, expected: list[int], clocked: Any, tmp_path: Path
) -> None:
    clocked(f"""
from itertools import islice
from torch.utils.data import DataLoader
from hotloop.probe import step_clock
clock = step_clock.install(here)
clock.queue.count_samples()
model, optimizer = build()
loader, shorter = DataLoader(torch.randn(25, 8), batch_size=5), DataLoader(range(4))
batches = {batches}
while group := list(islice(batches, 4)):
    for x in group:
        model(x).square().mean().backward()
    optimizer.step()
clock.finish()
print("0")
""")
    assert [each.samples for each in records(tmp_path)] == expected


@pytest.mark.parametrize(
    "backward",
    ["scaler.scale(loss).backward()", "for each in halves(loss): each.backward(retain_graph=True)"],
)
def test_a_loss_that_a_gradient_scaler_multiplies_is_the_scripts_own(
    backward: str, clocked: Any, tmp_path: Path
) -> None:
    losses = clocked(f"""
from hotloop.probe import step_clock
clock = step_clock.install(here)
model, optimizer = build()
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
losses = []
def halves(loss): return [scaler.scale(loss / 2) for _ in range(2)]
for _ in range(8):
    optimizer.zero_grad()
    loss = loss_of(model)
    {backward}
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
clock.finish()
print(json.dumps(losses))
""")
    assert [record.loss for record in records(tmp_path)] == losses


def test_ranks_that_write_the_same_file_at_once_do_not_take_each_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace = tmp_path / "imports.json", os.replace

    def meanwhile(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        foreign_process.replace_json(path, {"by": "another"})
        replace(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    foreign_process.replace_json(path, {"by": "this one"})
    assert json.loads(path.read_text()) == {"by": "this one"}
    assert [*tmp_path.iterdir()] == [path]
