"""Kill `hotloop train` at every system call around a checkpoint, run the same command again, and compare with a whole run.

    python benchmarks/checkpoint_faults/kill_at_calls.py [--windows save ...] [--every 1] [--times 1] [--json FILE]

Each window of a small training is traced once by strace. Then, for each of its calls, a run of its own is killed
(SIGKILL) as it enters that call (the call is not made), `--times` times in a row, and ended by the same command. Right is: it
continues from the newest checkpoint that verifies, no more than one interval is lost, the end has the same bytes and losses as a run that nobody killed, and no file stays that nobody reads.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
from forked import BESIDE, EVERY, STEPS, Fork, Strace


@dataclass(frozen=True)
class Window:
    """The calls of one thread between two stops."""

    begins: str
    ends: str
    settings: tuple[str, ...] = ()
    most_lost: int = EVERY
    damaged: bool = False
    """It begins in a directory whose newest checkpoint is damaged, beside one that was not finished."""


WINDOWS = {
    "start": Window("start", "update 1", most_lost=0),
    "first save": Window(f"update {EVERY}", f"update {EVERY + 1}"),
    "save": Window(f"update {3 * EVERY}", f"update {3 * EVERY + 1}"),
    "last save": Window(f"update {STEPS}", "end"),
    "first save beside": Window(f"save {EVERY // 2}", f"saved {EVERY // 2}", BESIDE),
    "save beside": Window(f"save {3 * EVERY}", f"saved {3 * EVERY}", BESIDE),
    "continuing": Window("start", f"update {2 * EVERY + 1}", (), 2 * EVERY, damaged=True),
}


def damage(run: Path) -> None:
    """The newest checkpoint gets a wrong bit, and another beside it has no manifest."""
    newest = max((run / "checkpoints").glob("step-*"))
    shutil.copytree(newest, newest.with_name(f"{newest.name[:14]}deadbeef"))
    (newest.with_name(f"{newest.name[:14]}deadbeef") / "manifest.json").unlink()
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-5] ^= 4
    (newest / "model.safetensors").write_bytes(content)


class Cases:
    """The runs of one window."""

    def __init__(self, window: Window, work: Path, config: Path) -> None:
        self.window, self.work = window, work
        self.run, self.said = work / "run", work / "said"
        self.command = forked.hotloop_train(config, self.run, *window.settings)
        self.reference = work / "whole"
        ended = forked.ran(
            forked.hotloop_train(config, self.reference, *window.settings), self.said
        )
        assert ended.code == 0, ended.said
        if window.damaged:
            killed = Fork(self.command, self.said, stops=[f"update {3 * EVERY + 3}"])
            killed.next_stop()
            killed.kill()
            killed.ended()
            damage(self.run)
            self.run.rename(work / "before")

    def fresh(self) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        if self.window.damaged:
            shutil.copytree(self.work / "before", self.run)

    def traced(self, inject: str | None = None) -> tuple[forked.Ended, list[forked.Call]]:
        """Run the command with its window traced; to its end where nothing ends it before."""
        stops = [self.window.begins] if inject else [self.window.begins, self.window.ends]
        self.said.unlink(missing_ok=True)
        fork = Fork(self.command, self.said, stops=stops, seed=0 if self.window.damaged else forked.SEED)  # fmt: skip
        stop = fork.next_stop()
        log = self.work / "calls"
        log.unlink(missing_ok=True)
        if stop is None:
            return fork.ended(), []
        strace = Strace(stop[1], log, inject=inject)
        fork.go_on()
        if not inject:
            assert fork.next_stop() is not None
            strace.end()
            fork.go_on()
            calls = [call for call in forked.read_calls(log) if str(self.run) in call.text]
            return fork.ended(), calls
        ended = fork.ended()
        strace.end()
        return ended, forked.read_calls(log)

    def killed(self, call: forked.Call, times: int) -> dict[str, Any]:
        self.fresh()
        places = []
        for _ in range(times):
            ended, calls = self.traced(f"{call.name}:signal=KILL:when={call.number}")
            if ended.code == -9:
                places.append(calls[-1].place)
        verdict = forked.judged(
            self.run, self.command, self.said, self.reference, most_lost=self.window.most_lost
        )
        problems = verdict.problems
        if len(places) < times and times == 1:
            problems += ("it was not killed",)
        return {
            "call": call.place,
            "killed_at": places,
            "continued_from": verdict.continued_from,
            "lost": verdict.lost,
            "orphans": verdict.orphans,
            "problems": problems,
        }


def examined(
    name: str, work: Path, config: Path, *, every: int = 1, times: int = 1
) -> dict[str, Any]:
    """Kill at each call of a window, or each `every`th."""
    cases = Cases(WINDOWS[name], work, config)
    cases.fresh()
    ended, calls = cases.traced()
    assert ended.code == 0, ended.said
    found = []
    for number, call in enumerate(calls[::every], 1):
        found.append(cases.killed(call, times))
        if sys.stderr.isatty():
            print(f"\r{name}: {number} of {len(calls[::every])}", end="", file=sys.stderr)
    return {
        "calls": len(calls),
        "kills": sum(len(case["killed_at"]) for case in found),
        "points": len(found),
        "recovered": sum(not case["problems"] for case in found),
        "lost_most": max(case["lost"] for case in found),
        "with_orphans": sum(bool(case["orphans"]) for case in found),
        "failed": [case for case in found if case["problems"] or case["orphans"]],
        "points_killed_at": [case["killed_at"][:1] for case in found],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", nargs="+", choices=WINDOWS, default=list(WINDOWS))
    parser.add_argument("--every", type=int, default=1, help="only each nth call")
    parser.add_argument("--times", type=int, default=1, help="kills in a row at the same call")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if (reason := forked.strace_works()) is not None:
        raise SystemExit(f"error: {reason}")
    begun = time.monotonic()
    windows = {}
    with forked.workplace() as work:
        config = forked.write_training(work)
        for name in given.windows:
            place = work / name.replace(" ", "-")
            place.mkdir()
            windows[name] = each = examined(
                name, place, config, every=given.every, times=given.times
            )
            print(
                f"{name:18} {each['recovered']:4} of {each['points']:4} calls recovered, at most {each['lost_most']} "
                f"steps lost, {each['with_orphans']} left a file behind",
                flush=True,
            )
    total = {key: sum(each[key] for each in windows.values()) for key in ("points", "kills", "recovered", "with_orphans")}  # fmt: skip
    forked.store_result({**total, "interval": EVERY, "windows": windows}, given.json, begun)
    print(f"{total['recovered']} of {total['points']} recovered")
    return int(total["recovered"] < total["points"] or total["with_orphans"] > 0)


if __name__ == "__main__":
    sys.exit(main())
