"""`hotloop bench effectiveness`: each technique alone against the start, and the whole.

Of a config of hotloop's own trainer the techniques are the single settings that `hotloop tune` tries, and the whole is
what `auto` chooses; of somebody's command they are the live forms of the catalogue, and the whole is what the doctor keeps.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hotloop.bench.each_alone import EachAlone
from hotloop.core.census import NO_OPTIMIZER
from hotloop.core.effectiveness import Effectiveness
from hotloop.core.errors import UsageError
from hotloop.core.judgement import Status
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fix_campaign import NEEDS_OPTIMIZER, try_fixes
from hotloop.doctor.fixes import asked_for, fixes_for, live_names, machine_of, why_left_out
from hotloop.doctor.program import Examined
from hotloop.trial.arm import Arm
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement
from hotloop.tune import program as tuning
from hotloop.tune.options import AUTO, Option

TOGETHER = "all that was kept"


def chosen_options(
    first: Sequence[Option], rest: Sequence[Option], only: Sequence[str]
) -> list[list[Option]]:
    """The options named by `only`, as rounds of a campaign: by key, by technique, or one setting alone; all where it is empty.

    Raises `UsageError` for a name that is none of them.
    """
    if not only:
        return [list(first), list(rest)]
    options, unused = {each.name: each for each in (*first, *rest)}, set(only)
    wanted: dict[str, list[str]] = {}
    for option in options.values():
        for value in option.values:
            names = {option.name, *option.name.split(".")[-1:], option.label(value)}
            names |= set(option.known.techniques) if option.name != AUTO else set()
            if not names.isdisjoint(only):
                wanted.setdefault(option.name, []).append(value)
                unused -= names
    if unused:
        name, known = sorted(unused)[0], list(options)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"choose among {', '.join(known)}"
        raise UsageError(f"nothing is called `{name}` here", do=hint)
    return [
        [replace(each, values=tuple(wanted[each.name])) for each in options if each.name in wanted]
        for options in (first, rest)
    ]


def measured(
    examined: Examined,
    rounds: Sequence[Sequence[Option]],
    only: Sequence[str],
    again: Callable[[str], str],
    *,
    work: Callable[[Arm], Arm] | None,
    **how: Any,
) -> tuple[Ledger, tuple[TriedFix, ...] | None]:
    """What came of each alone and of the whole; and, of a command, the techniques that have nothing to act on there.

    rounds: options of a config; none of a command, whose fixes are tried, those of `only` where it names any. work: says
    what a step of a config's command is. how: of `tune.program.tune` and `doctor.fix_campaign.try_fixes`, which say what is
    raised.
    """
    if rounds:
        command = examined.run.command
        rounds = [
            [
                replace(
                    each,
                    values=tuple(v for v in each.values if each.changes(v, command)),
                )
                for each in options
            ]
            for options in rounds
        ]
        return tuning.tune(examined, rounds, again, work=work, campaign=EachAlone, **how), None
    return _fixes(examined, only, again, **how)


def _fixes(
    examined: Examined, only: Sequence[str], again: Callable[[str], str], **how: Any
) -> tuple[Ledger, tuple[TriedFix, ...]]:
    measurement = load_measurement(examined.directory / MEASUREMENT_FILE)
    machine, census = machine_of(measurement), measurement.census
    if census is not None and NO_OPTIMIZER in census.notes:
        raise UsageError(NEEDS_OPTIMIZER)
    asked = asked_for(only or live_names())
    fixes = fixes_for(examined.diagnosis, machine, census, only=asked)
    whys = dict[str, str]()
    for fix in () if only else fixes:
        if fix.technique.what_if:
            whys[fix.name] = f"shows what something costs; --only {fix.name} measures it"
        elif census is not None and fix.technique.observed(census, fix.value):
            whys[fix.name] = "the command has it already"
    names = [each.name for each in fixes if each.name not in whys]
    not_here = tuple(
        TriedFix(name, None, "not_tried", whys.get(name) or why_left_out(name, v, machine, census))
        for name, v in asked.items()
        if name not in names
    )
    if not names:
        return Ledger(examined.run.command, (), (), None, 0, 0, 0.0, None), not_here
    words = [each for each in only or names if each.partition("=")[0] in names]
    return try_fixes(examined, only=words, again=again, to_first_look=True, **how), not_here


def effectiveness(
    examined: Examined,
    ledger: Ledger,
    not_here: Sequence[TriedFix] | None,
    *,
    made_with: str,
) -> Effectiveness:
    """The table of what a ledger holds. not_here: of a command; `None`: it is of a config."""
    rows = {each.name: each for each in ledger.fixes}
    whole = rows.pop(AUTO, None) if not_here is None else _together(ledger)
    measured = load_measurement(examined.directory / MEASUREMENT_FILE)
    return Effectiveness(
        made_with=made_with,
        date=_date_of(examined),
        environment=measured.environment,
        whole=whole,
        # The fastest first, then what was not timed.
        rows=tuple(
            sorted(rows.values(), key=lambda row: -((row.verdict and row.verdict.ratio) or 0.0))
        ),
        not_here=tuple(not_here or ()),
        ledger=ledger,
    )


def _together(ledger: Ledger) -> TriedFix:
    """All that the doctor keeps, or why that is nothing."""
    kept = [each for name in ledger.kept for each in ledger.fixes if each.name == name]
    if not kept:
        is_open = ledger.continue_with is not None
        why = "nothing is kept yet" if is_open else "nothing is kept"
        if ledger.together is not None:
            yet = "have not confirmed yet" if is_open else "did not confirm"
            why += f"; fresh pairs {yet} what was faster alone"
        status: Status = "stopped" if is_open else "rejected"
        return TriedFix(TOGETHER, None, status, why, verdict=ledger.together)
    return TriedFix(
        TOGETHER,
        " + ".join(ledger.kept),
        "kept",
        "faster, and learns the same",
        verdict=ledger.together,
        start_s=kept[0].start_s if len(kept) == 1 else None,
    )


def _date_of(examined: Examined) -> str:
    """Of the last process that was timed; a table that is printed again stays of its day."""
    found = (examined.directory / TRIALS).glob(f"*/pair-*/{MEASUREMENT_FILE}")
    ended_at = max((each.stat().st_mtime for each in found), default=examined.run.started_at)
    return datetime.fromtimestamp(ended_at, UTC).date().isoformat()
