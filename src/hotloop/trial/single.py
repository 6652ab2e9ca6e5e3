"""One trial in its place: measured, or read where an earlier run of the same command finished it."""

from __future__ import annotations

from pathlib import Path

from hotloop.core.errors import CommandFailed, EnvironmentFailed
from hotloop.core.files import storage_error
from hotloop.core.measurement import Measurement, Plan
from hotloop.optimizations.switching import Switching
from hotloop.trial.arm import Arm
from hotloop.trial.isolation import remove_temporary
from hotloop.trial.measure import MEASUREMENT_FILE, Workdir, load_measurement, measure
from hotloop.trial.process import Tick
from hotloop.trial.sandbox.layered import remove_tree


def is_finished(place: Path) -> bool:
    """Whether the trial in `place` was measured."""
    return (place / MEASUREMENT_FILE).exists()


def trial(
    arm: Arm,
    place: Path,
    *,
    plan: Plan,
    seed: str,
    cache: Path,
    workdir: Workdir | None,
    what: str,
    tick: Tick | None = None,
    switching: Switching | None = None,
) -> Measurement:
    """What `measure` gives, once. what: begins the text of its errors.

    Raises `CommandFailed` where the command fails, `EnvironmentFailed` when the disk or memory refuse.
    """
    if is_finished(place):
        return load_measurement(place / MEASUREMENT_FILE)
    try:
        if place.exists():  # unfinished: it was ended in the middle
            remove_temporary(place)
            remove_tree(place)
        return measure(
            arm,
            directory=place,
            plan=plan,
            seed=seed,
            cache=cache,
            workdir=workdir,
            tick=tick,
            switching=switching,
        )
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
