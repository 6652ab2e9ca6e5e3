"""Which values are kept: each beside the command as given, then one option on top of another, then the whole anew.

```
screened   every value, the likeliest option for the time that it takes first: two pairs against the command as given. What makes a round of its own
           comes before: the next rounds are screened on top of what it left
judged     of each option what looked best, on top of what is kept: its losses where they must stay what they are, and
           pairs up to a planned look that decides. What is known to depend on a value that was kept is screened once more beside it
together   all that is kept against the command as given, on pairs of their own: the number to believe. What was alone in the
           first round, and is alone in what is kept, was chosen by nobody: its own pairs are that number
shown      the best of what changes the training and was not accepted, up to a look, with what the budget left
```
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hotloop.core.child import LONGEST_FIRST
from hotloop.core.errors import CommandFailed, first_line
from hotloop.core.judgement import Diagnosis, Parity, Status, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.doctor.budget import gain_per_second, warn_of_little
from hotloop.doctor.fix_costs import with_costs, with_memory
from hotloop.doctor.fix_stack import ERROR_ON_TOP, LEARNS
from hotloop.doctor.fix_status import judged, longer, may_decide, showed, status_of, useless
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import (
    FIRST_PAIRS,
    LEAST_STEPS,
    MARGIN,
    MORE_PAIRS,
    SLACK,
    budget_text,
)
from hotloop.doctor.trial_reports import WritesOutside
from hotloop.doctor.trial_runner import BASELINE, OutOfBudget
from hotloop.judge.compare import looks_faster
from hotloop.judge.looks import LOOKS, divided_levels
from hotloop.trial.process import TIMED_OUT
from hotloop.trial.session import SessionResult
from hotloop.tune.options import Option
from hotloop.tune.runner import OptionRunner, arm_name
from hotloop.tune.value_trials import (
    NO_TIME,
    OTHERWISE,
    STARTS,
    ValueTrials,
    changes_training,
    how_failed,
    start_s_of,
)

OTHER_SPEED = 1.5
"""Of the command as given: beyond it the machine is not what it was."""
NEARLY = 1.02
"""Times slower than the best that a smaller batch may look."""
MOST_JUDGED = 2
"""Values of one option."""
BATCH = "batch"
DEPEND = (("checkpointing", BATCH), ("compile", BATCH), ("compile", "dynamic_padding"), ("precision", "fused_optimizer"))  # fmt: skip
"""Techniques whose gain depends on each other, and on the size of batches."""
HOPELESS = 0.9
"""A ratio that no such dependence is expected to make up for."""


class Campaign(ValueTrials):
    """All trials of one call of `hotloop tune`."""

    def __init__(
        self, runner: OptionRunner, rounds: Sequence[Sequence[Fix]], again: Callable[[str], str]
    ) -> None:
        super().__init__(runner, rounds, again)
        self.screened: dict[str, SessionResult] = {}
        self._learnt: set[str] = set()
        """Names of those whose losses were compared."""
        self._on_top: set[str] = set()
        """Names of those that were screened on top of others."""
        self._came_through: str | None = None
        """What all that is kept was soaked with."""
        self._proof: SessionResult | None = None
        """Of a value that was kept first, against the command as given."""

    @staticmethod
    def planned(num_values: int, num_options: int) -> tuple[int, int]:
        return FIRST_PAIRS * num_values + LOOKS[0] * (1 + min(num_options, 2)), 1 + num_options

    def all(self) -> Ledger:
        self._check_budget()
        for first in self.values[:1]:
            warn_of_little(self.runner, self.proof_s(first), f"`{first.name}`")
        for values in self.rounds:
            now = self.runner.with_fixes("values", self.stack).command
            asked = [each for each in values if each.value[0].changes(each.value[1], now)]
            for value in tuple(asked):
                self._caught(value, self._screen)
                asked += self._with_less_memory(value)
            for key in dict.fromkeys(each.value[0].key for each in asked):
                asked += self._larger(key)
            ranked = [each for each in self._ranked() if each in asked]
            before = len(self.stack)
            for key in dict.fromkeys(each.value[0].key for each in ranked):
                self._judge_option(key)
            for value in self._dependent(ranked, self.stack[before:]):
                self._caught(value, self._screen)
                self._judge_option(value.value[0].key)
        together = self._confirmed()
        if not self._soaked():
            together = self._confirmed()
        for key in dict.fromkeys(value.value[0].key for value in self._ranked()):
            shown = [v for v in self._ranked(key) if self.tried[v.name].status == "what_if"]
            if shown and self._pays(LOOKS[0], self._place(shown[0])):
                self._caught(shown[0], self._show)
        return self._ledger(together)

    def _ranked(self, key: str = "") -> list[Fix]:
        """The values that were screened, of one option or all, the fastest first."""
        ours = [each for each in self.values if key in ("", each.value[0].key)]
        return sorted((v for v in ours if v.name in self.screened), key=lambda v: -self._ratio(v))

    def _screen(self, value: Fix) -> None:
        place = f"{self._place(value)}-{'?' * 16}"
        is_begun = self.runner.needed_s(1, reserved=False, place=place) == 0
        if not is_begun and (why := self.runner.reason_too_large([*self.stack, value])):
            return self._tell(value, "not_tried", why)
        # What looks faster so far has to be proven, and confirmed, with what is left.
        faster = [*filter(self._is_undecided, self._ranked())]
        waiting = 2 * LOOKS[0] - FIRST_PAIRS if faster else 0
        losses = self._num_losses(faster[0]) if faster else 0.0
        # The first takes what is left: what is measured counts in a later call.
        pairs = FIRST_PAIRS + waiting if self.tried else 1
        needed_s, left_s = self._needed_s(pairs, self._place(value), losses), self.runner.left_s
        if not self.runner.pays_for(needed_s):
            then = [f"prove {each.name}" for each in faster[:1]]
            then += ["confirm what is kept"] if self.runner.must_confirm else []
            what = "its first pairs" + (f" and those that {' and '.join(then)}" if then else "")
            left = f"{max(math.floor(left_s), 0)} s were left"
            why = f"{NO_TIME}: {what} take about {math.ceil(needed_s)} s, and {left}"
            return self._tell(value, "not_tried", why)
        parity = Parity("not_checked", value.technique.parity_class)
        result = self.runner.timed(self.stack, [*self.stack, value], parity, pairs_now=FIRST_PAIRS)
        if _has_other_work(value) and result.verdict.unit == "step":
            why = "how much work each of its steps is was not seen, so they cannot be compared with others"
            return self._tell(value, "stopped", why)
        self.screened[value.name] = result
        if self.stack:
            self._on_top.add(value.name)
        if self._is_ignored(value, result):
            why = "the script does not use it: every loss is the same to the bit"
            return self._tell(value, "not_applied", why, result)
        if useless(result.verdict):
            enough = result.verdict.num_pairs >= FIRST_PAIRS
            why = f"{'not tried further' if enough else NO_TIME}: {showed(result.verdict)}"
            return self._tell(value, "stopped", why, result)
        if changes_training(value) and not value.value[0].is_accepted:
            return self._show(value, result)
        return self._tell(value, "undecided", f"so far {showed(result.verdict)}", result)

    def _with_less_memory(self, value: Fix) -> list[Fix]:
        """What was screened in place of a value that failed for memory: it beside one technique after the other that saves some."""
        found: list[Fix] = []
        while value.name in self._too_little_memory:
            option, text = value.value
            command = self.runner.with_fixes("values", self.stack).command
            beside: tuple[Option, str] | None = option.saving(text, command)
            name = "" if beside is None else beside[0].label(beside[1])
            if beside is None or name in (each.name for each in self.values):
                break
            value = self._also(value, *beside)
            found.append(value)
        return found

    def _larger(self, key: str) -> list[Fix]:
        """What was screened beyond the largest batch of an option, as long as that looked fastest by more than what is called near."""
        found: list[Fix] = []
        while ranked := self._ranked(key):
            option, text = ranked[0].value
            next_best = max([1.0, *map(self._ratio, ranked[1:2])])
            further = option.further(text)
            names = [each.name for each in self.values]
            if (
                further is None
                or option.label(further) in names
                or self._ratio(ranked[0]) < NEARLY * next_best
            ):
                break
            found.append(self._also(ranked[0], option, further))
        return found

    def _dependent(self, screened: Sequence[Fix], kept: Sequence[Fix]) -> Iterator[Fix]:
        """The fastest value of each option whose gain depends on what was kept after it was screened, while the budget holds one."""
        best = {each.value[0].key: each for each in reversed(screened)}
        for value in best.values():
            settled = any(each.value[0].key == value.value[0].key for each in self.stack)
            is_asked = any(_depend(value, other) for other in kept)
            is_left = self.tried[value.name].status == "stopped" and self._ratio(value) >= HOPELESS
            if is_asked and is_left and not settled and self._pays(FIRST_PAIRS, self._place(value)):
                yield value

    def _also(self, value: Fix, option: Option, text: str) -> Fix:
        """Another value, screened behind this one."""
        parity = option.parity_class or "changes_training"
        technique = replace(value.technique, name=option.label(text), parity_class=parity)
        other = replace(value, technique=technique, value=(option, text))
        self.values.insert(self.values.index(value) + 1, other)
        self.runner.report(fixes=tuple(each.name for each in self.values))
        self._caught(other, self._screen)
        return other

    def _judge_option(self, key: str) -> None:
        ours = [*filter(self._is_undecided, self._ranked(key))]
        ours.sort(key=self._too_large)
        for number, value in enumerate(ours):
            kept = [each.name for each in self.stack if each.value[0].key == key]
            fitting = [v for v in ours[:number] if v.name not in self._too_little_memory]
            if kept or len(fitting) >= MOST_JUDGED:
                screened, faster = self.screened[value.name], [*kept, ours[0].name][0]
                looked = "looked faster"
                if self._ratio(value) > (self.screened[faster].verdict.ratio or 0.0):
                    looked = "looked nearly as fast, and its batch is smaller"
                looked += "" if kept else f", and {MOST_JUDGED} values of an option are judged"
                why = f"{showed(screened.verdict)}; {faster} {looked}"
                self._tell(value, "stopped", why, screened)
                continue
            self._caught(value, self._judge)
            others = self._with_less_memory(value)
            ours[number + 1 : number + 1] = [v for v in others if self._is_undecided(v)]
            if self.tried[value.name].status == "kept":
                self.stack.append(value)
                self.runner.must_confirm = True

    def _is_undecided(self, value: Fix) -> bool:
        return self.tried[value.name].status == "undecided"

    def _too_large(self, value: Fix) -> float:
        """Sorts the smallest batch that looked nearly as fast as the best first: a larger one takes more memory."""
        option, text = value.value
        best = self._ratio(self._ranked(option.key)[0])
        is_near = self._ratio(value) * NEARLY >= best
        batch = option.batch(text)
        return batch if batch is not None and is_near else math.inf

    def _ratio(self, value: Fix) -> float:
        return self.screened[value.name].verdict.ratio or 0.0

    def _tell_open(self, value: Fix) -> None:
        if value.name in self.tried and self.tried[value.name].status == "what_if":
            return  # measured as far as it has to be
        if (screened := self.screened.get(value.name)) is None:
            return super()._tell_open(value)
        compared = value.name in self._learnt or changes_training(value)
        why = "" if compared else ", and whether it learns the same is not known yet"
        self._tell(value, "stopped", f"{NO_TIME}: {showed(screened.verdict)}{why}", screened)

    def _judge(self, value: Fix) -> None:
        """On top of what is kept: what it learns, and pairs up to a look that decides."""
        runner, alone = self.runner, self.screened[value.name]
        # The first takes what is left: what is measured counts in a later call.
        if self.stack and not self._pays(LOOKS[0], self._place(value), self._num_losses(value)):
            return self._tell_open(value)
        parity = self._parity([value])
        self._learnt.add(value.name)
        if self.stack and not self._pays(1, self._place(value)):
            return self._tell_open(value)
        alone = replace(alone, verdict=replace(alone.verdict, parity=parity))
        if parity is not OTHERWISE and (learns := LEARNS.get(parity.result)):
            return self._tell(value, "rejected", f"it {learns}: {parity.reason}", alone)
        # Beside something truly faster, fresh pairs of the whole cannot show that another does nothing.
        alpha = divided_levels(LOOKS, self._num_on_top(), ERROR_ON_TOP) if self.stack else None
        follows_s = self._soak_s()
        result = runner.timed(
            self.stack, [*self.stack, value], parity, alpha=alpha, follows_s=follows_s
        )
        verdict = replace(result.verdict, parity=longer(parity, result))
        result = replace(result, verdict=verdict)
        if not self.stack:
            self._proof = result
        status, why = judged(result, value, is_live=False)
        if parity is OTHERWISE and verdict.outcome == "improved":
            status, why = "kept", "faster, and trains otherwise, as accepted"
            why += _unseen_work(value, verdict)
        if status == "undecided" and may_decide(verdict):
            status, why = "stopped", f"{why}; so far {showed(verdict)}"
        why = f"{NO_TIME}: {why}" if status == "stopped" else why
        is_alone = bool(self.stack) and value.name not in self._on_top
        why = f"on top of what was kept: {why}" if value.name in self._on_top else why
        self._tell(value, status, why, alone if is_alone else result)
        entry = replace(self.tried[value.name], added=verdict if is_alone else None)
        if parity is not OTHERWISE:
            # The first process with it compiled what all others found.
            timed = replace(result, pairs=(*alone.pairs[:1], *result.pairs))
            entry = with_costs(runner, value, entry, timed)
        self.tried[value.name] = with_memory(entry, result.pairs)

    def _num_on_top(self) -> int:
        """Values among which pairs choose on top of what is kept: all that were screened there, two of any other option."""
        alone = Counter(
            v.value[0].key for v in self.values if v.name in self.screened.keys() - self._on_top
        )
        return len(self._on_top) + sum(min(number, MOST_JUDGED) for number in alone.values())

    def _is_ignored(self, value: Fix, result: SessionResult) -> bool:
        """Whether more work in a step is the same work, as every loss shows."""
        if not _has_other_work(value):
            return False
        runner, (baseline, candidate) = self.runner, result.pairs[0]
        begins = {without.records[0].loss for without, _ in result.pairs}
        loaders = runner.census.loaders if runner.census is not None else ()
        is_counted = value.value[0].known.scales == "samples" and any(x.trains for x in loaders)
        if len(begins) > 1 and not is_counted:
            arm, needed_s = (
                runner.with_fixes(value.name, [value]),
                runner.costs.process_s(LEAST_STEPS),
            )
            if not runner.pays_for(2 * needed_s):
                return False
            # Without a seed of its own each process learns from other weights.
            baseline, _ = runner.losses_of(runner.baseline, LEAST_STEPS)
            candidate, _ = runner.losses_of(arm, LEAST_STEPS)
        losses = [[each.loss for each in run.records] for run in (baseline, candidate)]
        moves = len({each for each in losses[0] if each is not None}) > 1
        return moves and losses[0] == losses[1]

    def _show(self, value: Fix, result: SessionResult | None = None) -> None:
        """What changes the training and was not accepted, measured on top of what is kept, and not kept."""
        option, text = value.value
        why = f"changes what is trained; `{option.accepting(text)}` keeps it if it is proven"
        why += "; measured on top of what is kept" if self.stack else ""
        why += f": {showed(result.verdict)}" if result is not None else ""
        result = result or self.runner.timed(self.stack, [*self.stack, value], OTHERWISE)
        self._tell(value, "what_if", why + _unseen_work(value, result.verdict), result)

    def _confirmed(self) -> SessionResult | None:
        """Fresh pairs of all that is kept; nothing is where they do not show a gain."""
        if not self.stack:
            return None
        first = [*self.rounds[0]]
        is_proven = len(first) == 1 and self.stack[:1] == first
        if is_proven and len(self.stack) == 1:
            return self._proof  # no pairs chose it: it was all that was tried
        self.runner.must_confirm = False
        self.runner.report(together=True, current=None)
        result, why = None, f"not confirmed yet: {NO_TIME}"
        status: Status = "stopped"
        if self._pays(1, arm_name("together-" + "-".join(each.name for each in self.stack))):
            try:
                parity = self._parity(self.stack)
                result = self.runner.timed([], self.stack, parity, of="together-", reserved=False)
            except OutOfBudget:
                pass
            except CommandFailed as error:
                why = f"not confirmed yet: {how_failed(error)}"
                if error.arm != BASELINE:
                    status, why = "rejected", f"together it failed: {how_failed(error)}"
            except WritesOutside as error:
                status, why = "rejected", f"together it failed: {first_line(error)}"
        if result is not None:
            if result.verdict.outcome == "improved":
                return result
            status, why_not = status_of(result.verdict)
            if status == "stopped" or (status == "undecided" and may_decide(result.verdict)):
                status, why = "stopped", f"{why} ({showed(result.verdict)})"
            else:
                chosen = self.screened[self.stack[0].name].verdict
                why = f"fresh pairs do not confirm it: {why_not}"
                why += other_speed(chosen, result.verdict)
        if is_proven and result is None and status == "stopped":
            self.stack, others, result = first, self.stack[1:], self._proof
        else:
            self.stack, others = [], self.stack
        for value in others:
            entry = self.tried[value.name]
            self.tried[value.name] = replace(entry, status=status, why=f"{entry.why}, but {why}")
        return result

    def _soaked(self) -> bool:
        """Run what is kept once with an evaluation and a save, where it takes more memory than as given; whether all of it stays."""
        needing = [value for value in self.stack if value.value[0].soak(value.value[1])]
        if not needing:
            return True
        option, text = needing[0].value
        soak, arm = option.soak(text), self.runner.with_fixes("soak", self.stack)
        command, env = option.applied(arm.command, arm.env, soak.words)
        env[LONGEST_FIRST] = "1"
        status: Status = "kept"
        why = f"; soaked ({soak.said})"
        try:
            self.runner.losses_of(replace(arm, command=command, env=env), soak.steps)
            self._came_through = soak.said
        except OutOfBudget:
            self.runner.unpaid_s = max(self.runner.unpaid_s, self._soak_s())
            why = f"; not soaked: {NO_TIME}, and {soak.said} take about {self._soak_s():.0f} s"
        except CommandFailed as error:
            why = f"; not soaked: {how_failed(error)}"
            if error.returncode != TIMED_OUT:
                status = "rejected"
                why = f", but the soak failed ({soak.said}): {how_failed(error)}"
                self.stack = [value for value in self.stack if value not in needing]
        for value in needing:
            entry = self.tried[value.name]
            self.tried[value.name] = replace(entry, status=status, why=f"{entry.why}{why}")
        return status == "kept"

    def _soak_s(self) -> float:
        """Seconds of that process; 0 where there is none."""
        soaks = [soak for v in self.stack if (soak := v.value[0].soak(v.value[1]))]
        return self.runner.costs.process_s(soaks[0].steps) if soaks else 0.0

    def _needed_s(self, pairs: int, name: str, losses: float = 0.0) -> float:
        soak_s = self._soak_s() if self.runner.must_confirm else 0.0
        return super()._needed_s(pairs, name, losses) + soak_s

    def _ledger(self, together: SessionResult | None) -> Ledger:
        runner, final = self.runner, self.runner.with_fixes("final", self.stack)
        variables = {each.value[0].name for each in self.stack} & final.env.keys()
        words = [f"{name}={shlex.quote(final.env[name])}" for name in sorted(variables)]
        fixes = [self.tried[value.name] for value in self.values if value.name in self.tried]
        open_ = [each for each in fixes if NO_TIME in each.why]
        unpaid = [each for each in open_ if each.status != "kept"]  # else only its soak is
        pairs = FIRST_PAIRS * sum(each.verdict is None for each in unpaid)
        pairs += 2 * LOOKS[0] if unpaid else 0
        # What looks faster first: with that the next call proves it, or makes the pairs up to its next look.
        faster = [e.name for e in unpaid if e.verdict and (looks_faster(e.verdict) or _looked(e))]
        open_s = [self.proof_s(value) for value in self.values if value.name in faster]
        if any(map(_looked, unpaid)):
            open_s.append(runner.needed_s(MORE_PAIRS, reserved=False))
        more_s = MARGIN * (sum(open_s) or pairs * runner.costs.pair_s(runner.plan))
        more_s = max(more_s, SLACK * runner.unpaid_s)
        return runner.ledger(
            fixes,
            [each.name for each in self.stack],
            together,
            soaked=self._came_through if self.stack else None,
            not_comparable=self._comparisons.not_comparable if self._comparisons else None,
            continue_with=self.again(budget_text(more_s)) if open_ else None,
            run_with=" ".join([*words, shlex.join(final.command)]),
        )


def _looked(entry: TriedFix) -> bool:
    """Whether it has the pairs of a look."""
    verdict = entry.added or entry.verdict
    return verdict is not None and verdict.num_pairs >= LOOKS[0]


def other_speed(chosen: Verdict, fresh: Verdict) -> str:
    """What to add where the command as given was much faster or slower when a value was chosen than on the fresh pairs; else nothing."""
    before, now = chosen.baseline_s_per_work, fresh.baseline_s_per_work
    if not before or not now or 1 / OTHER_SPEED < before / now < OTHER_SPEED:
        return ""
    word, times = ("faster", before / now) if now < before else ("slower", now / before)
    return (
        f"; the command as given was {times:.1f} times {word} by then: other programs on this machine began or ended, "
        "so tune beside the work that the training will have"
    )


def likeliest_first(
    runner: OptionRunner, options: Sequence[Option], diagnosis: Diagnosis
) -> list[Option]:
    """By the gain that findings promise for each second of a trial; as they are where none asks for them."""

    def promise(option: Option) -> float:
        gain = max(option.asked_by(diagnosis).values(), default=1.0)
        start_s = (1 + STARTS) / FIRST_PAIRS * start_s_of(option)
        seconds = runner.needed_s(FIRST_PAIRS, slower_start_s=start_s, reserved=False)
        return gain_per_second(gain, seconds)

    return sorted(options, key=promise, reverse=True)


def _depend(one: Fix, other: Fix) -> bool:
    """Whether the gain of one is known to depend on the other."""
    kinds = [
        {BATCH} if option.batch(text) else {*option.known.techniques}
        for option, text in (one.value, other.value)
    ]
    return any(a in kinds[0] and b in kinds[1] for each in DEPEND for a, b in (each, each[::-1]))


def _unseen_work(value: Fix, verdict: Verdict) -> str:
    """What to add to the speed of what changes the training by an option that nobody knows: it may halve a step, too."""
    if value.value[0].known.parity_class is not None or verdict.unit == "token":
        return ""
    return f"; whether a {verdict.unit} is as much work with it was not seen"


def _has_other_work(value: Fix) -> bool:
    """Whether its steps are of other samples or tokens than those of the command as given."""
    option = value.value[0]
    return bool(option.known.scales) and option.accumulation is None
