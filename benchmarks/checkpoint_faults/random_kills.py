"""Kill trainings at random moments until they end by the same command, and compare with a training that nobody killed.

    python benchmarks/checkpoint_faults/random_kills.py [--short 300] [--kinds plain ...] [--kills 20] [--json FILE]

`--short` runs are killed (SIGKILL) once each, at a moment drawn from their whole length, half of them with saves beside
the steps. Of each kind one longer run is killed `--kills` times, each time a few steps after it continued or within a save:
every try makes a few steps, so it also passes several saves. Right is what is right in `kill_at_calls.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forked
from forked import BESIDE, EVERY, SEED, Fork
from torch import distributed as dist

from hotloop.cli.main import run as hotloop

LONG = ("train.steps=80", f"checkpoint.every_steps={EVERY - 1}", "eval.every_steps=10")
PAST = 5
"""Steps that a run may come further than those it is to be killed after: it waits there for a kill that comes late."""
KINDS: dict[str, tuple[str, ...]] = {
    "data.prefetch 0": ("data.prefetch=0",),
    "data.prefetch 2": ("data.prefetch=2",),
    "background": BESIDE,
    "accumulation": ("train.grad_accum_steps=2", "train.microbatch=2"),
    "bf16": ("train.precision=bf16",),
    "two ranks": ("train.grad_accum_steps=2", "train.microbatch=2"),
    "compiled": ("train.compile=true",),
}


class TwoRanks:
    """`hotloop train` in two forks that torchrun's environment binds together."""

    def __init__(self, arguments: Sequence[str], said: Path) -> None:
        told, tell = os.pipe()
        self._said = said
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
                ranks = [_rank(rank, port, arguments, said) for rank in range(2)]
                os.write(tell, f"{ranks[0]} {ranks[1]}\n".encode())
                store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())  # fmt: skip
            codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
            del store
            os._exit(next((abs(code) for code in codes if code), 0))
        os.close(tell)
        with os.fdopen(told) as file:
            self.ranks = [int(each) for each in file.readline().split()]

    def kill(self, draw: random.Random) -> None:
        for rank in draw.choice((self.ranks[:1], self.ranks[1:], self.ranks)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)

    def ended(self) -> forked.Ended:
        _, status = os.waitpid(self.pid, 0)
        return forked.Ended(os.waitstatus_to_exitcode(status), self._said.read_text(errors="replace"))  # fmt: skip


def _rank(rank: int, port: int, arguments: Sequence[str], said: Path) -> int:
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")  # fmt: skip
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = int(hotloop(arguments))
        sys.stdout.flush()
    finally:
        os._exit(code)


def end_of(command: Sequence[str], said: Path, two: bool, seed: int = SEED) -> forked.Ended:
    said.unlink(missing_ok=True)
    return TwoRanks(command, said).ended() if two else Fork(command, said, seed=seed).ended()


def killed_often(kind: str, kills: int, work: Path, config: Path, seed: int) -> dict[str, Any]:
    """One run, killed until it has been `kills` times."""
    draw, two = random.Random(seed), kind == "two ranks"
    work.mkdir()
    run, whole, said = work / "run", work / "whole", work / "said"
    settings = (*LONG, *KINDS[kind])
    begun = end_of(forked.hotloop_train(config, whole, *settings), said, two)
    assert begun.code == 0, begun.said
    command = forked.hotloop_train(config, run, *settings)
    done, most, problems = 0, 0, list[str]()
    interval = (EVERY - 1) * (2 if "background=true" in str(settings) else 1)
    while done < kills:
        said.unlink(missing_ok=True)
        first = forked.newest_good(run)[0]
        # A run of 80 steps has room for so many kills where each lets 3 steps be saved.
        goal = min(first + draw.randint(EVERY - 1, 2 * EVERY - 3), 79)
        stops = [f"update {goal + PAST}"]
        process = TwoRanks(command, said) if two else Fork(command, said, stops=stops, seed=0 if first else SEED)  # fmt: skip
        deadline = time.monotonic() + 120
        while len(forked.records(run)) < goal or not _continued(run, first, said):
            if time.monotonic() > deadline or _is_over(process.pid):
                break
            time.sleep(0.002)
        time.sleep(draw.choice((0.0, draw.uniform(0, 0.02))))
        process.kill(draw) if isinstance(process, TwoRanks) else process.kill()
        ended = process.ended()
        if ended.code == 0:
            break  # it came to its end before
        done += 1
        good = forked.newest_good(run)[0]
        most = max(most, len(forked.records(run)) - good)
        if good < first:
            problems.append(f"step {first} had been saved, and {good} is left")
    good = forked.newest_good(run)[0]
    ended = end_of(command, said, two, seed=0 if good else SEED)
    if ended.code:
        problems.append(f"exit code {ended.code}: {ended.said[-400:]}")
    if forked.newest_good(run) != forked.newest_good(whole):
        problems.append("other bytes at the end")
    if [r["loss"] for r in forked.records(run)] != [r["loss"] for r in forked.records(whole)]:
        problems.append("other losses")
    if most > interval + 1:
        problems.append(f"{most} steps lost")
    return {"kills": done, "lost_most": most, "interval": EVERY - 1, "bit_equal": not problems, "problems": problems}  # fmt: skip


def _continued(run: Path, first: int, said: Path) -> bool:
    """The records are of the process that runs now: it has cut off those that are made again."""
    return not first or any("resumed" in r.get("tags", ()) and r["step"] == first for r in forked.records(run))  # fmt: skip


def _is_over(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def short_runs(count: int, work: Path, config: Path, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    work.mkdir()
    said, failed, hit, most = work / "said", [], 0, 0
    wholes = {}
    for number, settings in enumerate(((), BESIDE)):
        wholes[settings] = whole = work / f"whole-{number}"
        begun = time.monotonic()
        assert forked.ran(forked.hotloop_train(config, whole, *settings), said).code == 0
    takes = time.monotonic() - begun
    for number in range(count):
        settings = draw.choice(((), BESIDE))
        run = work / f"run-{number}"
        command = forked.hotloop_train(config, run, *settings)
        said.unlink(missing_ok=True)
        fork = Fork(command, said)
        time.sleep(draw.uniform(0, takes))
        fork.kill()
        hit += fork.ended().code == -signal.SIGKILL
        verdict = forked.judged(run, command, said, wholes[settings], most_lost=EVERY * (2 if settings else 1))  # fmt: skip
        most = max(most, verdict.lost)
        if verdict.problems or verdict.orphans:
            failed.append({"run": number, "problems": verdict.problems, "left": verdict.orphans})
        shutil.rmtree(run, ignore_errors=True)
    return {"runs": count, "killed_before_their_end": hit, "reached_the_end": count - len(failed), "lost_most": most, "failed": failed}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", type=int, default=300)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    begun, result, right = time.monotonic(), dict[str, Any](), True
    with forked.workplace() as work:
        config = forked.write_training(work)
        if given.short:
            result["short"] = short = short_runs(given.short, work / "short", config, given.seed)
            right &= not short["failed"]
            print(f"short runs: {short['reached_the_end']} of {short['runs']} reached the end, {short['killed_before_their_end']} had been killed", flush=True)  # fmt: skip
        for kind in given.kinds:
            result[kind] = each = killed_often(kind, given.kills, work / kind.replace(" ", "-"), config, given.seed)  # fmt: skip
            right &= each["bit_equal"]
            print(f"{kind}: {each['kills']} kills, at most {each['lost_most']} steps lost, {'bit-equal' if each['bit_equal'] else each['problems']}", flush=True)  # fmt: skip
    forked.store_result(result, given.json, begun)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
