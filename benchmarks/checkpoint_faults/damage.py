"""Damage checkpoints at random, continue, and see whether the damage is found, named, and the one before used.

    python benchmarks/checkpoint_faults/damage.py [--cases 2400] [--commands 60] [--seed 0] [--json FILE]

A run with three checkpoints was killed. Each case damages the newest (or the two newest) in a copy of it, and `resume` of
hotloop's trainer continues there, in this process: right is that the model then holds the weights of the newest
checkpoint that is whole, and that a note names each damaged one. `--commands` of the cases are the whole command
instead, whose end is compared with that of a run that nobody touched.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import torch
from forked import EVERY, Fork

from hotloop.checkpoint import store
from hotloop.core.errors import HotloopError
from hotloop.core.settings import load_settings
from hotloop.probe.recorder import keep_steps_before
from hotloop.train import start
from hotloop.train.continuation import resume
from hotloop.train.evaluate import keep_evaluations_until
from hotloop.train.opened_text import opened_text
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run, build_run
from hotloop.train.same_run import refuse_another_run

FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "average.safetensors", "state.json", "manifest.json")  # fmt: skip
Draw = random.Random


def flip(path: Path, other: Path, draw: Draw) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def flips(path: Path, other: Path, draw: Draw) -> None:
    for _ in range(draw.randint(2, 20)):
        flip(path, other, draw)


def truncate(path: Path, other: Path, draw: Draw) -> None:
    os.truncate(path, draw.choice((0, draw.randrange(path.stat().st_size))))


def zeros(path: Path, other: Path, draw: Draw) -> None:
    content = bytearray(path.read_bytes())
    length = draw.choice((1, 512, 4096, len(content)))
    begin = draw.randrange(len(content))
    end = min(begin + length, len(content))
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)


def grow(path: Path, other: Path, draw: Draw) -> None:
    with path.open("ab") as file:
        # No white space: behind the manifest it says nothing else.
        file.write(draw.choice((b"\0", b"x", b"\0" * 4096, draw.randbytes(100))))


def swap(path: Path, other: Path, draw: Draw) -> None:
    """With that of another step."""
    shutil.copyfile(other / path.name, path)


def mistake(path: Path, other: Path, draw: Draw) -> None:
    """For another file of the same checkpoint."""
    shutil.copyfile(path.with_name(draw.choice([name for name in FILES if name != path.name])), path)  # fmt: skip


def delete(path: Path, other: Path, draw: Draw) -> None:
    path.unlink()


def folder(path: Path, other: Path, draw: Draw) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path, other: Path, draw: Draw) -> None:
    path.unlink()
    path.symlink_to("nowhere")


KINDS: dict[str, Callable[[Path, Path, Draw], None]] = {
    each.__name__: each for each in (flip, flips, truncate, zeros, grow, swap, mistake, delete, folder, dangling)
}  # fmt: skip
STRAY = ("empty newest directory", "copy under a later step", "copy of another step's directory")


def steps_of(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def damaged(run: Path, kind: str, name: str, both: bool, draw: Draw) -> list[str]:
    """Names of what is no checkpoint any more."""
    oldest, middle, newest = steps_of(run)
    if kind in STRAY:
        made = newest.with_name("step-00000014-0badc0de")
        if kind == STRAY[0]:
            made.mkdir()
        else:
            shutil.copytree(newest if kind == STRAY[1] else oldest, made)
        return [made.name]
    hurt = [newest, middle] if both else [newest]
    for directory in hurt:
        before = digest(directory)
        while digest(directory) == before:  # zeros may have been zeros
            KINDS[kind](directory / name, oldest, draw)
    return [directory.name for directory in hurt]


def digest(directory: Path) -> list[tuple[str, bytes | None]]:
    return [(path.name, path.read_bytes() if path.is_file() else None) for path in sorted(directory.iterdir())]  # fmt: skip


@contextmanager
def built(config: Path, directory: Path) -> Iterator[tuple[Run, str]]:
    """A run in this process, which may be continued any number of times, and the fingerprint of its data."""
    settings = load_settings(config, ())
    device = torch.device("cpu")
    rendezvous = Rendezvous()
    settings, _ = start.resolved(settings, device, rendezvous.ranks, lambda _: None)
    progress = start.silent
    with opened_text(settings.config, rendezvous, progress=progress) as text:
        yield (
            build_run(settings.config, text, directory, device, progress=progress),
            text.fingerprint,
        )


def within(
    here: tuple[Run, str], directory: Path, hurt: list[str], wanted: store.Checkpoint | None
) -> list[str]:
    """What was wrong with continuing there; right is from `wanted`, or from the start."""
    run, fingerprint = here
    run.directory, run.first_step = directory, 0
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.fill_(7.0)
    try:
        directory.mkdir(exist_ok=True)
        refuse_another_run(directory, run.config, fingerprint, run.device)
        notes = resume(run)
        keep_steps_before(run.steps_file, run.first_step)
        keep_evaluations_until(run, run.first_step)
    except HotloopError as error:
        return [f"refused: {error}"]
    problems = [f"{name} is not named" for name in hurt if not any(name in note for note in notes)]
    step = 0 if wanted is None else wanted.step
    if run.first_step != step:
        problems.append(f"continued from step {run.first_step}, not {step}")
    if wanted is None:
        return problems
    weights = store.load(wanted, ("model",))[0]["model"]
    if not all(torch.equal(p, weights[name]) for name, p in run.model.named_parameters()):
        problems.append("other weights")
    return problems


def killed_run(config: Path, work: Path) -> Path:
    """Checkpoints of steps 4, 8 and 12; it was killed in step 14."""
    run = work / "killed"
    fork = Fork(forked.hotloop_train(config, run, "checkpoint.keep=3"), work / "said", stops=[f"update {3 * EVERY + 2}"])  # fmt: skip
    fork.next_stop()
    fork.kill()
    fork.ended()
    assert len(steps_of(run)) == 3
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2400)
    parser.add_argument("--commands", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    draw = random.Random(given.seed)
    every = [(kind, name) for kind in KINDS for name in FILES] + [(kind, "-") for kind in STRAY]
    tried: collections.Counter[str] = collections.Counter()
    found: collections.Counter[str] = collections.Counter()
    failed: list[dict[str, Any]] = []
    with forked.workplace() as work:
        config = forked.write_training(work)
        before, place = killed_run(config, work), work / "run"
        whole = work / "whole"
        command = forked.hotloop_train(config, place, "checkpoint.keep=3")
        assert forked.ran(forked.hotloop_train(config, whole, "checkpoint.keep=3"), work / "said").code == 0  # fmt: skip

        def case(number: int) -> tuple[str, str, list[str]]:
            kind, name = every[number % len(every)]
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(before, place)
            hurt = damaged(place, kind, name, draw.random() < 0.2, draw)
            return kind, name, hurt

        def judge(kind: str, name: str, problems: list[str]) -> None:
            tried[f"{kind} {name}"] += 1
            found[f"{kind} {name}"] += not problems
            if problems:
                failed.append({"kind": kind, "file": name, "problems": problems})

        # The forks first: this process has no threads then.
        order = draw.sample(range(len(every)), len(every))
        for number in range(given.commands):
            kind, name, hurt = case(order[number % len(order)])
            verdict = forked.judged(place, command, work / "said", whole, most_lost=3 * EVERY)
            said = (work / "said").read_text()
            unnamed = [f"{each} is not named" for each in hurt if each not in said]
            judge(kind, name, [*verdict.problems, *unnamed])
        with built(config, place) as here:
            for number in range(given.cases - given.commands):
                kind, name, hurt = case(number)
                good = [d for d in steps_of(before) if d.name not in hurt][-1]
                wanted = store.of_step(before / "checkpoints", int(good.name[5:13]))
                judge(kind, name, within(here, place, hurt, wanted))
    cases, right = sum(tried.values()), sum(found.values())
    for kind in [*KINDS, *STRAY]:
        of = [key for key in tried if key.rsplit(" ", 1)[0] == kind]
        print(f"{kind:34} {sum(found[k] for k in of):5} of {sum(tried[k] for k in of):5} found, named, and the one before used")  # fmt: skip
    print(f"{right} of {cases}")
    forked.store_result(
        {"cases": cases, "right": right, "whole_commands": given.commands, "seed": given.seed,
         "by_kind_and_file": {key: [found[key], tried[key]] for key in sorted(tried)}, "failed": failed[:50]},
        given.json, begun,
    )  # fmt: skip
    return int(right < cases)


if __name__ == "__main__":
    sys.exit(main())
