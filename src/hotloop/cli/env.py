"""`hotloop env`: the machine as hotloop sees it, and what it was measured to do at best."""

from __future__ import annotations

from typing import Any

import click

from hotloop.cli.output import json_option, note, write_object
from hotloop.cli.progress import progress_bar
from hotloop.core.cache import cache_directory, cache_limit_bytes, entries
from hotloop.core.ceilings import Ceilings
from hotloop.core.errors import EnvironmentFailed, pip_install
from hotloop.core.files import to_plain
from hotloop.core.measurement import Environment
from hotloop.hardware.environment import read_host, store_ceilings, stored_ceilings
from hotloop.hardware.limits import default_threads
from hotloop.report import numbers
from hotloop.report.machine import ceiling_rows, environment_rows
from hotloop.report.terminal import render_rows

NO_TORCH = f"torch is not installed beside hotloop ({pip_install('train')})"


@click.command()
@click.option(
    "--measure/--no-measure",
    default=None,
    help="Measure the ceilings now, or never [default: when they are not known].",
)
@click.option("--threads", type=click.IntRange(min=1), help="[default: what the quota can run].")
@json_option("Write it as JSON; `-` for stdout.")
def env(measure: bool | None, threads: int | None, json_file: str | None) -> None:
    """Show the device, what this process may use of it, its versions and its ceilings.

    The first are the keys by which two measurements are held against each other. The ceilings are
    measured: matrix products, which take a few seconds, kept per machine. They are what a run's MFU
    is a share of.
    """
    device, environment, native, why_no_compile = _seen()
    num_threads = threads or default_threads()
    if device is None and measure is None:
        measure = False
    ceilings = _ceilings(environment, device or "cpu", measure, num_threads)
    if json_file is not None:
        found = {
            "schema": "hotloop.env/1",
            **to_plain(environment),
            "torch_device": device,
            "num_threads": num_threads,
            "fast_dtypes": list(native),
            "why_no_compile": why_no_compile,
            "ceilings": to_plain(ceilings),
            "cache": _cache(),
        }
        write_object(found, json_file)
    if json_file == "-":
        return
    usable = [
        ("fast dtypes", ", ".join(native) or "not known"),
        (
            "threads",
            f"{num_threads} of {environment.num_cpus} CPUs, quota {environment.cpu_quota:g}",
        ),
        ("torch.compile", why_no_compile or "can run"),
    ]
    cache = _cache()
    parts = [
        render_rows("environment", environment_rows(environment)),
        render_rows("used by hotloop", usable),
        render_rows("ceilings", ceiling_rows(ceilings))
        if ceilings is not None
        else f"ceilings\n  not measured: {'leave out --no-measure' if device else NO_TORCH}",
        render_rows("cache", _cache_rows(cache)),
    ]
    click.echo("\n\n".join(parts))


def _seen() -> tuple[str | None, Environment, tuple[str, ...], str | None]:
    """The device of torch, what it runs on, its fast dtypes and why it cannot compile; no device without torch."""
    try:
        from hotloop.hardware.device import (
            fast_dtypes,
            pick_device,
            read_environment,
            why_compile_cannot_run,
        )
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise

        return None, read_host(), (), NO_TORCH
    device = pick_device("auto")
    name = str(device)
    return name, read_environment(name), fast_dtypes(device), why_compile_cannot_run(device)


def _cache() -> dict[str, Any]:
    """The place of prepared text, how much of it there is, and what bounds it."""
    found = entries()
    return {
        "path": str(cache_directory()),
        "entries": len(found),
        "in_use": sum(entry.in_use for entry in found),
        "bytes": sum(entry.num_bytes for entry in found),
        "limit_bytes": cache_limit_bytes(),
    }


def _cache_rows(cache: dict[str, Any]) -> list[tuple[str, str]]:
    limit = cache["limit_bytes"]
    bound = "without a limit" if limit is None else f"of {numbers.size(limit)}"
    return [
        ("path", cache["path"] + " (HOTLOOP_CACHE)"),
        ("prepared text", f"{numbers.size(cache['bytes'])} {bound} (HOTLOOP_CACHE_LIMIT)"),
        ("entries", f"{cache['entries']}, {cache['in_use']} in use"),
    ]


def _ceilings(
    environment: Environment, device: str, measure: bool | None, num_threads: int
) -> Ceilings | None:
    """What is known of this machine; measured first when asked for, or when nothing is known."""
    known = stored_ceilings(environment, num_threads)
    if measure is False or (known is not None and not measure):
        return known
    import torch

    from hotloop.hardware.ceilings import measure_ceilings

    with progress_bar() as progress:
        where = torch.device(device)
        found = measure_ceilings(environment, where, num_threads=num_threads, progress=progress)
    try:
        return store_ceilings(environment, found)
    except EnvironmentFailed as error:
        note(f"not kept: {error.what}")
        return found
