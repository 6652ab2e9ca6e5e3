"""Two arms in interleaved pairs of fresh processes, judged as planned. Killed at any time, it continues.

```
<directory>/plan.json                     arms, plan, digest
            aa-01-a-plain/ aa-01-b-plain/ the baseline with itself
            pair-01-a-plain/ ...          a ran first in its pair, b second; one process alone where
                                          its fixes went on and off within it
            uneven-1-pair-03-a-plain/ ... a pair that was measured again, see `is_uneven`
            cache/                        compiled code, shared by all trials
            verdict.json
```
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from zlib import crc32

from hotloop import __version__
from hotloop.core.errors import CommandFailed, Interrupted, UsageError
from hotloop.core.file_locks import lock_file
from hotloop.core.files import storing, write_json
from hotloop.core.judgement import JudgedSteps, Parity, ParityClass, Verdict
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.progress import PairProgress, Progress, silent
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.hardware.environment import speed_variables
from hotloop.judge.compare import compare
from hotloop.judge.looks import should_stop
from hotloop.trial.arm import Arm, refuse_missing
from hotloop.trial.forking import NO_SERVERS, READY_TIMEOUT_S, ForkServer, ForkServers
from hotloop.trial.isolation import SESSION_MARK
from hotloop.trial.measure import (
    MEASUREMENT_FILE,
    Workdir,
    is_finished,
    load_measurement,
    server_environment,
    store_measurement,
    trial,
)
from hotloop.trial.plan import TrialPlan, candidate_first, process_seed, round_orders
from hotloop.trial.sandbox.layered import Layered
from hotloop.trial.toggling import SETTLING, ToggleSchedule, halves, off_halves, toggle_schedule

PLAN_SCHEMA = "hotloop.plan/1"
HALF_KEPT_S = 600.0
"""A call that goes on later than so long after half of a pair was made begins that pair again."""

QUIET, DISTURBED = 0.1, 0.2
"""Shares of the CPUs that other programs take beside a process: one of a pair had its machine for itself, the other not."""
MOST_UNEVEN = 2
"""Pairs of a comparison that are measured again; more often the machine is just so."""

Pair = tuple[Measurement, Measurement]
Judge = Callable[..., Verdict]
Turn = tuple[Arm, Path, int]
"""Whose process, where it lies, and whether it is the second of its pair."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Comparisons with the same baseline over the same steps, measured in rounds: one process of the baseline is in a pair with each.

    As the order of all is drawn, any of them is as likely before the baseline as after it, and as far away.
    """

    names: tuple[str, ...]
    """Of all candidates that the order is drawn for, also of those that need no more pairs."""
    others: tuple[tuple[Path, Arm, TrialPlan], ...]
    """Directory, candidate and plan of each comparison that needs some."""


@dataclass(frozen=True, slots=True)
class SessionResult:
    """What was measured, and what the judge says of it."""

    verdict: Verdict
    pairs: tuple[Pair, ...]
    """(baseline, candidate), in the order in which they were measured."""
    aa_pairs: tuple[Pair, ...]
    """(baseline, baseline)."""
    directory: Path
    toggled: tuple[str, ...] = ()
    """Fixes that went on and off within the process that each pair is."""


def compare_arms(
    baseline: Arm,
    candidate: Arm,
    *,
    directory: Path,
    plan: TrialPlan,
    parity_class: ParityClass,
    parity: Parity | None = None,
    over: JudgedSteps = "steady",
    equal_steps: bool = True,
    alpha: Sequence[float] | None = None,
    pairs_now: int | None = None,
    beside: Beside | None = None,
    cache: Path | None = None,
    workdir: Workdir | None = None,
    servers: ForkServers = NO_SERVERS,
    goes_on: Callable[[Verdict], bool] = lambda verdict: True,
    stop_now: Callable[[Verdict, int], bool] = lambda verdict, num_new: False,
    timeout_of: Callable[[float], float] = lambda timeout_s: timeout_s,
    was_cut_off: Callable[[CommandFailed], bool] = lambda error: False,
    progress: Progress = silent,
    on_pair: Callable[[PairProgress], None] = lambda pair: None,
) -> SessionResult:
    """Measure and judge. Calling it again with the same arms and plan reuses what was finished.

    over: which of the counted steps decide. alpha, equal_steps: see `compare`. parity: known from runs
    of its own; `None` judges the losses of these pairs.
    pairs_now: stop after so many, to go on or not in another call. beside: measured with it; each is judged by a call of
    its own, which finds its pairs made.
    stop_now: asked before each pair to measure but the first, with what the pairs so far show and how many of them are of
    this call; `True` ends it there. What they show may be a reason to go on to the next look, never to end. goes_on: asked after it, at a planned look that
    decided nothing; `False` ends it there. timeout_of: asked before each process, by that of the plan. was_cut_off: whether that
    ended a process, so that the pairs before it are all, where there are any.
    cache: of compiled code; `None` gives the session one of its own. workdir: what keeps the arms' own from
    being written to; `None` runs them in it. servers: processes are forked from them where the two arms allow it. on_pair: called before each pair.
    Raises `UsageError` (arms or plan that cannot be run, a directory of another session),
    `CommandFailed` (an arm failed; what was finished is kept), `Interrupted` after Ctrl-C, when every
    process has ended, and `EnvironmentFailed` when the disk refuses.
    """
    _refuse_bad_arms(baseline, candidate, plan)
    with storing(directory, "make the directory"):
        directory.mkdir(parents=True, exist_ok=True)
    with alone_in(directory):
        for place, arm, its_plan in (
            (directory, candidate, plan),
            *(beside.others if beside else ()),
        ):
            place.mkdir(parents=True, exist_ok=True)
            _store_plan(place, baseline, arm, its_plan, workdir)
        session = _Session(
            directory,
            plan,
            workdir,
            cache or directory / "cache",
            progress,
            on_pair,
            servers=servers if isinstance(workdir, Layered) else NO_SERVERS,
            pairs_now=pairs_now,
            beside=beside,
            goes_on=goes_on,
            stop_now=stop_now,
            timeout_of=timeout_of,
            was_cut_off=was_cut_off,
            settling=0 if over == "all" else SETTLING,
        )
        judge = partial(
            compare,
            parity_class=parity_class,
            parity=parity,
            looks=plan.looks,
            alpha=alpha,
            over=over,
            toggled=bool(candidate.toggled),
            equal_steps=equal_steps,
        )
        try:
            return session.run(baseline, candidate, judge)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted after {session.num_done} of up to {session.num_trials} trials; "
                "every process has ended",
                where=str(directory),
                do="run the same command again: it continues, finished trials are kept",
            ) from None
        finally:
            servers.close()


@dataclass(slots=True)
class _Session:
    directory: Path
    plan: TrialPlan
    workdir: Workdir | None
    cache: Path
    progress: Progress
    on_pair: Callable[[PairProgress], None]
    servers: ForkServers
    pairs_now: int | None
    goes_on: Callable[[Verdict], bool]
    stop_now: Callable[[Verdict, int], bool]
    timeout_of: Callable[[float], float]
    was_cut_off: Callable[[CommandFailed], bool]
    beside: Beside | None = None
    settling: int = SETTLING
    off_halves: list[Pair] = field(default_factory=list)
    num_done: int = 0
    interim: Verdict | None = None
    """Of the pairs that were made."""
    rounds: list[list[str]] = field(default_factory=list)
    """Names in the order of their turns."""
    failed: set[str] = field(default_factory=set)
    """Of the others: each fails again in a call of its own, which says so."""

    @property
    def num_trials(self) -> int:
        return 2 * (self.plan.aa_pairs + self.plan.looks[-1])

    def run(self, baseline: Arm, candidate: Arm, judge: Judge) -> SessionResult:
        aa_pairs = tuple(
            self._pair("aa", number, self.plan.aa_pairs, baseline, baseline, swapped=False)
            for number in range(1, self.plan.aa_pairs + 1)
        )
        pairs: list[Pair] = []
        each = 1 if candidate.toggled else 2
        finished = sum(map(is_finished, self.directory.glob("pair-*"))) // each
        order = candidate_first(self.plan.looks[-1], self.plan.seed)
        if self.beside is not None:
            names = (baseline.name, *self.beside.names)
            self.rounds = round_orders(self.plan.looks[-1], names, crc32(" ".join(names).encode()))
            order = tuple(_is_before(candidate, baseline, each) for each in self.rounds)
        for number, drawn in enumerate(order, 1):
            swapped = _ran_first(self.directory, number, baseline, candidate, drawn=drawn)
            self.on_pair(PairProgress(number, self.plan.looks[-1], self.interim))
            try:
                while True:
                    pair = self._pair(
                        "pair", number, self.plan.looks[-1], baseline, candidate, swapped=swapped
                    )
                    verdict = judge([*pairs, pair], baseline_aa=(*aa_pairs, *self.off_halves))
                    num_new = number - finished
                    if num_new < 1 or not self._measures_again(number, pair, verdict, num_new):
                        break
            except CommandFailed as error:
                if self.interim is None or not self.was_cut_off(error):
                    raise
                verdict = self.interim
                break
            pairs.append(pair)
            self.interim = verdict
            is_look = number in self.plan.looks
            if number == self.pairs_now or (
                is_look and should_stop(verdict, number, self.plan.looks)
            ):
                break
            if number < finished:
                continue  # the next pair takes no time
            if self.stop_now(verdict, number - finished) or (is_look and not self.goes_on(verdict)):
                break
        verdict = replace(verdict, reasons=(*verdict.reasons, *self._on_uneven_pairs()))
        write_json(self.directory / "verdict.json", verdict)
        if len(pairs) != self.pairs_now:
            self.progress("measured", self.num_done, self.num_done, verdict.outcome)
        return SessionResult(verdict, tuple(pairs), aa_pairs, self.directory, candidate.toggled)

    def _pair(
        self, kind: str, number: int, up_to: int, first: Arm, second: Arm, *, swapped: bool
    ) -> Pair:
        """Measure both, `second` before `first` when swapped; returned as (first, second)."""
        if second.toggled:
            return self._toggled(number, up_to, first, second)
        arms = (second, first) if swapped else (first, second)
        what = (
            f"A/A pair {number} of {up_to}" if kind == "aa" else f"pair {number} of up to {up_to}"
        )
        places = [
            self.directory / f"{kind}-{number:02d}-{'ab'[position]}-{arm.name}"
            for position, arm in enumerate(arms)
        ]
        _forget_old_half(places)
        base, own = places[swapped], places[not swapped]
        turns, others = [*zip(arms, places, (0, 1))], list[Turn]()
        if kind == "pair" and self.beside is not None and not all(map(is_finished, places)):
            order = self.rounds[number - 1]
            others = self._others(number, first, base)
            turns = sorted([*turns, *others], key=lambda turn: order.index(turn[0].name))
        server = self._server([arm for arm, _, _ in turns], places)
        measured: dict[Path, Measurement] = {}
        waiting, done = turns, self.num_done
        while waiting:
            (arm, place, position), *waiting = waiting
            plan = Plan(
                warmup_steps=self.plan.warmup_steps,
                steps=self.plan.steps,
                timeout_s=self.timeout_of(self.plan.timeout_s),
                pair=number,
                position=position,
            )
            try:
                measured[place] = self._trial(place, arm, plan, f"{what}: {arm.name}", server)
            except CommandFailed:
                if place in places:
                    raise
                self.failed.add(arm.name)
            finally:
                if server is not None and self.servers.given_up is not None:
                    server = None
                    if any(each != place and is_finished(each) for _, each, _ in turns):
                        _forget(turns, first)  # a fork beside a fresh process seems to start sooner
                        waiting = [turn for turn in turns if turn[0].name not in self.failed]
            self.num_done = done + sum(map(is_finished, places))
            self._share(first, base, others)
        return measured[base], measured[own]

    def _measures_again(self, number: int, pair: Pair, verdict: Verdict, num_new: int) -> bool:
        """Set the pair aside where it is uneven, not too many were, and there is time for another."""
        done = len({each.name[:8] for each in self.directory.glob("uneven-*")})
        if self.beside is not None or done >= MOST_UNEVEN or not is_uneven(pair):
            return False
        if self.stop_now(verdict, num_new):
            return False
        for place in sorted(self.directory.glob(f"pair-{number:02d}-*")):
            place.rename(place.with_name(f"uneven-{done + 1}-{place.name}"))
        self.num_done -= 2
        return True

    def _on_uneven_pairs(self) -> tuple[str, ...]:
        """What was set aside, for the reasons of a verdict."""
        said = []
        for number in range(1, MOST_UNEVEN + 1):
            places = sorted(self.directory.glob(f"uneven-{number}-*/{MEASUREMENT_FILE}"))
            found = [load_measurement(place) for place in places]
            if len(found) == 2:
                took = " and ".join(
                    f"{100 * (each.other_programs or 0):.0f} % beside `{each.arm}`"
                    for each in found
                )
                said.append(
                    f"Pair {found[0].plan.pair} was measured again, whatever it had shown: other programs took {took} "
                    "of the CPUs."
                )
        return tuple(said)

    def _others(self, number: int, baseline: Arm, base: Path) -> list[Turn]:
        """The candidates of this round beside the session's own. base: where its process of the baseline lies."""
        assert self.beside is not None
        found = []
        for directory, arm, _ in self.beside.others:
            drawn = _is_before(arm, baseline, self.rounds[number - 1]) and not is_finished(base)
            position = int(not _ran_first(directory, number, baseline, arm, drawn=drawn))
            place = directory / f"pair-{number:02d}-{'ab'[position]}-{arm.name}"
            _forget_old_half((place, _beside(place, position, baseline)))
            if arm.name not in self.failed:
                found.append((arm, place, position))
        return found

    def _share(self, baseline: Arm, base: Path, others: Sequence[Turn]) -> None:
        """Put the process of the baseline into each comparison whose candidate has had its turn."""
        for _, place, position in others:
            shared = _beside(place, position, baseline) / MEASUREMENT_FILE
            if is_finished(base) and is_finished(place) and not shared.exists():
                measured = load_measurement(base / MEASUREMENT_FILE)
                plan = replace(measured.plan, position=1 - position)
                shared.parent.mkdir(exist_ok=True)
                store_measurement(shared, replace(measured, plan=plan))

    def _toggled(self, number: int, up_to: int, baseline: Arm, candidate: Arm) -> Pair:
        """One process, and its two halves."""
        place = self.directory / f"pair-{number:02d}-a-{candidate.name}"
        timeout_s = self.timeout_of(self.plan.timeout_s)
        plan = Plan(self.plan.warmup_steps, self.plan.steps, timeout_s, pair=number)
        schedule = toggle_schedule(
            candidate.toggled,
            plan,
            self.plan.block_steps,
            process_seed(self.plan.seed, place.name),
            self.settling,
        )
        what = f"process {number} of up to {up_to}: {candidate.name}, on and off"
        server = self._server([candidate], [place])
        measured = self._trial(place, candidate, plan, what, server, schedule)
        self.num_done += 2
        self.off_halves.append(off_halves(measured, schedule))
        return halves(measured, schedule, baseline.name)

    def _server(self, arms: Sequence[Arm], places: Sequence[Path]) -> ForkServer | None:
        """What the processes of a pair are forked from."""
        if all(map(is_finished, places)):
            return None
        environment = partial(server_environment, arms[0], cache=self.cache)
        timeout_s = self.timeout_of(READY_TIMEOUT_S)
        return self.servers.for_pair(arms, environment, timeout_s)

    def _trial(
        self,
        place: Path,
        arm: Arm,
        plan: Plan,
        what: str,
        server: ForkServer | None = None,
        schedule: ToggleSchedule | None = None,
    ) -> Measurement:
        ratio = None if self.interim is None else self.interim.ratio
        shown = what if ratio is None else f"{what} (so far {ratio:.2f}x)"
        if not is_finished(place):
            self.progress(shown, self.num_done, self.num_trials, "")

        def tick(seconds: float) -> None:
            self.progress(shown, self.num_done, self.num_trials, f"{seconds:.0f} s")

        run = partial(
            trial,
            arm,
            place,
            plan=plan,
            seed=process_seed(self.plan.seed, place.name),
            cache=self.cache,
            workdir=self.workdir,
            what=what,
            tick=tick,
            schedule=schedule,
        )
        if server is not None:
            try:
                return run(server=server)
            except CommandFailed as error:  # perhaps only since it was forked
                if self.was_cut_off(error):
                    raise
                self.servers.give_up(error.what)
        return run()


def is_uneven(pair: Pair) -> bool:
    """Whether other programs ran beside one process of it alone, so that it compares hours, not arms.

    Their load alone decides, never what was timed, and it makes no difference which of both had it: pairs of equal code
    stay as likely to show one sign as the other.
    """
    shares = [each.other_programs for each in pair]
    known = [share for share in shares if share is not None]
    return len(known) == 2 and min(known) <= QUIET and max(known) >= DISTURBED


def _is_before(one: Arm, other: Arm, order: Sequence[str]) -> bool:
    return order.index(one.name) < order.index(other.name)


def _beside(place: Path, position: int, other: Arm) -> Path:
    """Where the other process of a pair lies. position: that of the one in `place`."""
    return place.with_name(f"{place.name[: len('pair-00-')]}{'ba'[position]}-{other.name}")


def _forget_old_half(places: Sequence[Path]) -> None:
    """Have a pair made anew of which one half was made long ago: two that are far apart show what the machine did meanwhile."""
    made = [place / MEASUREMENT_FILE for place in places if is_finished(place)]
    if len(made) == 1 < len(places) and time.time() - made[0].stat().st_mtime > HALF_KEPT_S:
        made[0].unlink()


def _forget(turns: Sequence[Turn], baseline: Arm) -> None:
    """Have all of them made anew, with the process of the baseline that they share."""
    for _, place, position in turns:
        for each in (place, _beside(place, position, baseline)):
            (each / MEASUREMENT_FILE).unlink(missing_ok=True)


def _ran_first(directory: Path, number: int, baseline: Arm, candidate: Arm, *, drawn: bool) -> bool:
    """Whether the candidate is the first of this pair: as it was begun, be it in a round of several, else as `drawn`."""
    pair = f"pair-{number:02d}"
    begun = {place.name for place in directory.glob(f"{pair}-*") if is_finished(place)}
    first = {f"{pair}-a-{candidate.name}", f"{pair}-b-{baseline.name}"}
    return not begun.isdisjoint(first) or (drawn and not begun)


def _refuse_bad_arms(baseline: Arm, candidate: Arm, plan: TrialPlan) -> None:
    if baseline.name == candidate.name:
        raise UsageError(f"both arms are named {baseline.name!r}", do="give them different names")
    if (baseline.records == "none") != (candidate.records == "none"):
        do = "measure both in the same way"
        raise UsageError("one arm is measured in steps and the other as a whole process", do=do)
    for arm in (baseline, candidate):
        refuse_missing(arm)
        if arm.records == "step_clock" and plan.warmup_steps < 1:
            raise UsageError(
                "a script that is clocked from inside needs at least 1 warm-up step: "
                "its first step includes its start-up"
            )


def _store_plan(
    directory: Path,
    baseline: Arm,
    candidate: Arm,
    plan: TrialPlan,
    workdir: Workdir | None,
) -> None:
    """Write plan.json, or check that the one there is of this very session.

    The time-out is not part of the digest: giving a session more time is a reason to continue it. Nor are variables that
    change speed, which older plans do not have.
    """
    content: dict[str, object] = {
        "schema": PLAN_SCHEMA,
        "hotloop": __version__,
        "baseline": baseline.to_mapping(),
        "candidate": candidate.to_mapping(),
        "plan": asdict(plan),
        "workdir": workdir and workdir.digest,
    }
    unhurried = {**content, "plan": {**asdict(plan), "timeout_s": None}}
    text = json.dumps(unhurried, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    variables = speed_variables()
    variables.pop("TORCHINDUCTOR_CACHE_DIR", None)  # trials have one of their own
    path = directory / "plan.json"
    if path.exists():
        try:
            stored = parse_object(read_bytes(path))
        except (OSError, ValueError):
            stored = {}
        then = stored.get("variables")
        then = then if isinstance(then, dict) else variables
        others = [each for each in {**then, **variables} if then.get(each) != variables.get(each)]
        if stored.get("digest") != digest or others:
            raise UsageError(
                f"this directory holds another comparison{_difference(stored, content, others)}",
                where=str(directory),
                do="choose another directory, or remove this one",
            )
    elif any(directory.glob("pair-*")) or any(directory.glob("aa-*")):
        do = "choose another directory, or remove this one"
        raise UsageError("this directory holds trials but no plan", where=str(directory), do=do)
    else:
        write_json(path, {**content, "variables": variables, "digest": digest})


def _difference(
    stored: dict[str, object], content: dict[str, object], variables: Sequence[str]
) -> str:
    keys = [key for key in content if stored.get(key) != json.loads(json.dumps(content[key]))]
    names = {"workdir": "files of the working directory", "hotloop": "version of hotloop"}
    parts = [*(names.get(key, key) for key in keys), *(f"value of {each}" for each in variables)]
    return f" (other {' and '.join(parts)})" if parts else ""


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold the session's lock file; the kernel lets go of it however this process ends."""
    path = directory / SESSION_MARK
    with storing(path, "write"):
        descriptor = lock_file(path)
    if descriptor is None:
        raise UsageError(
            "another hotloop is measuring in this directory",
            where=str(directory),
            do="wait for it, or choose another directory",
        )
    try:
        yield
    finally:
        os.close(descriptor)
