"""One fresh process -> one `Measurement`, stored in the trial's own directory.

```
<trial>/measurement.json   written last, whole or not at all: its presence means the trial is done
        log.txt            what the command printed
        run/               `{run}`, or the records of the step clock
        work/              the copy of the working directory, while the command runs; or
        layer/             what it writes over the working directory itself
        path/hotloop       the only thing of ours that a foreign interpreter can import
```
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hotloop
from hotloop.core import child
from hotloop.core.command_run import describe_end
from hotloop.core.errors import CommandFailed, EnvironmentFailed, UsageError
from hotloop.core.files import read_json, storage_error, storing, to_plain, write_atomically
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.memory_use import read_memory_notes, refuses_memory
from hotloop.hardware.environment import read_host
from hotloop.hardware.limits import memory_kills, memory_left_bytes
from hotloop.judge.memory import killed_for_memory, out_of_memory
from hotloop.probe import write_guard
from hotloop.report.memory import out_of_memory_answer
from hotloop.report.numbers import size
from hotloop.trial.arm import RUN_PLACEHOLDER, Arm
from hotloop.trial.forking import ForkServer
from hotloop.trial.isolation import (
    Listing,
    copy_workdir,
    in_copy,
    lay_over,
    offline,
    remove_temporary,
    temporary_directory,
    without_own_variables,
)
from hotloop.trial.memory_group import memory_group
from hotloop.trial.process import Finished, Tick, run_process, tail
from hotloop.trial.process_measurement import measurement_of, was_stopped
from hotloop.trial.sandbox.layered import (
    Layered,
    in_sandbox,
    remove_tree,
    run_layered,
    run_restricted,
)
from hotloop.trial.toggling import ToggleSchedule

Workdir = Listing | Layered
"""What keeps the user's working directory as it is."""

MEASUREMENT_FILE = "measurement.json"
LOG_FILE = "log.txt"
TOLD, TOLD_LINES = "    error: out of memory\n", 80
"""How our own trainer begins to say where its memory went, and lines that it says that in, at most."""
RESERVED_BYTES = 1 << 29
"""Of the memory that is free: what a bounded process leaves to all others, at most a tenth of it."""
MAX_PADDING = 4096
"""Bytes. The size of the environment shifts the stack and with it speed; drawn for each process,
the shift becomes noise that pairs average out instead of a bias of one arm."""


def is_finished(place: Path) -> bool:
    """Whether the trial in `place` was measured."""
    return (place / MEASUREMENT_FILE).exists()


def trial(arm: Arm, place: Path, *, what: str, **how: Any) -> Measurement:
    """What `measure` gives, or gave in an earlier run of the same command. what: begins the text of its errors. how: of
    `measure`.

    Raises `CommandFailed` where the command fails, `EnvironmentFailed` when the disk or memory refuse.
    """
    if is_finished(place):
        return load_measurement(place / MEASUREMENT_FILE)
    try:
        if place.exists():  # unfinished: it was ended in the middle
            remove_temporary(place)
            remove_tree(place)
        return measure(arm, directory=place, **how)
    except CommandFailed as error:
        raise CommandFailed(
            f"{what}: {error.what}",
            where=error.where,
            do=error.do,
            returncode=error.returncode,
            arm=arm.name,
        ) from error
    except OSError as error:
        raise storage_error(error, place, "run a trial") from error
    except MemoryError as error:
        raise EnvironmentFailed("memory ran out while running a trial") from error


def measure(
    arm: Arm,
    *,
    directory: Path,
    plan: Plan,
    seed: str,
    cache: Path,
    workdir: Workdir | None,
    tick: Tick | None = None,
    schedule: ToggleSchedule | None = None,
    server: ForkServer | None = None,
) -> Measurement:
    """Run `arm` once in `directory`, which must be new, and store its `measurement.json`.

    seed: of the environment's padding, another one for every process.
    cache: directory of compiled code shared by the trials of a session.
    workdir: what to copy and run in, or to lay a layer over; `None` runs in `arm.workdir` itself, or in an
    empty directory.
    schedule: at which steps the arm's `toggled` go on and off. server: what its process is forked from.
    Raises `CommandFailed` when the command fails, runs past its time or makes too few steps;
    `UsageError` when it cannot be started; `EnvironmentFailed` when the disk refuses.
    """
    directory = directory.resolve()
    run, log = directory / "run", directory / LOG_FILE
    command, work = _prepared(arm, directory, cache, workdir)
    drop_torn_libraries(cache)
    environment = read_host(workdir=arm.workdir)
    free = memory_left_bytes() if arm.bounded else None
    bound = (
        contextlib.nullcontext()
        if free is None
        else memory_group(free - min(free // 10, RESERVED_BYTES))
    )
    with temporary_directory(directory) as temporary, bound as group:
        path = None if group is None else group.path
        kills = memory_kills(path)
        env = _variables(arm, plan, directory, temporary, cache, seed)
        if schedule is not None:
            env[child.TOGGLED] = schedule.to_json()
        if arm.sandboxed and not _is_users(work, directory):
            within = (run, directory, temporary, cache.resolve())
            env[child.WITHIN] = os.pathsep.join(map(str, within))
        process = partial(
            run_process,
            workdir=work,
            env=env,
            log=log,
            timeout_s=plan.timeout_s,
            name=arm.name,
            tick=tick,
            group=group,
        )
        finished = _run(command, arm, directory, temporary, cache, workdir, process, server)
        killed = killed_for_memory(kills, memory_kills(path), None)
    # What started it may take the end of it for a failure, as what executes a notebook does.
    if finished.returncode and not was_stopped(run):
        said = tail(log)
        how = describe_end(finished.returncode, killed)
        note = next(iter(read_memory_notes(run)), None)
        if note is not None and (ended := out_of_memory(note, killed=None)) is not None:
            how += f": {out_of_memory_answer(ended)}"
        elif killed == "yes":
            how += f": it ran out of memory, of which {size(free or 0)} were free as it began"
        elif finished.returncode > 0 and (refuses_memory(said) or TOLD in tail(log, TOLD_LINES)):
            how += ": it ran out of memory"
        raise CommandFailed(
            f"`{arm.name}` {how}", where=str(log), do=said, returncode=finished.returncode
        )
    measurement = measurement_of(arm, command, plan, environment, finished, run, log)
    store_measurement(directory / MEASUREMENT_FILE, measurement)
    if not _is_users(work, directory):
        shutil.rmtree(work, ignore_errors=True)
    return measurement


def _prepared(
    arm: Arm, directory: Path, cache: Path, workdir: Workdir | None
) -> tuple[list[str], Path]:
    """The command, and the directory in which it runs; what they need is made in `directory`."""
    run, work = directory / "run", directory / "work"
    with storing(directory, "prepare a trial"):
        run.mkdir(parents=True)
        cache.mkdir(parents=True, exist_ok=True)
        if workdir is None and arm.workdir is None:
            work.mkdir()
    command = [argument.replace(RUN_PLACEHOLDER, str(run)) for argument in arm.command]
    if isinstance(workdir, Layered):
        return command, workdir.root
    if workdir is not None:
        copy_workdir(workdir, work)
        lay_over(arm.edited, work)
        return [in_copy(argument, workdir.root, work) for argument in command], work
    if arm.workdir is None:
        return command, work
    if arm.edited:
        raise UsageError(
            f"arm {arm.name!r} edits files, and in the working directory itself none is edited"
        )
    return command, arm.workdir.resolve()


def _run(
    command: Sequence[str],
    arm: Arm,
    directory: Path,
    temporary: Path,
    cache: Path,
    workdir: Workdir | None,
    process: Callable[..., Finished],
    server: ForkServer | None,
) -> Finished:
    """Runs the command, over a layer or with restricted rights where `workdir` asks for it."""

    def sandboxed(command: Sequence[str], sandbox: Path) -> Finished:
        if server is None:
            return process(in_sandbox(command, sandbox))
        return process(command, begin=partial(server.start, sandbox=sandbox))

    if isinstance(workdir, Layered):
        shared = [directory / "run", directory / "path", temporary, cache]
        shared += [] if server is None else [server.directory / "path"]
        layer = directory / "layer"
        return run_layered(
            command, workdir, place=layer, shared=shared, process=sandboxed, edited=arm.edited
        )
    if workdir is not None and workdir.restricted:
        writable = [directory, temporary, cache.resolve(), *map(Path, write_guard.caches())]
        launch, network = directory / "launch", workdir.network
        return run_restricted(
            command, place=launch, writable=writable, network=network, process=sandboxed
        )
    return process(command)


def store_measurement(path: Path, measurement: Measurement) -> None:
    """Atomically. A loss may be NaN, and the judge must see that it was: such files are Python's JSON."""
    write_atomically(path, (json.dumps(to_plain(measurement), indent=1) + "\n").encode())


def load_measurement(path: Path) -> Measurement:
    """Raises `UsageError` when it is missing, damaged or of another version."""
    return read_json(path, Measurement, finite=False)


def _variables(
    arm: Arm, plan: Plan, directory: Path, temporary: Path, cache: Path, seed: str
) -> dict[str, str]:
    env = without_own_variables(os.environ)
    env |= offline(temporary)
    env["TMPDIR"] = str(temporary)
    # Shared: compiling again in every trial would measure the compiler, many times.
    env["TORCHINDUCTOR_CACHE_DIR"] = str(cache.resolve())
    env[child.PADDING] = "x" * random.Random(f"padding {seed}").randrange(MAX_PADDING)
    env |= arm.env
    if arm.records == "step_clock":
        env[child.STEP_CLOCK] = str(directory / "run")
        env[child.STEP_CLOCK_STOP] = str(plan.warmup_steps + plan.steps)
        if arm.fixes:
            env[child.FIXES] = str(directory / "run")
            env[child.FIXES_SETTINGS] = json.dumps(dict(sorted(arm.fixes.items())))
        own = [str(Path(__file__).parent / "bootstrap"), str(only_hotloop(directory))]
        env["PYTHONPATH"] = os.pathsep.join(
            [*own, *([env["PYTHONPATH"]] if env.get("PYTHONPATH") else [])]
        )
    if arm.comparable:
        env = {"PYTHONHASHSEED": str(child.SEED), **env}
        env |= {child.SAME_RANDOMNESS: str(directory / "run"), child.STEP_CLOCK_WEIGHTS: "1"}
    return env


def _is_users(work: Path, directory: Path) -> bool:
    return work.parent != directory


def server_environment(arm: Arm, directory: Path, *, cache: Path) -> dict[str, str]:
    """What processes of `arm` have in common, for the one in `directory` that they are forked from."""
    temporary = directory / "tmp"
    with storing(directory, "prepare trials"):
        temporary.mkdir(parents=True)
    env = _variables(arm, Plan(0, 1, 1.0), directory, temporary, cache, "")
    return without_own_variables(env)


def drop_torn_libraries(cache: Path) -> None:
    """Remove what a compiler that was killed left of a library: torch loads it without asking, and each trial would fail."""
    for library in cache.rglob("*.so"):
        with contextlib.suppress(OSError):
            if not _is_whole_library(library):
                library.unlink()


def _is_whole_library(path: Path) -> bool:
    """Of an ELF file the table of sections comes last; of other files, whether there is anything."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return len(header) == 64
    table: int = struct.unpack_from("<Q", header, 0x28)[0]
    size, count = struct.unpack_from("<HH", header, 0x3A)
    return bool(path.stat().st_size >= table + size * count)


def only_hotloop(directory: Path) -> Path:
    """Make a directory for PYTHONPATH that holds the hotloop package and nothing else of ours."""
    path = directory / "path"
    package = Path(hotloop.__file__).resolve().parent
    with storing(path, "prepare a trial"):
        path.mkdir()
        (path / "hotloop").symlink_to(package)
    return path
