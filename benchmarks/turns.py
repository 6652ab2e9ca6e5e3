"""Two training processes that take turns, a step each: the finest interleaving there is.

On a shared machine speed drifts by several percent within a minute, which pairs of whole processes
cannot cancel. Here both processes of a pair are alive; each waits at the end of its step until the
other has done one. Only the seconds between being let go and the end of the step are counted, with the
same clock and the same hook in both: the end of `optimizer.step()`.

The waiting process holds its memory but computes nothing. What this cannot show is what one process
costs the next through the caches: both start every step with the other's data in them.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotloop.core.progress import Progress
from hotloop.trial.arm import RUN_PLACEHOLDER, Arm

TURN_IN, TURN_OUT = "HOTLOOP_TURN_IN", "HOTLOOP_TURN_OUT"


class TurnTaker:
    """A process that runs `command` (a script, or `-m module`) and makes steps when told to."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        theirs, self._let_go = os.pipe()
        self._heard, theirs_too = os.pipe()
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, __file__, *command],
            env={**os.environ, **env, TURN_IN: str(theirs), TURN_OUT: str(theirs_too)},
            pass_fds=(theirs, theirs_too),
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs)
        os.close(theirs_too)
        self._lines = os.fdopen(self._heard, "r")
        self.digest: str | None = None
        self._hear()

    def step(self) -> float:
        """Let it make one step; its seconds."""
        os.write(self._let_go, b"x")
        return self._hear()

    def _hear(self) -> float:
        line = self._lines.readline()
        if not line:
            self.process.wait()
            raise SystemExit(f"a process ended early: see {self._log.name}")
        told = json.loads(line)
        self.digest = told["digest"]
        return float(told["seconds"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._lines.close()
        os.close(self._let_go)
        self._log.close()


def pair_log_ratio(
    commands: Sequence[Sequence[str]],
    env: Mapping[str, str],
    directory: Path,
    *,
    warmup: int,
    steps: int,
    rng: random.Random,
) -> tuple[float, tuple[str | None, str | None], tuple[float, float]]:
    """Log of seconds(first) / seconds(second) for one pair of fresh processes, over turns.

    Also digests of both models' weights after the last step, and the median seconds of each.
    """
    directory.mkdir(parents=True, exist_ok=True)
    order = [0, 1]
    rng.shuffle(order)
    takers: dict[int, TurnTaker] = {}
    try:
        for arm in order:
            takers[arm] = TurnTaker(commands[arm], env, directory / f"arm-{arm}.log")
        seconds: dict[int, list[float]] = {0: [], 1: []}
        for turn in range(warmup + steps):
            for arm in order if turn % 2 else order[::-1]:
                took = takers[arm].step()
                if turn >= warmup:
                    seconds[arm].append(took)
    finally:
        for taker in takers.values():
            taker.end()
    logs = [math.log(a / b) for a, b in zip(seconds[0], seconds[1], strict=True)]
    medians = (statistics.median(seconds[0]), statistics.median(seconds[1]))
    return statistics.median(logs), (takers[0].digest, takers[1].digest), medians


def log_ratios(
    first: Arm,
    second: Arm,
    pairs: int,
    *,
    directory: Path,
    warmup: int,
    steps: int,
    rng: random.Random,
    progress: Progress,
    same_weights: bool = False,
) -> list[float]:
    """Log of the second arm's speed over the first's, one per pair of fresh processes.

    same_weights: end the program when both have not learned the same to the last bit.
    """
    what = f"{first.name}-{second.name}"
    logs = []
    for number in range(pairs):
        progress(what, number, pairs, "")
        where = directory / f"{what}-{number}-{rng.randrange(1 << 32):08x}"
        commands = [_in_turns(first, where / "run-0"), _in_turns(second, where / "run-1")]
        log, digests, medians = pair_log_ratio(
            commands, first.env | second.env, where, warmup=warmup, steps=steps, rng=rng
        )
        if same_weights and digests[0] != digests[1]:
            raise SystemExit(f"{what}: the weights differ after {steps} steps")
        print(f"{what} {number + 1}: {math.exp(log):.4f}, medians {medians}", flush=True)
        logs.append(log)
    progress(what, pairs, pairs, "")
    return logs


def _in_turns(arm: Arm, run: Path) -> Sequence[str]:
    """Its command without the interpreter: it runs in this file's own."""
    return [word.replace(RUN_PLACEHOLDER, str(run)) for word in arm.command[1:]]


def _child(argv: list[str]) -> None:
    import hashlib
    import runpy
    import time

    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    turn_in, turn_out = int(os.environ[TURN_IN]), int(os.environ[TURN_OUT])
    began = time.perf_counter()

    def after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        nonlocal began
        took = time.perf_counter() - began
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        each = sorted(hashlib.sha256(w.detach().numpy().tobytes()).hexdigest() for w in weights)
        digest = hashlib.sha256("".join(each).encode()).hexdigest()
        os.write(turn_out, (json.dumps({"seconds": took, "digest": digest}) + "\n").encode())
        if not os.read(turn_in, 1):
            os._exit(0)
        began = time.perf_counter()

    register_optimizer_step_post_hook(after_step)
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path[0] = str(Path(argv[0]).parent)
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    _child(sys.argv[1:])
