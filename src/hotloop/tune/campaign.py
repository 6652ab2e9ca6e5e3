"""Which values are kept: each beside the command as given, then one option on top of another, then the whole anew.

```
screened   every value, the likeliest option first: two pairs against the command as given
added      of each option the best of what looked faster, on top of what is kept: its losses where it must not change
           the training, and pairs up to a planned look that decides
together   all that is kept against the command as given, on pairs of its own: the number to believe
shown      what changes the training and was not accepted, up to a first look, with what is left of the budget
```
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from hotloop.core.child import OF_A_TRIAL
from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Parity
from hotloop.core.ledger import Ledger, Status, TriedFix
from hotloop.doctor.budget import BudgetTooSmall
from hotloop.doctor.confirmation import first_line, flaw_of
from hotloop.doctor.fix_costs import with_costs, with_memory
from hotloop.doctor.fix_stack import ERROR_ON_TOP, LEARNS
from hotloop.doctor.fix_status import not_faster, showed, tried_fix, useless
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparison, LossComparisons
from hotloop.doctor.starting_point import isolation_of, network_of
from hotloop.doctor.trial_costs import FIRST_PAIRS, MARGIN, budget_text
from hotloop.doctor.trial_reports import WritesOutside
from hotloop.doctor.trial_runner import BASELINE
from hotloop.judge.looks import LOOKS, divided_levels
from hotloop.trial.session import SessionResult
from hotloop.tune.runner import OptionRunner, arm_name

NOT_CHECKED = Parity(
    "not_checked",
    "changes_training",
    reason="it trains otherwise on purpose, so losses are not compared",
)
MOST_OF_AN_OPTION = 2
"""Values of one option that are taken beyond their first pairs."""


class Campaign:
    """All trials of one call."""

    def __init__(
        self, runner: OptionRunner, values: Sequence[Fix], again: Callable[[str], str]
    ) -> None:
        """values: in the order in which they are tried. again: the command that goes on with such a budget."""
        self.runner, self.values, self.again = runner, values, again
        self.tried: dict[str, TriedFix] = {}
        self.screened: dict[str, SessionResult] = {}
        self.stack: list[Fix] = []
        self.unpaid = False
        self._comparisons: LossComparisons | None = None

    def all(self) -> Ledger:
        """Raises `BudgetTooSmall`, and what the runner raises of the command as given."""
        runner = self.runner
        pair_s = runner.needed_s(1, reserved=False, place="*")
        if pair_s > runner.left_s:
            least = budget_text((runner.budget_s or 0.0) - runner.left_s + MARGIN * pair_s)
            raise BudgetTooSmall(
                f"one pair of runs takes about {pair_s:.0f} s here, and {max(runner.left_s, 0):.0f} s of the budget are left",
                do=f"go on with `{self.again(least)}`, or more: the command is not examined again",
            )
        for value in self.values:
            self._caught(value, self._screen)
        options = list(dict.fromkeys(value.value.option.key for value in self.values))
        for key in sorted(options, key=lambda key: -self._best_ratio(key)):
            self._add(key)
        together = self._confirmed()
        for value in self.values:
            if self.tried[value.name].status == "what_if":
                self._caught(value, self._show)
        return self._ledger(together)

    def _screen(self, value: Fix) -> None:
        if not self._pays(FIRST_PAIRS, value.name):
            self._tell(value, "not_tried", "out of budget before its first pair")
            return
        result = self._timed([], [value], value.name, pairs_now=FIRST_PAIRS)
        self.screened[value.name] = result
        flaw = _ignored(value, result)
        if flaw is not None:
            self._tell(value, "not_applied", flaw, result)
        elif useless(result.verdict):
            self._tell(value, "not_tried", f"not faster: {showed(result.verdict)}", result)
        elif not self._may_keep(value):
            self._tell(value, "what_if", self._not_accepted(value), result)
        else:
            self._tell(value, "rejected", f"not taken further: {showed(result.verdict)}", result)

    def _add(self, key: str) -> None:
        """The best value of an option, on top of what is kept."""
        ours = [
            each for each in self.values if each.value.option.key == key and self._is_open(each)
        ]
        ours.sort(key=lambda each: -self._ratio(each))
        for number, value in enumerate(ours):
            if number == MOST_OF_AN_OPTION:
                break
            self._caught(value, self._judge)
            if self.tried[value.name].status == "kept":
                self.stack.append(value)
                self.runner.must_confirm = True
                for other in ours[number + 1 :]:
                    pairs = showed(self.screened[other.name].verdict)
                    why = f"{value.name} looked faster ({pairs})"
                    self._tell(other, "rejected", why, self.screened[other.name])
                break

    def _judge(self, value: Fix) -> None:
        """On top of what is kept: what it learns, and pairs up to a look that decides."""
        runner, screened = self.runner, self.screened[value.name]
        if not self._pays(LOOKS[0], "" if self.stack else value.name):
            why = f"out of budget: {showed(screened.verdict)}"
            self._tell(value, "not_tried", why, screened)
            return
        comparison = self._losses(value.name, [value])
        parity = NOT_CHECKED if comparison is None else comparison.parity
        alone = replace(screened, verdict=replace(screened.verdict, parity=parity))
        if comparison is not None and parity.result in LEARNS:
            self._tell(value, "rejected", f"it {LEARNS[parity.result]}: {parity.reason}", alone)
            return
        together = [*self.stack, value]
        name = "-".join(each.name for each in together)
        levels = divided_levels(
            LOOKS, len({each.value.option.key for each in self.values}), ERROR_ON_TOP
        )
        # Beside something that is truly faster, fresh pairs of the whole cannot show that another does nothing.
        how = {"alpha": levels} if self.stack else {}
        result = self._timed(self.stack, together, name, parity, **how)
        flaw = flaw_of(
            result, [value], runner.with_fixes(name, together), comparison or LossComparison(parity)
        )
        self._tell(value, *_outcome(result, flaw, self.stack), alone if self.stack else result)
        entry = replace(self.tried[value.name], added=result.verdict if self.stack else None)
        if comparison is not None:
            entry = with_costs(runner, value, entry, result)
        self.tried[value.name] = with_memory(entry, result.pairs)

    def _show(self, value: Fix) -> None:
        """What changes the training, measured and not kept; the best of each option alone."""
        rivals = [each for each in self.values if each.value.option == value.value.option]
        if self._ratio(value) < max(map(self._ratio, rivals)) or not self._pays(
            LOOKS[0], value.name
        ):
            return
        self.runner.must_confirm = False
        result = self._timed([], [value], value.name)
        self._tell(value, "what_if", self._not_accepted(value), result)

    def _confirmed(self) -> SessionResult | None:
        """Fresh pairs of all that is kept; where they do not show a gain, nothing is kept."""
        while self.stack:
            same = [
                each for each in self.stack if each.technique.parity_class != "changes_training"
            ]
            try:
                comparison = self._losses("together", same) if len(same) > 1 else None
                if comparison is not None and comparison.parity.result in LEARNS:
                    why = f"with the others it {LEARNS[comparison.parity.result]}: {comparison.parity.reason}"
                    self._drop(same[-1:], "rejected", why)
                    continue
                parity = NOT_CHECKED
                if len(same) == len(self.stack):
                    parity = (
                        comparison or self._losses(same[0].name, same[:1]) or LossComparison(parity)
                    ).parity
                if not self._pays(1, ""):
                    self._drop(self.stack, "not_tried", "not confirmed: out of budget")
                    return None
                name = "together-" + "-".join(each.name for each in self.stack)
                self.runner.must_confirm = False
                self.runner.report(together=True, current=None)
                result = self._timed([], self.stack, name, parity, reserved=False)
            except (CommandFailed, WritesOutside) as error:
                self._drop(self.stack, "rejected", f"together it failed: {first_line(error)}")
                return None
            verdict = result.verdict
            if verdict.outcome == "improved":
                return result
            if verdict.num_pairs < LOOKS[0]:
                self._drop(
                    self.stack, "not_tried", f"not confirmed: out of budget ({showed(verdict)})"
                )
                return result
            self._drop(
                self.stack, "rejected", f"fresh pairs do not confirm it: {not_faster(verdict)}"
            )
            return result
        return None

    def _drop(self, values: Sequence[Fix], status: Status, why: str) -> None:
        for value in tuple(values):
            self.stack.remove(value)
            entry = self.tried[value.name]
            self.tried[value.name] = replace(entry, status=status, why=f"{entry.why}, but {why}")
        self.unpaid |= status == "not_tried"

    def _losses(self, name: str, values: Sequence[Fix]) -> LossComparison | None:
        """What these learn beside the command as given; `None` where that is to be something else."""
        if any(each.technique.parity_class == "changes_training" for each in values):
            return None
        if self._comparisons is None:
            self._comparisons = LossComparisons(self.runner, values)
        return self._comparisons.of(name, values)

    def _timed(
        self,
        stacked: Sequence[Fix],
        fixes: Sequence[Fix],
        name: str,
        parity: Parity | None = None,
        **how: object,
    ) -> SessionResult:
        if parity is None:
            given = fixes[-1].technique.parity_class
            parity = NOT_CHECKED if given == "changes_training" else Parity("not_checked", given)
        how = {"reserved": self.runner.must_confirm, **how}
        return self.runner.timed(stacked, fixes, name, parity, **how)

    def _caught(self, value: Fix, trying: Callable[[Fix], None]) -> None:
        """A value that fails is told, and the rest goes on."""
        self.runner.report(current=value.name)
        try:
            trying(value)
        except WritesOutside as error:
            self._tell(value, "failed", f"it writes outside the working directory: {error.path}")
        except CommandFailed as error:
            if error.arm == BASELINE and not self.screened:
                raise
            said = [line.strip() for line in (error.do or "").splitlines() if line.strip()]
            last = said[-1] if said else ""
            ours = error.arm not in (BASELINE, "without")
            why = (
                f"{first_line(error)}: {last}"
                if ours
                else f"the command as given failed beside it: {last}"
            )
            self._tell(value, "failed", why, details=error.do or "")
        told = dict.fromkeys(each.name for each in self.values if each.name in self.tried)
        self.runner.report(
            tried=tuple(self.tried[name] for name in told), current=None, pair=None, process=""
        )

    def _tell(
        self,
        value: Fix,
        status: Status,
        why: str,
        result: SessionResult | None = None,
        details: str = "",
    ) -> None:
        entry = tried_fix(value, status, why, result, begun=result is not None, details=details)
        place = None if result is None else str(result.directory.relative_to(self.runner.directory))
        self.tried[value.name] = replace(entry, value=value.value.text, directory=place)
        self.unpaid |= "out of budget" in why

    def _with_parity(self, value: Fix, parity: Parity) -> SessionResult:
        result = self.screened[value.name]
        return replace(result, verdict=replace(result.verdict, parity=parity))

    def _pays(self, pairs: int, name: str) -> bool:
        """Whether the budget holds these, of which some may be finished, and those that confirm what is kept already."""
        place = f"{arm_name(name)}-{'?' * 16}" if name else None
        runner = self.runner
        return runner.pays_for(runner.needed_s(pairs, reserved=runner.must_confirm, place=place))

    def _is_open(self, value: Fix) -> bool:
        return value.name in self.screened and self.tried[value.name].status == "rejected"

    def _ratio(self, value: Fix) -> float:
        result = self.screened.get(value.name)
        return 0.0 if result is None else result.verdict.ratio or 0.0

    def _best_ratio(self, key: str) -> float:
        return max(self._ratio(each) for each in self.values if each.value.option.key == key)

    def _may_keep(self, value: Fix) -> bool:
        return value.technique.parity_class != "changes_training" or value.value.option.is_accepted

    def _not_accepted(self, value: Fix) -> str:
        key = value.value.option.key
        return f"changes what is trained, which is yours to say: `--accept {key}` keeps it where it is proven"

    def _ledger(self, together: SessionResult | None) -> Ledger:
        runner = self.runner
        plan = None if together is None else together.pairs[0][1].plan
        network, final = network_of(runner.listing), runner.with_fixes("final", self.stack)
        changed = {
            k: v
            for k, v in final.env.items()
            if k not in OF_A_TRIAL and k not in runner.baseline.env
        }
        words = [
            *(f"{name}={shlex.quote(value)}" for name, value in changed.items()),
            shlex.join(final.command),
        ]
        unscreened = sum(each.name not in self.screened for each in self.values)
        more_s = runner.costs.pair_s(runner.plan) * (FIRST_PAIRS * unscreened + 2 * LOOKS[0])
        return Ledger(
            command=runner.baseline.command,
            fixes=tuple(self.tried[value.name] for value in self.values),
            kept=tuple(each.name for each in self.stack),
            together=None if together is None else together.verdict,
            warmup_steps=runner.plan.warmup_steps,
            steps=runner.plan.steps,
            wall_s=runner.spent_s,
            budget_s=runner.budget_s,
            not_comparable=None if self._comparisons is None else self._comparisons.not_comparable,
            together_warmup_steps=None if plan is None else plan.warmup_steps,
            together_steps=None if plan is None else plan.steps,
            isolation=isolation_of(runner.listing),
            network=network.unlimited or bool(network.hosts),
            network_hosts=network.hosts,
            continue_with=self.again(budget_text(MARGIN * more_s)) if self.unpaid else None,
            run_with=" ".join(words),
        )


def _outcome(result: SessionResult, flaw: str | None, stacked: Sequence[Fix]) -> tuple[Status, str]:
    """What becomes of a value after its pairs."""
    verdict = result.verdict
    onto = f"on top of {' and '.join(each.name for each in stacked)} " if stacked else ""
    if flaw is not None:
        return "rejected", f"{onto}{flaw}"
    if verdict.num_pairs < LOOKS[0] and verdict.outcome != "incomparable":
        return "not_tried", f"{onto}out of budget: {showed(verdict)}"
    if verdict.outcome != "improved":
        return "rejected", f"{onto}{not_faster(verdict)}"
    learns = (
        "learns the same"
        if verdict.parity.result != "not_checked"
        else "trains otherwise, as accepted"
    )
    return "kept", f"{onto}faster, and {learns}"


def _ignored(value: Fix, result: SessionResult) -> str | None:
    """Why a step's work cannot be told by its value: the script does not use it."""
    baseline, candidate = ([each.loss for each in run.records] for run in result.pairs[0])
    moves = len({each for each in baseline if each is not None}) > 1
    if not value.value.option.scales or not moves or baseline != candidate:
        return None
    return f"the script does not use it: with it every loss is the same to the bit over {len(baseline)} steps"
