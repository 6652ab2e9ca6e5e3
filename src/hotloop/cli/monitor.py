"""`hotloop monitor RUN | --system`: watch a run, or this machine, from another terminal."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import click

from hotloop.cli.output import json_option, tell_json
from hotloop.core.ceilings import PRECISION_DTYPES
from hotloop.core.census import Census
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun, describe_end
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json, to_plain
from hotloop.core.judgement import MODEL_FILE, ModelFlops
from hotloop.core.ledger import LEDGER_FILE, Ledger
from hotloop.core.measurement import Environment
from hotloop.core.settings import load_stored
from hotloop.core.step import steps_name, steps_of_ranks
from hotloop.core.telemetry import TELEMETRY_FILE
from hotloop.doctor.directory import TRIALS
from hotloop.monitor.follow import is_alive
from hotloop.monitor.screen import frame, plain
from hotloop.monitor.snapshot import RunFacts, RunMonitor, State, SystemMonitor
from hotloop.report.ledger import ledger_answer
from hotloop.runs.stored_run import STAGES, ceilings_of, no_run_directory

SILENT_S = 120.0
"""Trials write as they go: a doctor that wrote nothing for so long may have been ended."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--system", is_flag=True, help="This machine alone, without a run.")
@click.option("--once", is_flag=True, help="Print one frame as plain text and end.")
@json_option("Write one look as JSON and end; `-`: stdout.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.2),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two frames.",
)
def monitor(
    run: Path | None, system: bool, once: bool, json_file: str | None, every_s: float
) -> None:
    """Watch the run in the directory RUN while it trains, or after it; Ctrl-C ends.

    Phases of the last steps, speed, loss, MFU, and what CPUs, memory, disks and GPUs do. It only
    reads the run's files. Without a terminal it prints one frame.
    """
    if (run is None) != system:
        raise UsageError(
            "name a run directory or give --system, not both"
            if run is not None
            else "nothing to watch",
            where="hotloop monitor",
            do="`hotloop monitor runs/NAME`, or `hotloop monitor --system`",
        )
    if run is not None and not run.is_dir():
        what = "not a directory" if run.exists() else "no such directory"
        raise UsageError(what, where=str(run), do="give the directory of a run")
    if run is not None and (run / "train" / "config.yaml").is_file():
        run = run / "train"  # the final training of a quickstart
    try:
        _watch(run, once or json_file is not None or not sys.stdout.isatty(), json_file, every_s)
    except KeyboardInterrupt:  # the way to end it, not an interrupted task
        return


def _watch(run: Path | None, single: bool, json_file: str | None, every_s: float) -> None:
    watched: RunMonitor | SystemMonitor
    watched = SystemMonitor() if run is None else RunMonitor(run, read_facts)
    if not single:
        _live(watched, every_s)
        return
    if run is None:
        time.sleep(min(every_s, 0.5))  # rates need two readings
    snapshot = watched.look()
    if tell_json(to_plain(snapshot), json_file):
        click.echo(plain(snapshot))


def _live(watched: RunMonitor | SystemMonitor, every_s: float) -> None:
    """Draw until Ctrl-C."""
    from rich.live import Live

    with Live(frame(watched.look()), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(frame(watched.look()), refresh=True)


def read_facts(directory: Path) -> RunFacts | None:
    """What the files of a run say about it; `None` before it has written its settings.

    Raises `UsageError` for a directory that holds something else, or something damaged.
    """
    if (directory / COMMAND_RUN_FILE).is_file():
        return _doctor_facts(directory)
    stored = directory / "config.yaml"
    if not stored.is_file():
        return _not_begun(directory)
    settings = load_stored(stored)
    train = settings.config.train
    described, census_file = directory / "environment.json", directory / "census.json"
    model = directory / MODEL_FILE
    if not described.is_file():
        return RunFacts(total_steps=train.steps, complete=False)
    environment = read_json(described, Environment)
    if census_file.is_file():
        census = read_json(census_file, Census)
    else:  # written at the end of a run; stored settings hold no `auto`
        census = Census(
            device="cpu" if environment.cuda is None else "cuda",
            num_threads=train.num_threads if isinstance(train.num_threads, int) else None,
            matmul_dtypes=tuple(
                PRECISION_DTYPES[name] for name in (train.precision,) if name in PRECISION_DTYPES
            ),
        )
    threads = census.num_threads
    return RunFacts(
        total_steps=train.steps,
        device=environment.device,
        flops=read_json(model, ModelFlops) if model.is_file() else None,
        census=census,
        ceilings=None if threads is None else ceilings_of(environment, threads),
    )


def _not_begun(directory: Path) -> RunFacts | None:
    """What is known of a directory without settings: trials of a comparison, or nothing yet."""
    trials, written = _trials_so_far(directory)
    if trials:
        state: State = "comparing" if time.time() - written < SILENT_S else "halted"
        return RunFacts(None, doctor=state, doctor_rows=tuple(trials), complete=False)
    names = {each.name for each in directory.iterdir() if not each.name.startswith(".")}
    if names and not names & {*STAGES, "environment.json", TELEMETRY_FILE}:
        raise no_run_directory(directory)
    return None


def _doctor_facts(directory: Path) -> RunFacts:
    """What is known of a command that the doctor examines; read again at every look, since what it does changes."""
    import shlex

    run = read_json(directory / COMMAND_RUN_FILE, CommandRun)
    files = steps_of_ranks(directory)
    name = files[min(files)].name if files else steps_name(0)
    rows = [("command", shlex.join(run.command))]
    state: State = "examined"
    if run.ended is None:
        state = "examining" if is_alive(directory, (name, TELEMETRY_FILE)) else "halted"
    elif run.returncode is not None:
        rows.append(("end", f"it {describe_end(run.returncode)}"))
    trials, written = _trials_so_far(directory)
    ledger = directory / LEDGER_FILE
    if ledger.is_file() and ledger.stat().st_mtime >= written:
        rows.append(("fixes", ledger_answer(read_json(ledger, Ledger))))
    elif trials:
        rows += trials
        state = "trying_fixes" if time.time() - written < SILENT_S else "halted"
    if state == "halted":
        rows.append(
            ("silent", f"if it was ended, the same command with `--out {directory}` continues")
        )
    return RunFacts(
        run.steps, steps_file=name, doctor=state, doctor_rows=tuple(rows), complete=False
    )


def _trials_so_far(directory: Path) -> tuple[list[tuple[str, str]], float]:
    """A row for each fix: the processes that were measured; and when anything was last written, by the clock of files."""
    if not (directory / TRIALS).is_dir():
        return [], -math.inf
    rows, newest = [("baseline", "not measured yet")], (directory / TRIALS).stat().st_mtime
    for fix in sorted(each for each in (directory / TRIALS).iterdir() if each.name != "cache"):
        processes = [each for each in fix.iterdir() if each.is_dir()] if fix.is_dir() else []
        measured = [each for each in processes if (each / "measurement.json").is_file()]
        under_way = "".join(
            f", {each.name} under way" for each in processes if each not in measured
        )
        if processes:
            rows.append(
                (fix.name.replace("-", " "), f"{len(measured)} processes measured{under_way}")
            )
        for process in processes:
            written = (process, process / "log.txt", *(process / "run").glob("*"))
            newest = max(newest, *(each.stat().st_mtime for each in written if each.exists()))
    return rows[1:] or rows, newest
