"""The processes of a comparison, read from the directory in which they were measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.measurement import Measurement
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.trial.measure import load_measurement
from hotloop.trial.plan import process_seed
from hotloop.trial.toggling import halves, toggle_schedule

NAMED = re.compile(r"(aa|pair)-(\d+)-([ab])-(.+)")
"""Directories of single processes: kind, number of the pair, place in it, arm."""


@dataclass(frozen=True, slots=True)
class Trials:
    """What was measured so far."""

    baseline: str
    candidate: str
    pairs: tuple[tuple[int, Measurement | None, Measurement | None], ...]
    """Number, baseline and candidate of each pair; `None`: not measured (yet)."""
    measured: tuple[Measurement, ...]
    """Every process, those of the baseline against itself included."""
    num_planned: int | None
    """Processes at most; `None` where the plan cannot be read."""
    num_cut_off: int
    """Processes that began and did not end."""
    of_scripts: bool
    """The candidate is not of hotloop's own trainer, as that of the quickstart is beside a plain script."""

    @property
    def baseline_runs(self) -> tuple[Measurement, ...]:
        return tuple(run for _, run, _ in self.pairs if run is not None)

    @property
    def candidate_runs(self) -> tuple[Measurement, ...]:
        return tuple(run for _, _, run in self.pairs if run is not None)


def find_trials(directory: Path) -> tuple[Trials | None, list[HotloopError]]:
    """The trials below a directory, or in it; what is damaged is left out and said."""
    place = directory / "trials" if (directory / "trials").is_dir() else directory
    path = place / "plan.json"
    if not path.is_file():
        return None, []

    problems: list[HotloopError] = []
    plan: dict[str, Any] = {}
    try:
        plan = parse_object(read_bytes(path))
        names = [str(plan[role]["name"]) for role in ("baseline", "candidate")]
    except (OSError, ValueError, TypeError, KeyError) as error:
        problems.append(UsageError(f"damaged plan: {error!r}", where=str(path)))
        return None, problems
    arms: dict[int, dict[str, Measurement]] = {}
    measured, num_cut_off = [], 0
    for each in sorted(place.iterdir()):
        matched = NAMED.fullmatch(each.name)
        if matched is None or not each.is_dir():
            continue
        stored = each / "measurement.json"
        if not stored.is_file():
            num_cut_off += 1
            continue
        try:
            run = load_measurement(stored)
        except HotloopError as error:
            problems.append(error)
            continue
        measured.append(run)
        kind, number, _, arm = matched.groups()
        if kind != "pair":
            continue
        try:
            runs = _runs_of(run, arm, names[0], plan, each.name)
        except (HotloopError, KeyError, TypeError, ValueError) as error:
            problems.append(UsageError(f"damaged plan: {error!r}", where=str(path)))
            continue
        arms.setdefault(int(number), {}).update(runs)
    pairs = tuple((number, pair.get(names[0]), pair.get(names[1])) for number, pair in arms.items())
    return (
        Trials(
            baseline=names[0],
            candidate=names[1],
            pairs=pairs,
            measured=tuple(measured),
            num_planned=_num_planned(plan),
            num_cut_off=num_cut_off,
            of_scripts=plan["candidate"].get("records", "run") != "run",
        ),
        problems,
    )


def _runs_of(
    run: Measurement, arm: str, baseline: str, plan: dict[str, Any], place: str
) -> dict[str, Measurement]:
    """Arm -> steps of one process: all, or those without and those with its fixes where these were toggled.

    place: name of the process's directory, which seeds the schedule of toggling.
    """
    toggled = plan["candidate"].get("switched")
    if not toggled:
        return {arm: run}

    seed = process_seed(int(plan["plan"]["seed"]), place)
    schedule = toggle_schedule(tuple(toggled), run.plan, plan["plan"]["block_steps"], seed)
    off, on = halves(run, schedule, baseline)
    return {baseline: off, arm: on}


def _num_planned(plan: dict[str, Any]) -> int | None:
    try:
        of_a_pair = 1 if plan["candidate"].get("switched") else 2
        return 2 * int(plan["plan"]["aa_pairs"]) + of_a_pair * int(plan["plan"]["looks"][-1])
    except (KeyError, TypeError, ValueError, IndexError):
        return None
