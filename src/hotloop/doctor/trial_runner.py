"""The trials of one doctor's run: one plan and one budget for all."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

from hotloop.core.census import Census
from hotloop.core.connections import NO_NETWORK, Network
from hotloop.core.errors import CommandFailed, EnvironmentFailed, lost_device
from hotloop.core.judgement import Parity, ParityClass
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.progress import ShowTrials, TrialProgress
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fix_status import with_doubts
from hotloop.doctor.fixes import Fix
from hotloop.doctor.starting_point import isolation_of, network_of, start_of
from hotloop.doctor.training_loader import variables_for
from hotloop.doctor.trial_costs import (
    AFTER_EPOCH,
    FASTER_S,
    LATE_S,
    LEAST_COUNTED_S,
    LEAST_STEPS,
    LOSS_RUNS,
    MARGIN,
    Costs,
    TimeLeft,
)
from hotloop.doctor.trial_reports import refuse_writes
from hotloop.judge.looks import LOOKS
from hotloop.judge.worth import STEPS
from hotloop.trial.arm import Arm
from hotloop.trial.forking import ForkServers
from hotloop.trial.measure import Workdir, is_finished, server_environment, trial
from hotloop.trial.plan import TrialPlan
from hotloop.trial.process import TIMED_OUT
from hotloop.trial.sandbox.layered import Layered, remove_tree
from hotloop.trial.session import Beside, SessionResult, compare_arms
from hotloop.trial.toggling import block_steps_for, counted_in_blocks

BASELINE = "baseline"
INTERVALS = 4
"""Of a fix that does not act in every step, which are counted at least: what it leaves for later has to be in the time."""


class OutOfBudget(CommandFailed):
    """A process was not begun, or ended, because the budget is used up: nothing is known of what it would have shown."""


@dataclass
class TrialRunner:
    """Runs trials of the command, unchanged and with fixes, within one budget of time."""

    baseline: Arm
    plan: TrialPlan
    costs: Costs
    directory: Path
    """The doctor's; trials go into `trials/`."""
    loss_steps: int
    num_steps: int
    """Steps of the command, as far as it was seen to make any."""
    total_steps: int | None = None
    """Steps that the command makes in all, where that is known."""
    most_children: int | None = None
    """Processes that make its batches; `None` where a step may use up what was made during others."""
    learnt_steps: int | None = None
    """After which its loss was seen to have fallen by most of what it falls."""
    census: Census | None = None
    """What the diagnosed run used: where its loaders were made, in which files."""
    examined_at: float = math.inf
    """When the diagnosed run was started."""
    budget_s: float | None = None
    grace_s: float = 0.0
    """By which the budget may be exceeded for pairs that are about to prove a gain."""
    show: ShowTrials = lambda now: None
    now: TrialProgress = field(default_factory=TrialProgress)
    warn: Callable[[str], None] = lambda text: None
    started: float = field(default_factory=lambda: time.monotonic())
    servers: ForkServers = field(default_factory=ForkServers)
    """What timed processes are forked from."""
    listing: Workdir | None = field(init=False)
    """What trials start from."""
    network: Network = NO_NETWORK
    """What trials may reach."""
    first_costs: Costs = field(init=False)
    """What was expected before any trial."""
    at_once: bool = False
    """The first pairs of a fix are of its patched copy, and are its proof; else they choose what fresh ones confirm."""
    must_confirm: bool = False
    """A fix was faster: the pairs that confirm it have to fit after whatever is tried now."""
    most_pairs: int | None = None
    """Of each comparison, where the user asked for no more."""
    unpaid_s: float = 0.0
    """The most that `pays_for` refused: a later call with a larger budget begins that."""
    _besides_s: float = 0.0
    """What a trial takes beside its process."""
    _has_run: bool = False
    """A trial ended well in this call, or one before."""

    def __post_init__(self) -> None:
        self.first_costs = self.costs
        workdir = None if self.plan.in_place else self.baseline.workdir
        self.listing = (
            None if workdir is None else start_of(self.directory, workdir, network=self.network)
        )

    @property
    def left_s(self) -> float:
        """What is left of the budget; infinite without one."""
        if self.budget_s is None:
            return float("inf")
        return self.budget_s - self.spent_s

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.started

    def plan_for(self, fixes: Sequence[Fix], *, times: int = 1) -> TrialPlan | None:
        """With a warm-up after which all of them show; `None` where the run is too short for that.

        times: as many counted steps as usual.
        """
        warmup = max([self.plan.warmup_steps, *(fix.warmup_steps for fix in fixes)])
        queue = max((fix.queue for fix in fixes), key=lambda each: each.length)
        # By what was expected at first: the same in a call that goes on.
        faster_s = self.first_costs.step_s / max(fix.ratio_at_most for fix in fixes)
        wanted = max(self.plan.steps, min(math.ceil(FASTER_S / max(faster_s, 1e-6)), STEPS[1]))
        wanted = max(wanted, INTERVALS * max(fix.acts_every for fix in fixes)) * times
        at_most = self.num_steps - max(warmup, queue.warmup_steps)
        if (counted := queue.counted(wanted, at_most)) is not None:
            warmup = max(warmup, queue.warmup_steps)
        else:  # the queue's length is known at each step, and what it lends is taken off
            counted = self.num_steps - warmup
        if counted < min(self.plan.steps, LEAST_STEPS):
            return None
        longer = replace(self.plan, warmup_steps=warmup, steps=counted)
        more = self.costs.process_s(longer.num_steps) / self.costs.process_s(self.plan.num_steps)
        return replace(longer, timeout_s=self.plan.timeout_s * max(more, 1.0))

    def toggled_plan(self, fixes: Sequence[Fix]) -> TrialPlan | None:
        """For processes in which fixes go on and off, as many steps of each as `plan_for` counts, or fewer.

        `None` where they are too few for blocks, or not all steps tell.
        """
        plan = self.plan_for(fixes)
        # One that acts in each step, or in every so many-th, brings as much in each block.
        in_blocks = (fix.technique.over == "steady" or fix.acts_every for fix in fixes)
        if plan is None or any(fix.warmup_steps for fix in fixes) or not all(in_blocks):
            return None
        steps = min(2 * plan.steps, self.num_steps - plan.warmup_steps)
        block_steps = block_steps_for(steps, max(fix.acts_every for fix in fixes))
        if block_steps is None:
            return None
        return replace(plan, steps=counted_in_blocks(steps, block_steps), block_steps=block_steps)

    def needed_s(
        self,
        pairs: int,
        *,
        losses: float = 0,
        slower_start_s: float = 0.0,
        reserved: bool = True,
        plan: TrialPlan | None = None,
        place: str | None = None,
        costs: Costs | None = None,
    ) -> float:
        """Seconds that so many pairs and runs for losses are expected to take.

        reserved: with the confirmation on fresh pairs after them. slower_start_s: of a process with the fix than
        of one without. plan: of its pairs, where it is another. place: of these pairs; what is finished there, or
        of a confirmation, takes no time again. costs: others than the last process had.
        """
        plan, costs = plan or self.plan, costs or self.costs
        each = 1 if plan.block_steps else 2
        todo = max(pairs * each - self._num_finished(place), 0) if place else pairs * each
        num_pairs = todo / each + (self.confirming_pairs(plan) if reserved else 0.0)
        needed = num_pairs * (costs.pair_s(plan) + slower_start_s)
        return needed + losses * costs.process_s(self.loss_steps)

    def confirming_pairs(self, plan: TrialPlan) -> float:
        """Pairs of such a plan that a confirmation still takes up to its first look; half a pair is one process."""
        each = 1 if plan.block_steps else 2
        return max(LOOKS[0] - self._num_finished("together-*") / each, 0.0)

    def pays_for(self, seconds: float) -> bool:
        """Whether so much is left; what is not begun for want of it is in `unpaid_s`."""
        if seconds <= self.left_s:
            return True
        self.unpaid_s = max(self.unpaid_s, seconds)
        return False

    def was_cut_off(self, error: CommandFailed) -> bool:
        """Whether the budget ended a process, not the patience of the plan: more time may see it end by itself."""
        return error.returncode == TIMED_OUT and self.left_s <= 0

    def _out_of_budget(self, arm: str) -> OutOfBudget:
        spent = f"{self.spent_s:.0f} s of {self.budget_s or 0:.0f} s used"
        return OutOfBudget(f"out of budget: {spent}", returncode=TIMED_OUT, arm=arm)

    def extend(self, needed_s: float) -> bool:
        """Make the budget hold so much more, within the grace; whether it does."""
        more_s = max(needed_s - self.left_s, 0.0)
        if self.budget_s is None or more_s > self.grace_s:
            return more_s == 0.0
        if more_s:
            self.budget_s += more_s
            self.grace_s -= more_s
            self.warn(
                f"about {math.ceil(more_s)} s more than planned are taken: every pair so far shows a large gain, "
                "and the next ones may prove it"
            )
        return True

    def fit(self, needed_s: Callable[[], float], *, least_steps: int = LEAST_STEPS) -> None:
        """Counts fewer steps where else what is needed, with a margin, does not fit into what is left.

        Not so few that they take less than half of what starting does: that saves little and shows less. Nor fewer than
        `STEPS[0]`, unless these are slow.
        """
        costs = self.first_costs
        shown = max(
            math.ceil(0.5 * costs.start_s / max(costs.step_s, 1e-6)),
            min(STEPS[0], math.ceil(LEAST_COUNTED_S / max(costs.step_s, 1e-6))),
        )
        least = max(least_steps, shown)
        while MARGIN * needed_s() > self.left_s and self.plan.steps > least:
            self.plan = replace(self.plan, steps=max(self.plan.steps * 3 // 4, least))

    def _num_finished(self, place: str) -> int:
        """Processes of pairs; of several places that match, where there are most."""
        found = (self.directory / TRIALS).glob(place)
        return max((sum(map(is_finished, each.glob("pair-*"))) for each in found), default=0)

    def with_fixes(
        self,
        name: str,
        fixes: Sequence[Fix],
        *,
        edited: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Arm:
        """fixes: put into the running process. edited: files of the script that hold something else."""
        live = {fix.name: fix.value for fix in fixes}
        env = dict(self.baseline.env)
        if any(fix.technique.of_loader for fix in fixes):
            env |= variables_for(self.census, self.baseline.workdir, edited)
        return replace(self.baseline, name=name, fixes=live, env=env, edited=edited)

    def place_of(self, name: str) -> Path:
        return self.directory / TRIALS / name

    def loss_steps_of(self, fixes: Sequence[Fix]) -> int:
        """Steps whose losses show what these fixes do, as far as the command makes so many."""
        shown = max(max(fix.warmup_steps, fix.acts_every) for fix in fixes)
        if not shown:
            return self.loss_steps
        return min(max(self.loss_steps, shown + AFTER_EPOCH), self.num_steps)

    def losses_of(self, arm: Arm, steps: int, number: int = 1) -> tuple[Measurement, Path]:
        """A run of `arm` whose random numbers are those of every other such run, and where it lies.

        Raises `CommandFailed`, and `OutOfBudget` where it does not fit into what is left; the run's place is then found
        by `losses_place`.
        """
        arm = replace(arm, comparable=True)
        place = self.losses_place(arm, steps, number)
        if not is_finished(place) and not self.pays_for(self.costs.process_s(steps)):
            raise self._out_of_budget(arm.name)
        what = f"the losses of `{arm.name}`"
        more = max(steps / self.plan.num_steps, 1.0)
        timeout_s = self._timeout_of(self.plan.timeout_s * more)
        try:
            measured = self._run(arm, place, Plan(0, steps, timeout_s), what)
        except CommandFailed as error:
            if self.was_cut_off(error):
                raise self._out_of_budget(arm.name) from None
            self._refuse_broken(error)
            raise
        self._has_run = True
        return measured, place

    def first_losses(
        self, baseline: Arm, arm: Arm, fixes: Sequence[Fix]
    ) -> tuple[list[Measurement], Measurement] | None:
        """The runs of `baseline` for losses that were made, and that of `arm`; `None` where either has none."""
        steps = self.loss_steps_of(fixes)
        numbers = range(1, LOSS_RUNS + 1)
        made = [n for n in numbers if is_finished(self.losses_place(baseline, steps, n))]
        if not made or not is_finished(self.losses_place(arm, steps)):
            return None
        as_it_is = [self.losses_of(baseline, steps, number)[0] for number in made]
        return as_it_is, self.losses_of(arm, steps)[0]

    def losses_place(self, arm: Arm, steps: int, number: int = 1) -> Path:
        """Named by all that decides them: a run of something else is never taken for it."""
        arm = replace(arm, comparable=True)
        return self.place_of(arm.name) / f"losses-{self._digest(arm, steps)}-{number}"

    def correct_costs(self, measured: Measurement) -> None:
        """By a process of the unchanged command."""
        besides_s = self._besides_s + self.servers.own_s
        self.costs = self.costs.corrected(measured, besides_s=besides_s)

    def warm_up(self) -> None:
        """Import what timed processes are forked with: then it is known how much sooner they start."""
        if not isinstance(self.listing, Layered):
            return
        cache = self.directory / TRIALS / "cache"
        environment = partial(server_environment, self.baseline, cache=cache)
        server = self.servers.ready([self.baseline], environment)
        if server is not None:
            saved_s = server.warm_up_s - self.servers.own_s
            self.costs = self.costs.sooner(saved_s)
            self.first_costs = self.first_costs.sooner(saved_s)

    def compare(
        self,
        baseline: Arm,
        candidate: Arm,
        *,
        fixes: Sequence[Fix],
        place: str,
        parity_class: ParityClass,
        parity: Parity | None,
        pairs_now: int | None = None,
        slower_start_s: float = 0.0,
        reserved: bool = True,
        follows_s: float = 0.0,
        toggled: Collection[str] = (),
        times: int = 1,
        alpha: Sequence[float] | None = None,
        beside: Beside | None = None,
    ) -> SessionResult:
        """Interleaved pairs of `candidate` with `baseline`; raises what `compare_arms` raises, and `refuse_writes`.

        fixes: those of the candidate, which `plan_for` has a plan for. toggled: the ones that make the
        difference between the arms, where they can go on and off within a process; where there are steps
        enough for that, a pair is one process. times: see `plan_for`; then a pair is never one process.
        alpha: error of each look. follows_s: what has to follow takes, beside a confirmation.
        """
        shown = self.toggled_plan(fixes) if toggled and times == 1 else None
        if shown is not None:
            candidate = replace(candidate, toggled=tuple(sorted(toggled)))
        else:
            shown = self.plan_for(fixes, times=times)
        assert shown is not None
        plan = self.planned_at(place, shown)
        if beside is not None:  # in a round
            slower_start_s += len(beside.others) * self.costs.process_s(plan.num_steps)
        time_left = TimeLeft(
            self, shown, slower_start_s=slower_start_s, reserved=reserved, follows_s=follows_s
        )
        directory = self.place_of(place)
        if self.most_pairs is not None:
            pairs_now = min(pairs_now or self.most_pairs, self.most_pairs)
        try:
            result = compare_arms(
                baseline,
                candidate,
                directory=directory,
                plan=plan,
                parity_class=parity_class,
                parity=parity,
                over="all" if any(fix.technique.over == "all" for fix in fixes) else "steady",
                alpha=alpha,
                pairs_now=pairs_now,
                beside=beside,
                cache=self.directory / TRIALS / "cache",
                goes_on=time_left.for_more_pairs,
                stop_now=time_left.is_up,
                timeout_of=self._timeout_of,
                was_cut_off=self.was_cut_off,
                workdir=self.listing,
                servers=self.servers,
                progress=lambda what, done, total, note: self.report(process=what, note=note),
                on_pair=lambda pair: self.report(pair=pair, process="", note=""),
            )
        except CommandFailed as error:
            refuse_writes(directory, baseline.name)  # then that is why it failed
            if self.was_cut_off(error):
                raise self._out_of_budget(candidate.name) from None
            self._refuse_broken(error)
            raise
        self._has_run = True
        refuse_writes(directory, baseline.name)
        if (
            baseline.name == BASELINE and not candidate.toggled
        ):  # what it takes now, beside whatever else the machine does
            self.correct_costs(result.pairs[-1][0])
        return with_doubts(result, fixes)

    def _refuse_broken(self, error: CommandFailed) -> None:
        """Raises `EnvironmentFailed` where the command as given, which has run in a trial, does not in two processes running.

        error: of that command, or of any other that says that a GPU failed; else nothing is asked.
        """
        num = 1 if error.arm == BASELINE else 2 if lost_device(error.do or "") else 0
        plan = Plan(0, min(LEAST_STEPS, self.num_steps), self._timeout_of(self.plan.timeout_s))
        for _ in range(num if self._has_run else 0):
            place = Path(tempfile.mkdtemp(prefix="again-", dir=self.directory / TRIALS))
            try:
                self._run(self.baseline, place, plan, "the command as given, again")
                return
            except CommandFailed as again:
                if self.was_cut_off(again):
                    return
                error = again
            finally:
                remove_tree(place)
        if num and self._has_run:
            look = "look at `nvidia-smi`: " * lost_device(error.do or "")
            raise EnvironmentFailed(
                f"the command as given has run, and fails now in two processes running: {error.what.partition(': ')[2]}",
                where=str(self.directory),
                do=f"{error.do}\n  {look}once it runs again, trials go on here: those that are finished are kept",
            )

    def planned_at(self, place: str, shown: TrialPlan) -> TrialPlan:
        """The plan of pairs that lie there."""
        # Another order for each comparison, the same one when it is continued.
        return replace(shown, looks=LOOKS, seed=crc32(place.encode()))

    def ledger(
        self,
        fixes: Sequence[TriedFix],
        kept: Sequence[str],
        together: SessionResult | None,
        **rest: Any,
    ) -> Ledger:
        """What came of this call. together: pairs of all that is kept. rest: other fields of it."""
        plan = None if together is None else together.pairs[0][1].plan
        network = network_of(self.listing)
        return Ledger(
            command=self.baseline.command,
            fixes=tuple(fixes),
            kept=tuple(kept),
            together=None if together is None else together.verdict,
            warmup_steps=self.plan.warmup_steps,
            steps=self.plan.steps,
            wall_s=self.spent_s,
            budget_s=self.budget_s,
            together_warmup_steps=None if plan is None else plan.warmup_steps,
            together_steps=None if plan is None else plan.steps,
            isolation=isolation_of(self.listing),
            network=network.unlimited or bool(network.hosts),
            network_hosts=network.hosts,
            **rest,
        )

    def report(self, **changes: Any) -> None:
        """Show what changed: fields of `TrialProgress`."""
        self.now = replace(self.now, **changes)
        self.show(self.now)

    def _timeout_of(self, timeout_s: float) -> float:
        """No process may take more than what is left, however patient its plan is."""
        return min(timeout_s, max(self.left_s + LATE_S, 0.0))

    def _run(self, arm: Arm, place: Path, plan: Plan, what: str) -> Measurement:
        is_new, begun = not is_finished(place), time.monotonic()
        if is_new:
            self.report(pair=None, process=what, note="")
        measured = trial(
            arm,
            place,
            plan=plan,
            seed=place.name,
            cache=self.directory / TRIALS / "cache",
            workdir=self.listing,
            what=what,
            tick=lambda seconds: self.report(note=f"{seconds:.0f} s"),
        )
        if is_new and measured.process_s is not None:
            self._besides_s = max(time.monotonic() - begun - measured.process_s, 0.0)
        return measured

    def _digest(self, arm: Arm, steps: int) -> str:
        deciding = [arm.to_mapping(), steps, self.listing and self.listing.digest]
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:8]
