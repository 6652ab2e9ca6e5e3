"""Which directories a loss of power can leave of a save, each built and continued from.

    python benchmarks/checkpoint_faults/power_loss.py [--windows save ...] [--commands 100] [--json FILE]

The calls of a window of a small training are traced with what they write. For each prefix of them the disk is
rebuilt in the model of ALICE (Pillai et al., OSDI 2014): what a file got since its last fsync may be there, missing,
zeros, cut in half, or have a hole where its first page was; entries of a directory (made, renamed, removed) since its last
fsync may be there or not: all, none, each alone, all but each, the first ones. An fsync of a file makes its bytes durable and
not its entry. The trainer continues in each state that differs from the others, in this process (`--commands` of them
with the whole command, to the end): right is that it holds the weights of the newest checkpoint that is whole there, and that
this is no older than the last one whose save had returned.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked
from damage import built, within
from forked import EVERY, STEPS, Fork, Strace

from hotloop.checkpoint import store

PAGE = 4096
"""Bytes that reach the disk together."""


@dataclass
class File:
    """What is in a file, and what of it is durable."""

    content: bytes
    durable: bytes
    at: int = 0
    """Where the next write goes."""
    _known: tuple[bytes, bytes, dict[str, bytes]] | None = None

    def states(self) -> dict[str, bytes]:
        """The same objects as long as nothing changes."""
        known = self._known
        if known is not None and known[0] is self.content and known[1] is self.durable:
            return known[2]
        found = {"whole": self.content}
        if self.durable != self.content:
            kept = self.durable if self.content.startswith(self.durable) else b""
            rest = len(self.content) - len(kept)
            middle = len(kept) + rest // 2
            found |= {
                "missing": self.durable,
                "zeros": kept + bytes(rest),
                "half": self.content[:middle],
            }
            page = -(-(len(kept) + 1) // PAGE) * PAGE
            if page < len(self.content):
                found["hole"] = kept + bytes(page - len(kept)) + self.content[page:]
        self._known = (self.content, self.durable, found)
        return found


@dataclass(frozen=True)
class Entry:
    """A change of a directory: `path` is there or not any more."""

    folder: str
    removed: tuple[str, ...]
    made: tuple[tuple[str, int], ...]
    """With the key of the file; -1 for a directory."""


@dataclass
class Disk:
    """A file system that is told of each call."""

    root: str
    files: dict[int, File] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    """Durable entries: path to file, -1 for a directory."""
    pending: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path) -> Disk:
        """Everything that is there now is durable."""
        disk = cls(str(root))
        for path in sorted(root.rglob("*")):
            disk.names[str(path)] = -1 if path.is_dir() else disk.new(path.read_bytes())
        return disk

    def new(self, content: bytes = b"") -> int:
        self.files[len(self.files)] = File(content, content, len(content))
        return len(self.files) - 1

    def now(self) -> dict[str, int]:
        return applied(self.names, self.pending)

    def enter(self, path: str, key: int, *, away: str | None = None) -> None:
        removed = () if away is None else (away,)
        self.pending.append(Entry(str(Path(path).parent), removed, ((path, key),)))

    def remove(self, path: str) -> None:
        self.pending.append(Entry(str(Path(path).parent), (path,), ()))

    def sync_directory(self, path: str) -> None:
        done = [entry for entry in self.pending if entry.folder == path]
        self.names = applied(self.names, done)
        self.pending = [entry for entry in self.pending if entry.folder != path]

    def states(self) -> Iterator[tuple[str, dict[str, bytes | None]]]:
        """Every state that a loss of power may leave, with its name."""
        count = len(self.pending)
        chosen: dict[str, list[Entry]] = {"all": self.pending, "none": []}
        for number in range(count):
            chosen[f"only {number}"] = [self.pending[number]]
            chosen[f"not {number}"] = self.pending[:number] + self.pending[number + 1 :]
            chosen[f"until {number}"] = self.pending[:number]
        dirty = {state for file in self.files.values() for state in file.states()}
        for name, entries in chosen.items():
            there = applied(self.names, entries)
            for how in sorted(dirty):
                yield f"entries: {name}, bytes: {how}", self.state(there, {}, how)
        there = self.now()
        for key, file in self.files.items():  # each alone
            for how in sorted(set(file.states()) - {"whole"}):
                yield f"entries: all, {key}: {how}", self.state(there, {key: how}, "whole")

    def state(self, there: dict[str, int], one: dict[int, str], how: str) -> dict[str, bytes | None]:  # fmt: skip
        found: dict[str, bytes | None] = {}
        for path, key in sorted(there.items()):
            parent = str(Path(path).parent)
            if parent != self.root and parent not in found:
                continue  # nobody can reach it
            if key == -1:
                found[path] = None
                continue
            states = self.files[key].states()
            found[path] = states.get(one.get(key, how), states["whole"])
        return found


def applied(names: dict[str, int], entries: Sequence[Entry]) -> dict[str, int]:
    there = dict(names)
    for entry in entries:
        for path in entry.removed:
            there.pop(path, None)
        there.update(entry.made)
    return there


_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPEN = re.compile(r"^\d+<(.*?)>")


def tell(disk: Disk, call: forked.Call) -> None:
    """Change `disk` as a call did."""
    if call.result.startswith("-1"):
        return
    opened = _OPEN.match(call.text)
    folder = _OPEN.match(call.text.removeprefix("AT_FDCWD"))
    strings = [ast.literal_eval(f'b"{each}"') for each in _STRING.findall(call.text)]
    now = disk.now()
    if call.name in ("write", "ftruncate", "fsync"):
        assert opened is not None
        path = opened[1]
        if call.name == "fsync" and now.get(path, -1) == -1:
            disk.sync_directory(path)
        elif path in now:
            file = disk.files[now[path]]
            if call.name == "fsync":
                file.durable = file.content
            elif call.name == "ftruncate":
                length = int(call.text.rsplit(",", 1)[1])
                file.content = file.content[:length].ljust(length, b"\0")
                file.at = min(file.at, length)
            else:
                file.content = file.content[: file.at] + strings[0] + file.content[file.at + len(strings[0]) :]  # fmt: skip
                file.at += len(strings[0])
        return
    names = [each.decode() for each in strings]
    paths = [each if each.startswith("/") else f"{folder[1] if folder else '?'}/{each}" for each in names]  # fmt: skip
    if not all(path.startswith(disk.root + "/") for path in paths):
        return
    if call.name == "openat":
        key = now.get(paths[0], -1)
        if "O_CREAT" in call.text and paths[0] not in now:
            disk.enter(paths[0], disk.new())
        elif key != -1 and "O_TRUNC" in call.text:
            disk.files[key].content, disk.files[key].at = b"", 0
        elif key != -1:
            disk.files[key].at = len(disk.files[key].content) if "O_APPEND" in call.text else 0
    elif call.name == "mkdir":
        disk.enter(paths[0], -1)
    elif call.name.startswith("rename"):
        disk.enter(paths[1], now[paths[0]], away=paths[0])
    elif call.name in ("unlink", "unlinkat", "rmdir"):
        disk.remove(paths[0])
    elif call.name not in ("chmod", "flock"):
        raise SystemExit(f"a call that the model does not know: {call.name}")


@dataclass(frozen=True)
class Window:
    """All calls of the main thread between two stops; at the first of them the disk holds nothing that is not durable."""

    begins: str
    ends: str


WINDOWS = {
    "from nothing to the first save": Window("start", f"update {EVERY + 1}"),
    "save": Window(f"update {2 * EVERY + 1}", f"update {3 * EVERY + 1}"),
    "last save": Window(f"update {3 * EVERY + 1}", "end"),
}


def traced(window: Window, command: Sequence[str], place: Path) -> tuple[Disk, list[forked.Call]]:
    """The disk before the window, and its calls."""
    fork = Fork(command, place / "said", stops=[window.begins, window.ends])
    stop = fork.next_stop()
    assert stop is not None
    disk = Disk.of(place / "disk")
    strace = Strace(stop[1], place / "calls", strings=1 << 20)
    fork.go_on()
    assert fork.next_stop() is not None
    strace.end()
    fork.kill()
    fork.ended()
    return disk, [c for c in forked.read_calls(place / "calls") if str(place / "disk") in c.text]


def returned(calls: Sequence[forked.Call]) -> dict[int, int]:
    """The number of the call from which on a save had returned, and its step."""
    step, found = 0, {}
    for number, call in enumerate(calls):
        if call.name == "rename" and (named := re.search(r"step-(\d{8})-\w+/manifest\.json\"", call.text)):  # fmt: skip
            step = int(named[1])
        if step and call.name == "write" and "steps.jsonl>" in call.text:
            found[number] = step
            step = 0
    return found


def build(state: dict[str, bytes | None], root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in state.items():
        if content is None:
            Path(path).mkdir()
        else:
            Path(path).write_bytes(content)


def examined(name: str, place: Path, config: Path, *, commands: int, most: int) -> dict[str, Any]:
    root, said = place / "disk", place / "said"
    root.mkdir(parents=True)
    run = root / "run"
    command = forked.hotloop_train(config, run)
    reference = place / "whole"
    assert forked.ran(forked.hotloop_train(config, reference), said).code == 0
    disk, calls = traced(WINDOWS[name], command, place)
    saved = returned(calls)
    first = max([step for path in disk.names if (step := _step_of(path))], default=0)
    seen: dict[int, tuple[str, int, dict[str, bytes | None]]] = {}
    made, oldest = 0, first
    for number, call in enumerate([None, *calls]):
        if call is not None:
            tell(disk, call)
            oldest = saved.get(number - 1, oldest)
        for how, state in disk.states():
            made += 1
            # The hash of bytes is kept with them, and unchanged files are the same objects.
            key = hash((oldest, *sorted((path, hash(content)) for path, content in state.items())))
            seen.setdefault(key, (f"after {number} calls, {how}", oldest, state))
    different = list(seen.values())
    num_different = len(different)
    different = random.Random(1).sample(different, min(most, num_different))
    failed: list[dict[str, Any]] = []
    for how, least, state in random.Random(0).sample(different, min(commands, len(different))):
        build(state, root)
        good = forked.newest_good(run)[0]
        problems = list(forked.judged(run, command, said, reference, most_lost=STEPS).problems)
        problems += [f"step {least} had been saved, and {good} is left"] if good < least else []
        failed += [{"state": how, "command": True, "problems": problems}] if problems else []
    with built(config, run) as here:
        for how, least, state in different:
            build(state, root)
            good = forked.newest_good(run)[0]
            problems = [f"step {least} had been saved, and {good} is left"] if good < least else []
            if good:
                shutil.copytree(run / "checkpoints", place / "kept")
                wanted = store.of_step(place / "kept", good)
                problems += within(here, run, [], wanted)
                shutil.rmtree(place / "kept")
            else:
                problems += within(here, run, [], None)
            failed += [{"state": how, "command": False, "problems": problems}] if problems else []
    return {
        "calls": len(calls),
        "states": made,
        "different": num_different,
        "examined": len(different),
        "with_the_whole_command": min(commands, len(different)),
        "failed_states": len({each["state"] for each in failed}),
        "failed": failed[:100],
    }


def _step_of(path: str) -> int:
    found = re.search(r"/step-(\d{8})-\w+/manifest\.json$", path)
    return int(found[1]) if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", nargs="+", choices=WINDOWS, default=list(WINDOWS))
    parser.add_argument(
        "--commands", type=int, default=100, help="states of a window for the whole command"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=10**9,
        help="different states of a window to examine, drawn at random",
    )
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
            windows[name] = each = examined(
                name, place, config, commands=given.commands, most=given.most
            )
            print(
                f"{name}: {each['calls']} calls, {each['examined']} of {each['different']} different states, "
                f"{each['failed_states']} not recovered",
                flush=True,
            )
    forked.store_result({"windows": windows}, given.json, begun)
    return int(any(each["failed_states"] for each in windows.values()))


if __name__ == "__main__":
    sys.exit(main())
