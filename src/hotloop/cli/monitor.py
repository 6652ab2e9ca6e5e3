"""`hotloop monitor RUN | --system`: watch a run, or this machine, from another terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotloop.cli.output import write_object
from hotloop.core.errors import UsageError

if TYPE_CHECKING:
    from hotloop.monitor.snapshot import RunFacts, RunMonitor, SystemMonitor


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--system", is_flag=True, help="This machine alone, without a run.")
@click.option("--once", is_flag=True, help="Print one frame as plain text and end.")
@click.option(
    "--json", "json_file", metavar="FILE", help="Write one look as JSON and end; `-`: stdout."
)
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
    if run is not None and run.exists() and not run.is_dir():
        raise UsageError("not a directory", where=str(run), do="give the directory of a run")
    try:
        _watch(run, once or json_file is not None or not sys.stdout.isatty(), json_file, every_s)
    except KeyboardInterrupt:  # the way to end it, not an interrupted task
        return


def _watch(run: Path | None, single: bool, json_file: str | None, every_s: float) -> None:
    from hotloop.core.files import to_plain
    from hotloop.monitor.screen import plain
    from hotloop.monitor.snapshot import RunMonitor, SystemMonitor

    watched: RunMonitor | SystemMonitor
    watched = SystemMonitor() if run is None else RunMonitor(run, read_facts)
    if not single:
        _live(watched, every_s)
        return
    if run is None:
        time.sleep(min(every_s, 0.5))  # rates need two readings
    snapshot = watched.look()
    if json_file is not None:
        write_object({**to_plain(snapshot)}, json_file)
    if json_file != "-":
        click.echo(plain(snapshot))


def _live(watched: RunMonitor | SystemMonitor, every_s: float) -> None:
    """Draw until Ctrl-C."""
    from rich.live import Live

    from hotloop.monitor.screen import frame

    with Live(frame(watched.look()), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(frame(watched.look()), refresh=True)


def read_facts(directory: Path) -> RunFacts | None:
    """What the files of a run say about it; `None` before it has written its settings."""
    from hotloop.cli.run_directory import ceilings_of, model_flops
    from hotloop.core.ceilings import PRECISION_DTYPES
    from hotloop.core.census import Census
    from hotloop.core.files import read_json
    from hotloop.core.measurement import Environment
    from hotloop.core.settings import load_settings
    from hotloop.monitor.snapshot import RunFacts

    stored = directory / "config.yaml"
    if not stored.is_file():
        return None
    settings = load_settings(stored)
    train = settings.config.train
    described, census_file = directory / "environment.json", directory / "census.json"
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
        flops=model_flops(directory, settings),
        census=census,
        ceilings=None if threads is None else ceilings_of(environment, threads),
    )
