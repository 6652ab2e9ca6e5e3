"""A disk that refuses in the middle of a save: how training ends, what is left, and how it continues.

    python benchmarks/checkpoint_faults/disk_faults.py [--every 1] [--json FILE]

errors: at each system call of a save strace answers for the disk: full (ENOSPC, also from then on), read-only (EROFS, from
then on), broken (EIO). full: a real file system in memory with room for a part of the checkpoint. read_only: the directory of
checkpoints is mounted anew without the right to write. Right is that the command ends with exit code 4 and one
error, without a traceback, or goes on to its right end; that each older checkpoint still verifies; and that the same command
with a well disk ends with the same bytes as a run that nothing befell. The mounts need root.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
from forked import BESIDE, EVERY, Fork
from kill_at_calls import WINDOWS, Cases

SPACE = {"write", "ftruncate", "openat", "mkdir", "rename", "renameat"}
"""What asks for room."""


def _save(settings: tuple[str, ...]) -> str:
    """Where the disk changes: beside the steps once the save before has ended."""
    return f"{'save' if settings else 'update'} {3 * EVERY}"


def errors_of(call: forked.Call) -> list[str]:
    """The injections for a call."""
    creates = call.name != "openat" or "O_CREAT" in call.text or "O_WRONLY" in call.text
    name, number = call.name, call.number
    found = [f"{name}:error=EIO:when={number}"]
    if name in SPACE and creates:
        # Not all writes from then on: those to the terminal would fail as well.
        found += [f"{name}:error=ENOSPC:when={number}{'' if name == 'write' else '+'}"]
    if creates and name not in ("write", "ftruncate", "fsync", "flock"):
        found += [f"{name}:error=EROFS:when={number}+"]
    return found


def judged(cases: Cases, ended: forked.Ended, before: int) -> tuple[str, list[str]]:
    """How it ended, and what is wrong with that."""
    problems = []
    errors = [line for line in ended.said.splitlines() if line.startswith("error:")]
    if ended.code not in (0, 4):
        problems.append(f"exit code {ended.code}: {ended.said[-600:]}")
    elif ended.code == 4 and len(errors) != 1:
        problems.append(f"{len(errors)} errors: {ended.said[-600:]}")
    if "Traceback" in ended.said:
        problems.append(f"a traceback: {ended.said[-3000:]}")
    if (left := forked.newest_good(cases.run)[0]) < before:
        problems.append(f"step {before} had been saved, and {left} is left")
    verdict = forked.judged(
        cases.run, cases.command, cases.said, cases.reference, most_lost=cases.window.most_lost
    )
    orphans = [f"left behind: {each}" for each in verdict.orphans]
    return ("goes on" if ended.code == 0 else "ends"), [*problems, *verdict.problems, *orphans]


def injected(name: str, work: Path, config: Path, every: int) -> list[dict[str, Any]]:
    """Every error at every call of a window."""
    cases = Cases(WINDOWS[name], work, config)
    cases.fresh()
    _, calls = cases.traced()
    found = []
    for error in [error for call in calls for error in errors_of(call)][::every]:
        cases.fresh()
        ended, log = cases.traced(error)
        at = next((call.place for call in log if "(INJECTED)" in call.result), "no call")
        how, problems = judged(cases, ended, EVERY * (int(name.split()[0] != "first") * 2))
        if at == "no call":
            problems.append("nothing was refused")
        found.append({"error": error, "at": at, "how": how, "problems": problems})
    return found


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *options, str(place)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def full(work: Path, config: Path, settings: tuple[str, ...], every: int) -> list[dict[str, Any]]:
    """Room for a part of the third checkpoint, from nothing to one page too little."""
    found = []
    cases = Cases(WINDOWS["save beside" if settings else "save"], work, config)
    newest = max((cases.reference / "checkpoints").glob("step-*"))
    pages = [-(-path.stat().st_size // 4096) for path in newest.iterdir()]
    rooms = [0, 1, 2, *range(5, sum(pages), 11), sum(pages) - 2, sum(pages) - 1]
    for room in rooms[::every]:
        cases.run.mkdir(parents=True)
        with mounted(cases.run, "-t", "tmpfs", "-o", "size=8m", "tmpfs"):
            cases.said.unlink(missing_ok=True)
            fork = Fork(cases.command, cases.said, stops=[_save(settings)])
            assert fork.next_stop() is not None
            before = forked.newest_good(cases.run)[0]
            filler = cases.run / "filler"
            free = shutil.disk_usage(cases.run).free
            # The steps go on beside a save and may take the last of it.
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                file.write(bytes(max(free - room * 4096, 0)))
            fork.go_on()
            ended = fork.ended()
            filler.unlink()
            how, problems = judged(cases, ended, before)
            words = [line for line in ended.said.splitlines() if line.startswith("error:")]
        cases.run.rmdir()
        found.append({"error": f"{room} pages free", "at": words[:1], "how": how, "problems": problems})  # fmt: skip
    return found


def read_only(work: Path, config: Path, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    cases = Cases(WINDOWS["save beside" if settings else "save"], work, config)
    checkpoints = cases.run / "checkpoints"
    with mounted(checkpoints, "--bind", str(checkpoints)):
        cases.said.unlink(missing_ok=True)
        fork = Fork(cases.command, cases.said, stops=[_save(settings)])
        assert fork.next_stop() is not None
        before = forked.newest_good(cases.run)[0]
        subprocess.run(["mount", "-o", "remount,bind,ro", str(checkpoints)], check=True)
        fork.go_on()
        ended = fork.ended()
        subprocess.run(["mount", "-o", "remount,bind,rw", str(checkpoints)], check=True)
        how, problems = judged(cases, ended, before)
    return [{"error": "read-only", "at": ended.said.splitlines()[-2:], "how": how, "problems": problems}]  # fmt: skip


def mounts_work(work: Path) -> str | None:
    """Why not, or `None`."""
    try:
        with mounted(work / "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no file system can be mounted here ({error})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each nth error")
    parser.add_argument("--windows", nargs="*", choices=WINDOWS, default=["save", "save beside"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if (reason := forked.strace_works()) is not None:
        raise SystemExit(f"error: {reason}")
    begun = time.monotonic()
    groups: dict[str, list[dict[str, Any]]] = {}
    with forked.workplace() as work:
        config = forked.write_training(work)

        def place(name: str) -> Path:
            (work / name).mkdir()
            return work / name

        for window in given.windows:
            groups[f"errors, {window}"] = injected(window, place(window.replace(" ", "-")), config, given.every)  # fmt: skip
        unmounted = mounts_work(work)
        for name, settings in (("", ()), (" beside", BESIDE)):
            if unmounted is None:
                groups[f"full{name}"] = full(
                    place(f"full{name[1:]}"), config, settings, given.every
                )
                groups[f"read-only{name}"] = read_only(place(f"ro{name[1:]}"), config, settings)
    for name, cases in groups.items():
        right = sum(not case["problems"] for case in cases)
        goes = sum(case["how"] == "goes on" for case in cases)
        print(f"{name:24} {right:4} of {len(cases):4} right; {goes} went on, {len(cases) - goes} ended with one error")  # fmt: skip
    failed = [{"group": name, **case} for name, cases in groups.items() for case in cases if case["problems"]]  # fmt: skip
    total = sum(map(len, groups.values()))
    forked.store_result(
        {"cases": total, "right": total - len(failed), "without_mounts": unmounted,
         "groups": {name: {"cases": len(cases), "right": sum(not c["problems"] for c in cases)} for name, cases in groups.items()},
         "failed": failed, "all": groups},
        given.json, begun,
    )  # fmt: skip
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
