"""`hotloop fit CONFIG [KEY=VALUE]...`"""

from __future__ import annotations

import re
import shlex
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.cli.output import json_option, note, show, tell_json
from hotloop.core.errors import ExitCode, UsageError
from hotloop.core.files import SESSIONS_FILE, write_json
from hotloop.core.memory_use import FIT_FILE

if TYPE_CHECKING:
    from hotloop.core.settings import Settings
    from hotloop.fit.program import Limit
    from hotloop.hardware.limits import Machine

UNITS = {
    unit: factor**power
    for power, letter in enumerate("KMGT", 1)
    for unit, factor in ((letter, 1000), (f"{letter}B", 1000), (f"{letter}IB", 1024))
}


class Size(click.ParamType[int]):
    """`2G`, `1.5GiB`, `512M`: powers of 1000, with an `i` of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(
            r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT](?:i?B)?)", str(value).strip(), re.I
        )
        num_bytes = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
        if not num_bytes:
            self.fail(f"{value!r} is no size; write 2G, 512M or 1.5GiB", param, ctx)
        return num_bytes


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--memory", type=Size(), metavar="SIZE", help="What is to be enough, such as 2G or 1.5GiB [default: what this machine, its control group or its GPU has left].")  # fmt: skip
@click.option("--device", metavar="NAME", help="A GPU that is not here, such as A100-80GB: its memory, of its data sheet.")  # fmt: skip
@click.option("--no-run", is_flag=True, help="Only predict, without calibrating or measuring.")
@click.option("--prove", is_flag=True, help="Time microbatches that fit, and train with the recommended one within that memory.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=4), metavar="N", default=200, show_default=True, help="Steps of the training that proves.")  # fmt: skip
@json_option("Write what was found to this file.")
def fit(
    config: Path,
    overrides: tuple[str, ...],
    memory: int | None,
    device: str | None,
    no_run: bool,
    prove: bool,
    steps: int,
    json_file: str | None,
) -> None:
    """Say where the memory of a training goes, and whether it fits.

    CONFIG is one of `hotloop train`. Its steps are rehearsed without computing, a small real run calibrates that, and a real
    run of three steps measures it. What does not fit gets settings with which it does. Exit code 0: it fits; 1: it does not.
    """
    if prove and (no_run or device is not None):
        other = "--no-run" if no_run else "--device"
        raise UsageError(f"--prove trains here, and {other} does not", do="leave one of them out")
    from hotloop.core.settings import load_settings
    from hotloop.train.early import refuse_early

    settings = load_settings(config, overrides)
    refuse_early(settings.config)
    machine, limit, name = _where(settings, memory, device)
    from hotloop.cli.progress import progress_bar
    from hotloop.fit.processes import Processes
    from hotloop.fit.program import fit as fitted
    from hotloop.fit.proof import proven
    from hotloop.report.memory import render_fit
    from hotloop.train.batches import training_batches
    from hotloop.train.opened_text import opened_text
    from hotloop.train.rendezvous import Rendezvous

    with (
        progress_bar() as progress,
        tempfile.TemporaryDirectory(prefix="hotloop-fit-") as directory,
    ):
        with opened_text(settings.config, Rendezvous(), progress=progress, warn=note) as text:
            sequences = training_batches(settings.config, text, progress=progress).num_sequences
            processes = Processes(
                settings, machine, text.vocabulary_size, Path(directory), progress
            )
        runs = not no_run and device is None
        found = fitted(processes, limit, device=name, runs=runs, most_sequences=sequences)
        if prove and (found.largest_microbatch or found.ways):
            found = proven(processes, found, steps=steps)
        elif prove:
            note("--prove: nothing is predicted to fit, so nothing was trained")
    if device is None and not overrides and (config.parent / SESSIONS_FILE).exists():
        write_json(config.parent / FIT_FILE, found)  # for `hotloop report`
    if tell_json(asdict(found), json_file):
        show(render_fit(found))
        if found.ways and device is None and not prove:
            words = [str(config), *overrides, "--memory", f"{limit.num_bytes // 10**6}M", "--prove"]
            show(f"\nproof of the cheapest: `{shlex.join(['hotloop', 'fit', *words])}`")
    if not found.fits or (found.proof is not None and not found.proof.survived):
        raise click.exceptions.Exit(ExitCode.FOUND)


def _where(
    settings: Settings, memory: int | None, device: str | None
) -> tuple[Machine, Limit, str]:
    """What the training is resolved for, the memory it is to fit in, and the name of the device."""
    from hotloop.fit.program import Limit
    from hotloop.hardware.device import pick_device, read_machine
    from hotloop.hardware.gpus import known_gpu, machine_with
    from hotloop.hardware.limits import memory_left_bytes, memory_limit_bytes

    told = "--memory"
    if device is not None:
        gpu = known_gpu(device)
        return machine_with(gpu), Limit(memory or gpu.memory_bytes, told if memory else f"--device {device}", 0), device  # fmt: skip
    import torch

    chosen = pick_device(settings.config.train.device)
    compiles = settings.config.train.compile is not False
    machine = read_machine(chosen, compiles=compiles)
    if chosen.type == "cuda":
        free, _ = torch.cuda.mem_get_info(chosen)
        limit = Limit(memory or free, told if memory else "free on this GPU", free)
        return machine, limit, torch.cuda.get_device_name(chosen)
    left = memory_left_bytes()
    left = memory_limit_bytes() if left is None else left
    return machine, Limit(memory or left, told if memory else "free on this machine", left), "cpu"
