"""Memory of a process and what it started, on Linux."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hotloop

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
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    before, after = (int(each) / (MEGABYTES << 20) for each in done.stdout.split())
    assert 1.0 < before < 1.5
    assert after - before == pytest.approx(1.0 if writes == "writes" else 0.0, abs=0.2)
