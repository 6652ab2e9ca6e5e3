"""`hotloop tune CONFIG`: what it asks of the rest of `hotloop tune`. It needs the trainer, which the doctor does not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.cli.output import note
from hotloop.cli.progress import progress_bar
from hotloop.cli.tune import Asked, Given, is_config
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.ledger import Ledger
from hotloop.core.module_config import ModuleConfig
from hotloop.core.ranks import Ranks
from hotloop.core.settings import Settings, is_stored, load_stored, store_settings
from hotloop.hardware.limits import cpu_quota
from hotloop.train.early import refuse_early
from hotloop.train.opened_text import prepare_ahead
from hotloop.train.same_run import refuse_uneven
from hotloop.tune import settings as tuning
from hotloop.tune.earlier import earlier_of
from hotloop.tune.options import options_of
from hotloop.tune.program import run_directory


def of_config(
    words: tuple[str, ...],
    out: Path | None,
    given: Given,
    budget_s: float,
    ranks: int = 1,
    *,
    force: bool = False,
) -> Asked:
    config, overrides, out = Path(words[0]), words[1:], out or Path("tuned.yaml")
    settings = settings_of(config, overrides)
    together = Ranks(num_ranks=ranks)
    if ranks > 1 and not isinstance(settings.config, RunConfig):
        do = f"leave out --ranks {ranks}"
        raise UsageError("a fine-tuning is of one process", where=str(config), do=do)
    if not is_config(out.name):
        raise UsageError(f"--out {out} is no config", do="name a .yaml file to write")
    if out.resolve() == config.resolve():
        raise UsageError(f"--out {out} is the config to tune", do="name another file to write")
    _refuse_unwritable(out)
    if given["accumulate_with"]:
        do = "leave it out: a config is tried with the same batch in other microbatches anyway"
        raise UsageError("--accumulate-with is for a script of your own", do=do)
    named = options_of(**given, command=words) if any(given.values()) else []
    for each in named:
        if settings.origins.get(each.name) == "flag":
            raise UsageError(f"{each.name} is varied and given", do="leave one of them out")
        for value in each.values:  # what a config must not have is refused now
            refuse_uneven(load_stored(config, [*overrides, f"{each.name}={value}"]), together)
    refuse_uneven(settings, together)
    written = Path("runs") / f".tune-{settings.config.name}"
    command = tuning.command_of(config, overrides, written, ranks)
    first, rest = tuning.options_for(settings, [each.name for each in named], ranks)
    if ranks > (cpus := cpu_quota()) and tuning.machine_for(settings, ranks).device_type == "cpu":
        note(f"{ranks} processes take turns on {cpus:g} CPUs: what is found is of such a machine")
    more = [tuning.varied(each, settings) for each in named]
    rounds = [first, [*rest, *more], tuning.shapes_for(settings, [each.name for each in named])]
    earlier = earlier_of(settings, rounds, ranks, prepare_data(settings))
    if force and earlier is not None:
        earlier.file.unlink(missing_ok=True)
    found = earlier.found(budget_s) if earlier is not None else None
    directory = (
        found[0] if found else run_directory(command, settings.config.name, note, anew=force)
    )

    def told(ledger: Ledger) -> Ledger:
        best = [str(out)] if ledger.kept else words
        launched = f"torchrun --standalone --nproc-per-node={ranks} -m " if ranks > 1 else ""
        told_before = {each.name for each in ledger.fixes}
        unusable = (fix for fix in tuning.not_usable(rest) if fix.name not in told_before)
        fixes = (*ledger.fixes, *unusable)
        return replace(
            ledger, fixes=fixes, run_with=launched + shlex.join(["hotloop", "train", *best])
        )

    def write(ledger: Ledger) -> None:
        if any(each.verdict for each in ledger.fixes):
            store_settings(tuning.tuned(settings, ledger, directory, ranks), out)

    return Asked(
        command,
        directory,
        rounds,
        out,
        begins=["hotloop", "tune", *words, *(["--ranks", str(ranks)] if ranks > 1 else [])],
        work=partial(tuning.with_tokens, settings=settings),
        told=told,
        write=write,
        written=written,
        prepare=partial(prepare_examples, settings, directory),
        earlier=earlier,
        before=found and found[1],
    )


def settings_of(config: Path, overrides: Sequence[str]) -> Settings[Any]:
    """Raises the `UsageError` that a training would raise, as far as it can be told before torch is loaded."""
    settings = load_stored(config, overrides)
    if isinstance(settings.config, RunConfig):
        refuse_early(settings.config)
    elif isinstance(settings.config, ModuleConfig):
        do = "tune the program that calls it, by its own options: `hotloop tune --vary ... -- python PROGRAM`"
        raise UsageError("this is the config of a `hotloop.fit`", where=str(config), do=do)
    return settings


def prepare_data(settings: Settings[Any]) -> list[str] | None:
    """The text of a training, so that no process that is timed does, and the start of the first one is that of all others:
    where it lies, as `prepare_ahead` says."""
    if not isinstance(settings.config, RunConfig):
        return None
    with progress_bar() as progress:
        return prepare_ahead(settings.config.data, progress=progress, warn=note)


def prepare_examples(settings: Settings[Any], directory: Path) -> None:
    """Those of a fine-tuning, which loads its model for it, unless its trials in `directory` have begun."""
    if not isinstance(settings.config, RunConfig) and not directory.exists():
        from hotloop.finetune import job

        job.prepare_ahead(settings, note)


def _refuse_unwritable(out: Path) -> None:
    """Raises `UsageError` where no file can be written, or one that somebody wrote would be lost."""
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise UsageError(
            f"--out {out} cannot be written", do="name a file in a directory that can be written to"
        )
    if out.exists() and not is_stored(out):
        raise UsageError(
            f"--out {out} is there already, and is no config that hotloop wrote",
            do="name another file to write, or remove it",
        )
