"""Memory of a process and what it started, on Linux."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hotloop
from hotloop.core.memory_use import read_memory_notes
from hotloop.judge.memory import REST, profile_of
from hotloop.probe import memory_watch
from hotloop.probe.memory_watch import MemoryWatch

SOURCE = str(Path(hotloop.__file__).parents[1])
MEGABYTES = 200
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from hotloop.probe.machine import tree_bytes
MEGABYTES, writes = int(sys.argv[2]), sys.argv[3] == "writes"
held = bytearray(b"x") * (MEGABYTES << 20)
before = tree_bytes()
ready, go_on = os.pipe(), os.pipe()
if os.fork() == 0:
    if os.fork() == 0:  # below the child
        if writes:
            held[::4096] = b"y" * len(held[::4096])
        os.write(ready[1], b".")
        os.read(go_on[0], 1)
        os._exit(0)
    os.wait()
    os._exit(0)
os.read(ready[0], 1)
print(before, tree_bytes())
os.write(go_on[1], b".")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("writes", ["reads", "writes"])
def test_what_a_fork_shares_is_counted_once_and_what_it_writes_is_its_own(writes: str) -> None:
    command = [sys.executable, "-c", PROGRAM, SOURCE, str(MEGABYTES), writes]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    before, after = (int(each) / (MEGABYTES << 20) for each in done.stdout.split())
    assert 1.0 < before < 1.5
    assert after - before == pytest.approx(1.0 if writes == "writes" else 0.0, abs=0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_was_freed_before_the_training_is_no_activation(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(f"""
held = bytearray(b"x") * ({MEGABYTES} << 20)
del held
model, optimizer = build()
for _ in range(30):
    train(model, optimizer, 1)
    time.sleep(0.02)
""")
    (note,) = read_memory_notes(ended.directory)
    profile = profile_of(note)
    assert profile is not None
    assert profile.parts["freed"] > 0.8 * (MEGABYTES << 20)
    assert profile.parts[REST] < 0.5 * (MEGABYTES << 20)
    assert sum(profile.parts.values()) == note.peak_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_loaders_worker_takes_what_it_does_not_share(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(f"""
import glob
held = torch.ones({MEGABYTES} << 18)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 80
    def __getitem__(self, number): return held[8 * number : 8 * number + 8]
loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, persistent_workers=True)
model, optimizer = build()
def is_seen():
    notes = map(open, glob.glob(os.environ["HOTLOOP_DOCTOR"] + "/memory-*.json"))
    return any(json.load(note)["workers_bytes"] for note in notes)
while not is_seen():
    for x in loader:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    time.sleep(0.05)
""")
    (note,) = read_memory_notes(ended.directory)
    assert 0 < note.workers_bytes < MEGABYTES << 20


def test_processes_below_are_looked_at_however_rarely_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_watch, "children_of", lambda process: ["1", "2"])
    monkeypatch.setattr(memory_watch, "private_bytes", lambda process: 1 << 30)
    watch = MemoryWatch(tmp_path)
    watch.written_every = 50
    watch.begin()
    watch._below, watch._written = 1, 1 << 40
    for _ in range(10):
        assert watch._below == 1
        watch._turn()
    assert watch._below == 2 << 30
