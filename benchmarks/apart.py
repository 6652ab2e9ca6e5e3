"""Two copies of a training command, as it was and as patched, timed apart from everything the doctor does.

Each is started by itself, in turns, and writes down when its optimizers' steps ended: no clock, hook or file
of hotloop's. Counted is the last part of the same number of steps in both, so that what is prepared ahead
has settled.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

PAIRS = 3
MOST_PAIRS = 12
KNOWN = 1.07
"""Pairs go on until the interval reaches no further from the ratio than this factor. How wide it is says nothing of
where it lies, so that stopping there favours no ratio."""
FIRST_S = 15.0
"""The command as it was sets the number of steps: what it makes in this time,"""
FEWEST_STEPS = 60
"""or this many where that takes longer, or what it makes at all."""
MOST_STEPS = 10_000
LAST_PART = 2 / 3
TIMEOUT_S = 900
STAMPS, STEPS, SECONDS = "APART_STAMPS", "APART_STEPS", "APART_SECONDS"

STARTER = f"""
import atexit, json, os, runpy, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
path, steps, seconds = os.environ.pop({STAMPS!r}), int(os.environ[{STEPS!r}]), float(os.environ[{SECONDS!r}])
process, stamps = os.getpid(), []
def write():
    if os.getpid() == process:
        with open(path, "w") as file:
            json.dump(stamps, file)
def stepped(*_):
    if os.getpid() != process:
        return
    stamps.append(time.monotonic())
    if len(stamps) >= steps or (len(stamps) >= {FEWEST_STEPS} and stamps[-1] - stamps[0] > seconds):
        write()
        sys.stdout.flush()
        os._exit(0)
register_optimizer_step_post_hook(stepped)
atexit.register(write)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Apart:
    """Seconds of a step of both, pair by pair."""

    as_it_was_s: tuple[float, ...]
    patched_s: tuple[float, ...]
    steps: tuple[int, int]
    """That were counted, of each process of both."""

    def ratio(self) -> tuple[float, float, float]:
        """How many times faster the patched one is, and its 95 % interval (t over the pairs' logarithms)."""
        logs = [math.log(a / b) for a, b in zip(self.as_it_was_s, self.patched_s, strict=True)]
        mean = statistics.fmean(logs)
        half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / len(logs) ** 0.5
        return math.exp(mean), math.exp(mean - half), math.exp(mean + half)

    def is_known(self) -> bool:
        ratio, low, _ = self.ratio()
        return ratio / low <= KNOWN


@dataclass(frozen=True, eq=False)
class Copy:
    """Where a command is started, in which environment, and what it comes in."""

    workdir: Path
    env: Mapping[str, str]
    workers: int
    """Of its loader: as many batches come at once, so that only whole rounds of them are counted."""


def timed_apart(
    as_it_was: Copy, patched: Copy, arguments: Sequence[str], *, window: tuple[int, int] | None
) -> Apart:
    """Time `python ARGUMENTS` in both copies.

    window: (steps before, steps counted); `None`: the last part of what the command as it was makes in `FIRST_S`.
    Raises RuntimeError where one of them fails or makes too few steps.
    """
    if window is None:
        made = len(_run(as_it_was, arguments, steps=MOST_STEPS, seconds=FIRST_S))
        counted = round(LAST_PART * made)
    else:
        made, counted = sum(window), window[1]
    seconds: dict[Copy, list[float]] = {as_it_was: [], patched: []}
    for number in range(MOST_PAIRS):
        for copy in (as_it_was, patched) if number % 2 else (patched, as_it_was):
            stamps = _run(copy, arguments, steps=made, seconds=math.inf)
            whole = _whole_rounds(counted, copy)
            seconds[copy].append((stamps[-1] - stamps[-1 - whole]) / whole)
        counts = (_whole_rounds(counted, as_it_was), _whole_rounds(counted, patched))
        found = Apart(tuple(seconds[as_it_was]), tuple(seconds[patched]), counts)
        if number + 1 >= PAIRS and found.is_known():
            break
    return found


def _whole_rounds(steps: int, copy: Copy) -> int:
    """So many batches come at once, or nearly."""
    each = max(copy.workers, 1)
    return max(steps // each, 1) * each


def _run(copy: Copy, arguments: Sequence[str], *, steps: int, seconds: float) -> list[float]:
    """When each of its steps ended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stamps.json"
        asked = {STAMPS: str(path), STEPS: str(steps), SECONDS: str(seconds)}
        done = subprocess.run(
            [sys.executable, "-c", STARTER, *arguments],
            cwd=copy.workdir,
            env={**copy.env, **asked},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode or not path.is_file():
            raise RuntimeError(
                f"{copy.workdir}: ended with {done.returncode}: {done.stderr.strip()[-500:]}"
            )
        stamps = json.loads(path.read_text(encoding="utf-8"))
    if len(stamps) < 20 or (math.isinf(seconds) and len(stamps) != steps):
        raise RuntimeError(f"{copy.workdir}: made {len(stamps)} steps")
    return [float(each) for each in stamps]
