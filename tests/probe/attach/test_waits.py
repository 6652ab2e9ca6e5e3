"""What feeds the loop is input, whether a thread, a process or an iterator of the script's own makes it."""

from __future__ import annotations

from statistics import median

import pytest

LOOP = """
import threading
room = threading.Semaphore(2)  # for what has no bound: a slow first step would be followed by many without a wait
def fit(batches):
    model, optimizer = build()
    for x in batches() if callable(batches) else batches:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
        room.release()
"""
MAKE = """
def make(number=0):
    time.sleep(0.015)
    return torch.ones(4, 8)
"""
WAITS = {
    "a queue": """
import queue, threading
q = queue.Queue(2)
def fill():
    for _ in range(40): q.put(make())
    q.put(None)
threading.Thread(target=fill, daemon=True).start()
fit(iter(q.get, None))
""",
    "a simple queue": """
from queue import SimpleQueue
q = SimpleQueue()
def fill():
    for _ in range(40):
        room.acquire()
        q.put(make())
    q.put(None)
threading.Thread(target=fill, daemon=True).start()
fit(iter(q.get, None))
""",
    "futures": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    fit(pool.submit(make).result() for _ in range(40))
""",
    "another process": """
import multiprocessing
def fill(q):
    for _ in range(40): make(); q.put({"x": [1.0] * 8, "bytes": b"." * 4096})
if __name__ == "__main__":
    q = multiprocessing.get_context("fork").Queue(2)
    child = multiprocessing.get_context("fork").Process(target=fill, args=(q,)); child.start()
    fit(torch.tensor([q.get()["x"]]) for _ in range(40))
""",
    "a pool": """
import multiprocessing
def numbers():
    for number in range(40):
        room.acquire()
        yield number
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool: fit(lambda: pool.imap(make, numbers()))
""",
}


@pytest.mark.parametrize("by", WAITS)
def test_waiting_for_another_thread_or_process_is_waiting_for_data(run, by: str) -> None:  # type: ignore[no-untyped-def]
    ended = run(LOOP + MAKE + WAITS[by])
    assert len(ended.steps) == 40
    # Of the step in the middle: one in which the machine stood still would outweigh all others.
    waited = median(record.host.get("data_wait", 0.0) for record in ended.counted)
    between = median(record.host["unattributed"] for record in ended.counted)
    assert waited > 2 * between


def test_a_simple_queue_is_what_it_was(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import queue, weakref
from queue import SimpleQueue
q = SimpleQueue()
assert type(q) is SimpleQueue is queue.SimpleQueue
assert repr(SimpleQueue) == "<class '_queue.SimpleQueue'>" and not hasattr(q, "__dict__")
assert weakref.ref(q)() is q
q.put(1); q.put(2); q.put_nowait(3)
assert (q.get(), q.get(False), q.get(timeout=1), q.qsize()) == (1, 2, 3, 0)
for ask in (q.get_nowait, lambda: q.get(block=False), lambda: q.get(True, 0.01)):
    try: ask()
    except queue.Empty: continue
    raise AssertionError("something came of nothing")
model, optimizer = build()
train(model, optimizer, 5)
""")
    assert len(ended.steps) == 5


def test_waiting_for_what_is_no_data_is_not(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
from concurrent.futures import ThreadPoolExecutor
model, optimizer = build()
with ThreadPoolExecutor(1) as pool:
    for _ in range(40):
        train(model, optimizer, 1)
        pool.submit(time.sleep, 0.01).result()
""")
    assert sum(record.host.get("data_wait", 0.0) for record in ended.counted) < 1e-6
    assert sum(record.host["unattributed"] for record in ended.counted) > 0.2
    waits = sum(line.fraction for line in ended.census.lines if line.phase == "data_wait")
    # Nearly all samples are taken in such a wait; one that is late, as it ends, may keep its phase.
    assert waits < 0.5


FEEDS = {
    "an iterator": """
class Pipe:
    def __init__(self): self.left = 60
    def __iter__(self): return self
    def __next__(self):
        if not self.left: raise StopIteration
        self.left -= 1
        return make()
fit(Pipe())
""",
    "a generator": """
def pipe():
    for _ in range(60):
        yield make()
fit(pipe())
""",
    "items": """
class Items:
    def __len__(self): return 60
    def __getitem__(self, index):
        if index >= 60: raise IndexError
        return make()
fit(Items())
""",
}


@pytest.mark.at_once(1)
@pytest.mark.parametrize("by", FEEDS)
def test_what_the_script_iterates_over_feeds_it(run, by: str) -> None:  # type: ignore[no-untyped-def]
    ended = run(LOOP + MAKE + FEEDS[by])
    seen = [line for line in ended.census.lines if line.phase == "unattributed"]
    # Of the time between the phases: how long these take, beside other programs, is another question.
    assert sum(line.fraction for line in seen if line.feeds) > 0.5 * sum(
        each.fraction for each in seen
    )
    assert {line.function for line in seen if line.feeds} >= {"make"}


def test_a_context_manager_and_a_training_that_yields_feed_nothing(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import contextlib
@contextlib.contextmanager
def timed():
    time.sleep(0.008)
    yield
def training():
    model, optimizer = build()
    for _ in range(60):
        with timed(): yield train(model, optimizer, 1)
        time.sleep(0.008)
for loss in training(): pass
""")
    seen = [line for line in ended.census.lines if line.phase == "unattributed"]
    assert {line.function for line in seen} >= {"timed", "training"}
    assert not any(line.feeds for line in seen)


LIBRARY = """
os.makedirs("site-packages/fastai")
open("site-packages/fastai/__init__.py", "w").close()
with open("site-packages/fastai/optimizer.py", "w") as file:
    file.write(\"\"\"
import time, torch
class Optimizer:
    def __init__(self, params): self.param_groups = [{"params": list(params)}]
    def step(self, closure=None):
        time.sleep(0.01)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]: p.sub_(p.grad, alpha=0.01)
\"\"\")
sys.path.insert(0, os.path.abspath("site-packages"))
from fastai.optimizer import Optimizer
model, _ = build()
optimizer = Optimizer(model.parameters())
for step in range(40):
    for _ in range(2): loss_of(model).backward()
    optimizer.step(); model.zero_grad()
"""


def test_an_optimizer_of_a_library_makes_steps_and_its_update_is_one(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(LIBRARY)
    assert len(ended.steps) == 40
    assert ended.clock["boundary"] == "optimizer"
    assert ended.census.optimizer == "fastai.optimizer.Optimizer"
    assert ended.census.microbatches == 2.0
    assert all(record.host["optimizer"] > 0.009 for record in ended.steps)
