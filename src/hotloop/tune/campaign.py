"""Which values are kept: each beside the command as given, then one option on top of another, then the whole anew.

```
screened   every value, the likeliest option first: two pairs against the command as given
judged     of each option what looked best, on top of what is kept: its losses where they must stay what they are, and
           pairs up to a planned look that decides
together   all that is kept against the command as given, on pairs of their own: the number to believe
shown      the best of what changes the training and was not accepted, up to a look, with what the budget left
```
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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
from hotloop.doctor.trial_costs import FIRST_PAIRS, MARGIN, budget_text
from hotloop.doctor.trial_reports import WritesOutside
from hotloop.doctor.trial_runner import BASELINE
from hotloop.judge.looks import LOOKS, divided_levels
from hotloop.trial.session import SessionResult
from hotloop.tune.runner import OptionRunner, arm_name

OTHERWISE = Parity("not_checked", "changes_training", reason="it trains otherwise on purpose")
NO_TIME = "out of budget"
MOST_JUDGED = 2
"""Values of one option."""


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
        self._comparisons: LossComparisons | None = None

    def all(self) -> Ledger:
        """Raises `BudgetTooSmall`, and what trials of the command as given raise."""
        runner = self.runner
        pair_s = runner.needed_s(1, reserved=False, place="*")
        if pair_s > runner.left_s:
            least = budget_text((runner.budget_s or 0.0) - runner.left_s + MARGIN * pair_s)
            raise BudgetTooSmall(
                f"a pair of runs takes about {pair_s:.0f} s here, more than is left of the budget",
                do=f"go on with `{self.again(least)}`, or more: the command is not examined again",
            )
        for value in self.values:
            self._caught(value, self._screen)
        keys = dict.fromkeys(value.value.option.key for value in self._ranked())
        for key in keys:
            self._judge_option(key)
        together = self._confirmed()
        for key in keys:
            shown = [
                each for each in self._ranked(key) if self.tried[each.name].status == "what_if"
            ]
            if shown and self._pays(LOOKS[0], shown[0].name):
                self._caught(shown[0], self._show)
        return self._ledger(together)

    def _ranked(self, key: str = "") -> list[Fix]:
        """The values that were screened, of one option or all, the fastest first."""
        ours = [each for each in self.values if key in ("", each.value.option.key)]
        ratios = {n: result.verdict.ratio or 0.0 for n, result in self.screened.items()}
        return sorted((v for v in ours if v.name in ratios), key=lambda v: -ratios[v.name])

    def _screen(self, value: Fix) -> None:
        if not self._pays(FIRST_PAIRS, value.name):
            return self._tell(value, "not_tried", f"{NO_TIME} before its first pair")
        result = self.screened[value.name] = self._timed([], [value], pairs_now=FIRST_PAIRS)
        pairs = showed(result.verdict)
        if _is_ignored(value, result):
            why = "the script does not use it: every loss is the same to the bit"
            return self._tell(value, "not_applied", why, result)
        if useless(result.verdict):
            return self._tell(value, "not_tried", f"not faster: {pairs}", result)
        if (
            value.technique.parity_class == "changes_training"
            and not value.value.option.is_accepted
        ):
            return self._show(value, result)
        return self._tell(value, "rejected", f"not taken further: {pairs}", result)

    def _judge_option(self, key: str) -> None:
        open_values = [v for v in self._ranked(key) if self.tried[v.name].status == "rejected"]
        for value in open_values[:MOST_JUDGED]:
            self._caught(value, self._judge)
            if self.tried[value.name].status == "kept":
                self.stack.append(value)
                self.runner.must_confirm = True
                return

    def _judge(self, value: Fix) -> None:
        """On top of what is kept: what it learns, and pairs up to a look that decides."""
        runner, screened, together = self.runner, self.screened[value.name], [*self.stack, value]
        if not self._pays(LOOKS[0], "" if self.stack else value.name):
            return self._tell(
                value, "not_tried", f"{NO_TIME}: {showed(screened.verdict)}", screened
            )
        comparison = self._losses(value)
        parity = comparison.parity
        alone = replace(screened, verdict=replace(screened.verdict, parity=parity))
        if parity.result in LEARNS and parity is not OTHERWISE:
            return self._tell(
                value, "rejected", f"it {LEARNS[parity.result]}: {parity.reason}", alone
            )
        # Beside something truly faster, fresh pairs of the whole cannot show that another does nothing.
        options = {each.value.option.key for each in self.values}
        how = {"alpha": divided_levels(LOOKS, len(options), ERROR_ON_TOP)} if self.stack else {}
        result = self._timed(self.stack, together, parity, **how)
        arm = runner.with_fixes("-".join(each.name for each in together), together)
        flaw = flaw_of(result, [value], arm, comparison)
        self._tell(value, *_outcome(result, flaw, self.stack), alone if self.stack else result)
        entry = replace(self.tried[value.name], added=result.verdict if self.stack else None)
        if parity is OTHERWISE:
            self.tried[value.name] = with_memory(entry, result.pairs)
        else:
            self.tried[value.name] = with_costs(runner, value, entry, result)

    def _show(self, value: Fix, result: SessionResult | None = None) -> None:
        """What changes the training and was not accepted, measured and not kept."""
        key = value.value.option.key
        why = f"changes what is trained, which is yours to say: `--accept {key}` keeps it where it is proven"
        self._tell(value, "what_if", why, result or self._timed([], [value]))

    def _confirmed(self) -> SessionResult | None:
        """Fresh pairs of all that is kept; nothing is where they do not show a gain."""
        if not self.stack:
            return None
        self.runner.must_confirm = False
        self.runner.report(together=True, current=None)
        result, why = None, f"not confirmed: {NO_TIME}"
        status: Status = "not_tried"
        if self._pays(1, ""):
            try:
                parity = self._losses(*self.stack).parity
                result = self._timed([], self.stack, parity, of="together-", reserved=False)
            except (CommandFailed, WritesOutside) as error:
                status, why = "rejected", f"together it failed: {first_line(error)}"
        verdict = None if result is None else result.verdict
        if verdict is not None and verdict.outcome == "improved":
            return result
        if verdict is not None and verdict.num_pairs < LOOKS[0]:
            why = f"{why} ({showed(verdict)})"
        elif verdict is not None:
            status, why = "rejected", f"fresh pairs do not confirm it: {not_faster(verdict)}"
        for value in self.stack:
            entry = self.tried[value.name]
            self.tried[value.name] = replace(entry, status=status, why=f"{entry.why}, but {why}")
        self.stack = []
        return result

    def _losses(self, *values: Fix) -> LossComparison:
        """What the command learns with those of these, and of what is kept, with which it must learn the same."""
        told = [v for v in values if v.technique.parity_class == "changes_training"]
        same = [v for v in (*self.stack, *values) if v.technique.parity_class != "changes_training"]
        if told:
            return LossComparison(OTHERWISE)
        if self._comparisons is None:
            self._comparisons = LossComparisons(self.runner, same)
        same = list(dict.fromkeys(same))
        return self._comparisons.of("-".join(each.name for each in same), same)

    def _timed(
        self, stacked: Sequence[Fix], fixes: Sequence[Fix], parity: Parity | None = None, **how: Any
    ) -> SessionResult:
        parity = parity or Parity("not_checked", fixes[-1].technique.parity_class)
        how = {"reserved": self.runner.must_confirm, **how}
        return self.runner.timed(stacked, fixes, parity, **how)

    def _caught(self, value: Fix, trying: Callable[[Fix], None]) -> None:
        """A value that fails is told, in the script's own words, and the rest goes on."""
        self.runner.report(current=value.name)
        try:
            trying(value)
        except WritesOutside as error:
            self._tell(value, "failed", f"it writes outside the working directory: {error.path}")
        except CommandFailed as error:
            if error.arm == BASELINE and not self.screened:
                raise
            why = "the command as given failed beside it" if error.arm == BASELINE else error.what
            last = next(reversed((error.do or "").strip().splitlines()), "").strip()
            self._tell(value, "failed", f"{why}: {last}", details=error.do or "")
        tried = tuple(self.tried[v.name] for v in self.values if v.name in self.tried)
        self.runner.report(tried=tried, current=None, pair=None, process="")

    def _tell(
        self,
        value: Fix,
        status: Status,
        why: str,
        result: SessionResult | None = None,
        details: str = "",
    ) -> None:
        entry = tried_fix(value, status, why, result, details=details)
        place = None
        if result is not None:
            place = str(result.directory.relative_to(self.runner.directory))
        self.tried[value.name] = replace(entry, value=value.value.text, directory=place)

    def _pays(self, pairs: int, name: str) -> bool:
        """Whether the budget holds these, of which some may be finished, and those that confirm what is kept already."""
        place = f"{arm_name(name)}-{'?' * 16}" if name else None
        reserved = self.runner.must_confirm
        return self.runner.pays_for(self.runner.needed_s(pairs, reserved=reserved, place=place))

    def _ledger(self, together: SessionResult | None) -> Ledger:
        runner = self.runner
        final = runner.with_fixes("final", self.stack)
        variables = {v.value.option.name for v in self.stack} & final.env.keys()
        words = [f"{name}={shlex.quote(final.env[name])}" for name in sorted(variables)]
        fixes = [self.tried[value.name] for value in self.values]
        unpaid = sum(NO_TIME in each.why for each in fixes)
        more_s = MARGIN * runner.costs.pair_s(runner.plan) * LOOKS[0] * (1 + unpaid)
        return runner.ledger(
            fixes,
            [each.name for each in self.stack],
            together,
            not_comparable=self._comparisons.not_comparable if self._comparisons else None,
            continue_with=self.again(budget_text(more_s)) if unpaid else None,
            run_with=" ".join([*words, shlex.join(final.command)]),
        )


def _outcome(result: SessionResult, flaw: str | None, stacked: Sequence[Fix]) -> tuple[Status, str]:
    """What becomes of a value after its pairs."""
    verdict = result.verdict
    onto = f"on top of {' and '.join(each.name for each in stacked)} " if stacked else ""
    if flaw is not None:
        return "rejected", f"{onto}{flaw}"
    if verdict.num_pairs < LOOKS[0] and verdict.outcome != "incomparable":
        return "not_tried", f"{onto}{NO_TIME}: {showed(verdict)}"
    if verdict.outcome != "improved":
        return "rejected", f"{onto}{not_faster(verdict)}"
    is_same = verdict.parity.result != "not_checked"
    return (
        "kept",
        f"{onto}faster, and {'learns the same' if is_same else 'trains otherwise, as accepted'}",
    )


def _is_ignored(value: Fix, result: SessionResult) -> bool:
    """Whether more work in a step is the same work, as every loss shows."""
    baseline, candidate = ([each.loss for each in run.records] for run in result.pairs[0])
    moves = len({each for each in baseline if each is not None}) > 1
    return bool(value.value.option.known.scales) and moves and baseline == candidate
