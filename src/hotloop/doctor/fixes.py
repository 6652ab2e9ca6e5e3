"""Which fixes are worth trying on a command, of those that have a live form."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hotloop.core.census import Census
from hotloop.core.errors import UsageError
from hotloop.core.judgement import Diagnosis, Finding, Interval
from hotloop.core.ledger import TriedFix
from hotloop.core.measurement import Measurement
from hotloop.doctor.batch_memory import BatchMemory
from hotloop.doctor.training_loader import (
    NO_QUEUE,
    StepQueue,
    queue_of,
    script_queue,
    value_that_shows,
)
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import BatchesAhead, Optimization

MEASURING = 1.01
"""What a prediction leaves to the measuring: two runs of one script differ by about that on a quiet machine."""

LEAST_GAIN = 1.05
"""A ratio: a fix of which less is expected is not tried unless asked for, nor one where a proven one leaves less of its
finding's gain."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A technique with one value, and the findings that ask for it."""

    technique: Optimization
    value: Any
    answers: tuple[str, ...]
    gain_at_most: float | None
    """The largest of those findings."""
    predicted: Interval | None = None
    """The ratio that is expected of it, from the evidence of those findings."""
    warmup_steps: int = 0
    """Steps before its effect can show; 0: it shows at once."""
    queue: StepQueue = NO_QUEUE
    """Batches that loader workers keep ready while the fix is on."""
    most_ratio: float | None = None
    """No ratio above this is possible."""
    acts_every: int = 0
    """Steps from one time that it acts to the next; 0: in every step."""
    limited: str = ""
    """Why a larger value is not tried; empty: it is the one that was asked for."""

    @property
    def name(self) -> str:
        return self.technique.name

    @property
    def why_hopeless(self) -> str | None:
        """Why it is not tried unless asked for."""
        if self.predicted is None or self.predicted.ratio_high >= LEAST_GAIN:
            return None
        at_most = max(self.predicted.ratio_high, 1.0)
        return f"at most {at_most:.2f}x is expected of it; --only {self.name} tries it all the same"

    @property
    def promise(self) -> float:
        """A ratio: where nothing tells how much of the finding's gain it brings, half of it on a log scale."""
        if self.predicted is not None:
            return self.predicted.ratio
        return math.sqrt(self.gain_at_most or 1.0)

    @property
    def ratio_at_most(self) -> float:
        """The highest expected ratio, which decides over how many steps it is compared; 1 where none is expected."""
        return max(self.predicted.ratio_high, 1.0) if self.predicted is not None else 1.0


def fixes_for(
    diagnosis: Diagnosis,
    machine: Machine,
    census: Census | None = None,
    *,
    only: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    num_steps: int | None = None,
    memory: BatchMemory | None = None,
) -> tuple[Fix, ...]:
    """Those that a finding names, the most promising first; with `only` (see `asked_for`), exactly these.

    num_steps: that the command makes, in which what a value brings has to show. memory: that its batches have to fit into. A
    value that was asked for stays what it is.
    """
    found = []
    for name in live_names():
        technique = CATALOGUE[name]
        asking = [
            each
            for each in diagnosis.findings
            if each.optimization == name or each.code in technique.answers
        ]
        if name not in only and (only or not asking):
            continue
        value = next(
            (
                v
                for v in only.get(name) or _values(technique, census)
                if technique.why_not(machine, v, {}) is None
            ),
            None,
        )
        if value is None:
            continue
        if num_steps is not None and census is not None and not only.get(name):
            value = value_that_shows(technique, value, census, num_steps)
        limited = ""
        if memory is not None and not only.get(name):
            value, limited = memory.fitting(technique, value)
        warmup_for = technique.warmup_for
        ahead = technique.batches_ahead and census and technique.batches_ahead(census, value)
        found.append(
            Fix(
                technique,
                value,
                tuple(each.code for each in asking),
                max((each.gain_at_most for each in asking), default=None),
                expected(technique, value, asking),
                warmup_for(census) if warmup_for is not None and census is not None else 0,
                queue_of(ahead, census) if ahead and census else script_queue(census),
                most_ratio_of(ahead, diagnosis) if ahead else None,
                _acts_every(technique, asking),
                limited,
            )
        )
    return tuple(sorted(found, key=lambda fix: -fix.promise))


def most_ratio_of(ahead: BatchesAhead, diagnosis: Diagnosis) -> float | None:
    """Of a loader without workers: a step lasts at least an nth of its wait. The rest may become shorter, too: a CPU that slept computes slowly."""
    most, waits = ahead.most_ratio, diagnosis.breakdown.get("data_wait")
    if most is None or most <= ahead.workers or not waits:  # not above: it has workers already
        return most
    return max(most, ahead.workers / waits)


def asked_for(only: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """`NAME` or `NAME=VALUE` of each: name -> the value, none where the run is to tell.

    Raises `UsageError` for a name that is no technique, one without a live form, or a value it cannot have.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for text in only:
        name, _, said = text.partition("=")
        if name not in CATALOGUE:
            raise UsageError(f"no technique `{name}`", do=_did_you_mean(name))
        technique = CATALOGUE[name]
        if technique.live_form is None:
            raise UsageError(
                f"`{name}` cannot be tried on a running script: {technique.no_live_form}",
                do=f"choose among {', '.join(live_names())}",
            )
        found[name] = (_value(technique, said),) if said else ()
    return found


def _did_you_mean(name: str) -> str:
    names = live_names()
    close = [each for each in names if name and name in each]
    close = close or difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean `{'` or `'.join(close)}`?"
    return f"choose among {', '.join(names)}"


def _value(technique: Optimization, said: str) -> Any:
    value = next((each for each in technique.settings if _shown(each) == said), None)
    is_number = technique.values_for is not None and technique.settings != (True,)
    if value is None and is_number and re.fullmatch("[0-9]{1,6}", said):
        value = int(said)  # what fits depends on the run
    if value is None:
        do = f"choose among {', '.join(map(_shown, technique.settings))}"
        raise UsageError(f"`{technique.name}` cannot be `{said}`", do=do)
    return value


def _shown(value: Any) -> str:
    return json.dumps(value).strip('"')


def left_out_of(
    diagnosis: Diagnosis, fixes: Sequence[Fix], machine: Machine, census: Census | None
) -> tuple[TriedFix, ...]:
    """Remedies that findings name and that cannot be tried here, with the reason."""
    live, tried = set(live_names()), {fix.name for fix in fixes}
    named = dict.fromkeys(each.optimization for each in diagnosis.findings)
    found = []
    for name in named:
        if name is None or name in tried or name not in live:
            continue
        asking = [each for each in diagnosis.findings if each.optimization == name]
        found.append(
            TriedFix(
                name=name,
                value=None,
                status="not_tried",
                why=why_left_out(name, (), machine, census),
                answers=tuple(each.code for each in asking),
                gain_at_most=max((each.gain_at_most for each in asking), default=None),
            )
        )
    return tuple(found)


def why_left_out(
    name: str, values: tuple[Any, ...], machine: Machine, census: Census | None
) -> str:
    """Why `fixes_for` had no value of a technique that was asked for."""
    technique = CATALOGUE[name]
    whys = [technique.why_not(machine, v, {}) for v in values or _values(technique, census)]
    needs = (
        f"it needs {technique.needs}" if technique.needs else "nothing was seen that it could help"
    )
    return next(filter(None, whys), needs)


def _values(technique: Optimization, census: Census | None) -> tuple[Any, ...]:
    if technique.values_for is not None and census is not None:
        return technique.values_for(census)
    return technique.settings


def _acts_every(technique: Optimization, asking: Sequence[Finding]) -> int:
    found = [each.evidence.get(technique.acts_every) for each in asking]
    return max((round(each) for each in found if isinstance(each, (int, float))), default=0)


def expected(technique: Optimization, value: Any, asking: Sequence[Finding]) -> Interval | None:
    """What the technique says to expect, by the finding of which it expects most, as it will be measured."""
    if technique.expect is None:
        return None
    ranges = [technique.expect(each.evidence, value) for each in asking]
    low, high = max(filter(None, ranges), default=(None, None))
    if low is None or high is None:
        return None
    return Interval(math.sqrt(low * high), low / MEASURING, high * MEASURING)


def live_names() -> list[str]:
    """Names of the techniques that can be put into a running script."""
    return [name for name, each in CATALOGUE.items() if each.live_form is not None]


def machine_of(measurement: Measurement) -> Machine:
    """The machine as the command saw it."""
    census = measurement.census
    if census is None:
        return Machine("cpu", (), None, 1)
    return Machine(
        device_type=(census.device or "cpu").split(":")[0],
        fast_dtypes=census.fast_dtypes,
        why_no_compile=None,  # a trial shows it
        num_threads=census.num_threads or 1,
    )
