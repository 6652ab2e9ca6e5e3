"""What the doctor concludes from trials, on a machine whose speed is known because it is made up.

Everything is the doctor's but the processes: their step times, losses and the clock come from `Machine`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_trials import START_S, STEP_S, WRITTEN, Machine, Trying, product

from hotloop.core.connections import Network
from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.judgement import Interval, Parity, ParityClass, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Measurement
from hotloop.core.progress import TrialProgress
from hotloop.doctor.fix_status import may_yet, status_of
from hotloop.judge.looks import TOTAL_ERROR
from hotloop.trial.arm import Arm, digest_of
from hotloop.trial.process import TIMED_OUT
from hotloop.trial.sandbox.layered import storage_for


def by_name(ledger: Ledger) -> dict[str, TriedFix]:
    return {fix.name: fix for fix in ledger.fixes}


@pytest.mark.parametrize(("ratio", "why"), [(0.99, "slower"), (1.0, "no gain"), (0.9, "slower")])
def test_fix_that_is_no_faster_is_rejected(trying: Trying, ratio: float, why: str) -> None:
    ledger = trying(Machine(product(a=ratio)), ["a"])
    (entry,) = ledger.fixes
    assert (entry.status, entry.why) == ("rejected", why)
    assert entry.verdict is not None
    assert entry.verdict.ratio == pytest.approx(ratio, abs=0.004)
    assert (ledger.kept, ledger.together) == ((), None)


def test_gains_that_add_up_are_kept_together_on_fresh_pairs(trying: Trying) -> None:
    machine = Machine(product(a=1.2, b=1.5, c=1.0))
    ledger = trying(machine, ["a", "b", "c"])
    assert ledger.kept == ("b", "a")  # the best first
    assert ledger.together is not None
    assert ledger.together.ratio == pytest.approx(1.8, rel=0.01)
    assert ledger.together.parity.result == "same"
    entries = by_name(ledger)
    assert entries["a"].added is not None
    assert entries["a"].added.ratio == pytest.approx(1.2, rel=0.01)
    assert entries["b"].added is None
    assert entries["c"].status == "rejected"
    # Losses of the unchanged command are compared once, whatever is tried: they were equal, so one run did.
    as_it_is = [place for place in machine.places if place.startswith("baseline/")]
    assert len(as_it_is) == 1


def scattered(seed: int, **gains: float) -> Callable[[frozenset[str], str], float]:
    """Without `b` processes differ by 4 %: the alone session of any other fix decides nothing."""
    quiet, noise = product(**gains), random.Random(seed)

    def gain(fixes: frozenset[str], session: str) -> float:
        return quiet(fixes, session) * (1.0 if "b" in fixes else noise.gauss(1.0, 0.04))

    return gain


def test_what_the_noise_hid_alone_is_kept_where_it_is_faster_on_top_of_the_rest(
    trying: Trying,
) -> None:
    ledger = trying(Machine(scattered(0, a=1.07, b=1.6)), ["a", "b"])
    entry = by_name(ledger)["a"]
    assert entry.verdict is not None
    assert entry.verdict.outcome == "inconclusive"
    assert entry.added is not None
    assert entry.added.outcome == "improved"
    assert entry.added.ratio == pytest.approx(1.07, abs=0.01)
    assert ledger.kept == ("b", "a")
    assert entry.status == "kept"
    assert "alone, but faster on top of b, and learns the same" in entry.why


def test_what_only_the_noise_made_faster_is_rejected_on_top_of_the_rest(trying: Trying) -> None:
    ledger = trying(Machine(scattered(3, a=1.0, b=1.6)), ["a", "b"])
    entry = by_name(ledger)["a"]
    assert entry.verdict is not None
    assert entry.verdict.outcome == "inconclusive"
    assert (entry.verdict.ratio or 0.0) > 1.01
    assert entry.status == "rejected"
    assert entry.why.startswith("inconclusive")
    assert entry.why.endswith("alone; not on top of b: no gain")
    assert ledger.kept == ("b",)


def test_what_the_noise_hid_is_not_tried_again_where_nothing_is_kept(trying: Trying) -> None:
    machine = Machine(scattered(1, a=1.03))
    ledger = trying(machine, ["a"])
    assert by_name(ledger)["a"].status == "undecided"
    assert not any(place.startswith("with-") for place in machine.places)


def test_what_its_first_look_does_not_decide_waits_for_the_others(trying: Trying) -> None:
    machine = toggleable(2, a=1.15, b=1.3)
    machine.scatter = 0.25
    how = {"edits": ["a", "b"], "seen_steps": STEPS_TO_SWITCH}
    ledger = trying(machine, ["b", "a"], budget_s=300.0, **how)
    proven = by_name(ledger)["a"].verdict
    assert proven is not None
    assert proven.outcome == "improved"
    sessions = [place.partition("/")[0] for place in machine.places if "/pair-" in place]
    at = [i for i, each in enumerate(sessions) if each == "together-b"]
    assert len(at) > 8, "what was left of the budget is b's"
    assert sessions[at[7] + 1] == "together-a-live", "after its first four pairs"


@pytest.mark.parametrize(("gain", "num_pairs"), [(0.99, 6), (1.03, 10)])
def test_the_last_look_is_for_what_looks_faster(
    trying: Trying, gain: float, num_pairs: int
) -> None:
    machine = Machine(product(a=gain))
    machine.scatter = 0.04
    machine.random = random.Random(4)
    (entry,) = trying(machine, ["a"]).fixes
    assert entry.verdict is not None
    assert (entry.verdict.outcome, entry.verdict.num_pairs) == ("inconclusive", num_pairs)


def toggleable(seed: int, **gains: float) -> Machine:
    """Processes differ by 8 %, and what `a` does can be turned on and off within each."""
    machine = Machine(product(**gains))
    machine.scatter, machine.toggleable = 0.08, frozenset({"a"})
    machine.random = random.Random(seed)
    return machine


STEPS_TO_SWITCH = 200


def test_what_is_written_is_what_fresh_pairs_are_made_of(trying: Trying) -> None:
    ledger = trying(Machine(product(a=1.2, b=1.5)), ["a", "b"], edits=["a", "b"])
    assert ledger.kept == ("b", "a")
    assert ledger.together is not None
    assert ledger.together.ratio == pytest.approx(1.8, rel=0.01)
    assert ledger.together_patched == digest_of({WRITTEN: b"a b"})


def test_what_is_something_else_once_it_is_written_leaves_the_others(trying: Trying) -> None:
    machine = Machine(product(a=1.2, b=1.5, c=1.1))
    machine.other_once_written = frozenset({"b"})
    ledger = trying(machine, ["a", "b", "c"], edits=["a", "b"])
    entry = by_name(ledger)["b"]
    assert entry.status == "rejected"
    assert entry.why.startswith(
        "faster, and learns the same, but the patched script does not train as before: losses part"
    )
    assert ledger.kept == ("a", "c")  # c has no edit: it stays a live form
    assert ledger.together is not None
    assert ledger.together.ratio == pytest.approx(1.32, rel=0.01)
    assert ledger.together_patched == digest_of({WRITTEN: b"a"})


def test_only_fix_is_not_kept_where_the_patched_script_is_another(trying: Trying) -> None:
    machine = Machine(product(a=1.5))
    machine.other_once_written = frozenset({"a"})
    ledger = trying(machine, ["a"], edits=["a"])
    assert (ledger.kept, ledger.together, ledger.together_patched) == ((), None, None)
    assert by_name(ledger)["a"].status == "rejected"
    assert not any(place.startswith("together-a/pair") for place in machine.places)


def test_edit_whose_losses_part_later_is_not_confirmed_by_its_live_form(trying: Trying) -> None:
    machine = toggleable(1, a=1.06)
    machine.other_once_written, machine.wrong_from = frozenset({"a"}), 61
    ledger = trying(machine, ["a"], edits=["a"], seen_steps=STEPS_TO_SWITCH)
    assert ledger.kept == ()
    assert "it learns something else" in by_name(ledger)["a"].why


def test_small_gain_of_an_edit_is_seen_within_processes_too(trying: Trying) -> None:
    machine = toggleable(1, a=1.06)
    ledger = trying(machine, ["a"], edits=["a"], seen_steps=STEPS_TO_SWITCH)
    assert ledger.kept == ("a",)
    assert ledger.together is not None
    assert (ledger.together.outcome, ledger.together.switched) == ("improved", True)
    assert ledger.together.ratio == pytest.approx(1.06, abs=0.01)
    # Then the edited file itself, in two pairs of processes, which differ by more.
    pairs = [place for place in machine.places if place.startswith("together-a/pair-")]
    assert len(pairs) == 4
    assert any(place.startswith("together-a/losses") for place in machine.places)


def test_edit_that_is_slow_where_its_live_form_is_fast_is_not_kept(trying: Trying) -> None:
    machine = toggleable(1, a=1.06)
    quiet = machine.gain
    machine.scatter = 0.01
    machine.gain = lambda fixes, session: (
        0.7 if fixes and session == "together-a" else quiet(fixes, session)
    )
    ledger = trying(machine, ["a"], edits=["a"], seen_steps=STEPS_TO_SWITCH)
    assert ledger.kept == ()
    assert (ledger.fixes[0].status, ledger.fixes[0].why) == ("rejected", "slower")


def test_edit_that_brings_a_part_of_what_its_live_form_does_is_kept_for_that_part(
    trying: Trying,
) -> None:
    machine = toggleable(1, a=1.5)
    quiet = machine.gain
    machine.scatter = 0.01
    machine.gain = lambda fixes, session: (
        1.1 if fixes and session == "together-a" else quiet(fixes, session)
    )
    ledger = trying(machine, ["a"], edits=["a"], seen_steps=STEPS_TO_SWITCH)
    assert ledger.kept == ("a",)
    assert ledger.together is not None
    assert not ledger.together.switched
    assert ledger.together.ratio == pytest.approx(1.1, abs=0.02)


def test_gain_that_processes_hide_is_proven_within_a_budget(trying: Trying) -> None:
    machine = toggleable(1, a=1.15)
    machine.scatter = 0.2
    how = {"edits": ["a"], "seen_steps": STEPS_TO_SWITCH, "budget_s": 300.0}
    ledger = trying(machine, ["a"], **how)
    assert ledger.kept == ("a",)
    assert ledger.together is not None
    assert ledger.together.ratio == pytest.approx(1.15, abs=0.02)
    machine = Machine(product(a=1.15))
    machine.scatter = 0.2
    assert trying(machine, ["a"], directory="other", **how).kept == ()


def test_small_gain_is_seen_within_processes_that_differ_by_more(trying: Trying) -> None:
    machine = toggleable(1, a=1.06)
    ledger = trying(machine, ["a"], seen_steps=STEPS_TO_SWITCH)
    (entry,) = ledger.fixes
    assert (entry.status, ledger.kept) == ("kept", ("a",))
    for verdict in (entry.verdict, ledger.together):
        assert verdict is not None
        assert (verdict.outcome, verdict.switched) == ("improved", True)
        assert verdict.ratio == pytest.approx(1.06, abs=0.01)
        assert verdict.parity.result == "same"
    assert entry.steps == ledger.together_steps == 120
    # Each pair is one process, and nothing tells what others differ by.
    alone = [place for place in machine.places if place.startswith("together-a/pair-")]
    assert entry.verdict is not None
    assert len(alone) == entry.verdict.num_pairs


@pytest.mark.parametrize("seed", range(5))
def test_no_gain_is_none_within_processes_too(trying: Trying, seed: int) -> None:
    ledger = trying(toggleable(seed, a=1.0), ["a"], seen_steps=STEPS_TO_SWITCH)
    (entry,) = ledger.fixes
    assert entry.verdict is not None
    assert entry.verdict.switched
    assert (entry.status, entry.why) == ("rejected", "no gain")


def test_it_goes_on_and_off_on_top_of_what_stays_on(trying: Trying) -> None:
    ledger = trying(toggleable(1, a=1.06, b=2.0), ["a", "b"], seen_steps=STEPS_TO_SWITCH)
    entries = by_name(ledger)
    assert ledger.kept == ("b", "a")
    added, together = entries["a"].added, ledger.together
    assert added is not None
    assert added.switched
    assert added.ratio == pytest.approx(1.06, abs=0.01)
    # What cannot be turned is compared in pairs of processes, alone and in the stack.
    assert entries["b"].verdict is not None
    assert together is not None
    assert not entries["b"].verdict.switched
    assert not together.switched


def test_what_did_not_go_off_is_not_called_applied(trying: Trying) -> None:
    machine = toggleable(1, a=1.06, b=1.0)
    machine.stuck_in = "a"
    entry = by_name(trying(machine, ["a", "b"], seen_steps=STEPS_TO_SWITCH))["a"]
    assert (entry.status, entry.why) == (
        "not_applied", "it was to go on and off within the process, and did not",
    )  # fmt: skip


def test_stack_that_did_not_go_off_is_not_confirmed(trying: Trying) -> None:
    machine = toggleable(1, a=1.06)
    machine.stuck_in = "together-a"
    ledger = trying(machine, ["a"], seen_steps=STEPS_TO_SWITCH)
    assert (ledger.kept, ledger.fixes[0].status) == ((), "rejected")
    assert "a was not applied: it was to go on and off" in ledger.fixes[0].why


def test_pairs_that_nothing_chose_are_the_proof_of_the_only_fix(trying: Trying) -> None:
    machine = Machine(product(a=1.5))
    ledger = trying(machine, ["a"], edits=["a"])
    (entry,) = ledger.fixes
    assert (ledger.kept, ledger.together) == (("a",), entry.verdict)
    assert (entry.status, entry.steps, ledger.together_pooled) == ("kept", 55, None)
    timed = [place for place in machine.places if "/pair-" in place]
    assert sorted(timed) == sorted(machine.places[-8:])
    assert all(place.startswith("together-a/pair-") for place in timed)
    assert ledger.together_patched == digest_of({WRITTEN: b"a"})


def test_budget_for_one_fix_proves_the_one_that_promises_most(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=1.2))
    pair_s = 2 * (START_S + 60 * STEP_S)
    ledger = trying(machine, ["a", "b"], edits=["a"], budget_s=10 * pair_s)
    assert ledger.kept == ("a",)
    assert ledger.together == by_name(ledger)["a"].verdict
    assert by_name(ledger)["b"].status == "stopped"
    assert machine.now <= 10 * pair_s


def test_what_is_proven_stays_where_the_stack_on_top_of_it_is_not(trying: Trying) -> None:
    def gain(fixes: frozenset[str], session: str) -> float:
        alone = product(a=1.5, b=1.2)(fixes, session)
        return 1.0 if session == "together-a-b" else alone

    machine, pair_s = Machine(gain), 2 * (START_S + 60 * STEP_S)
    for budget_s in (10 * pair_s, 60 * pair_s):  # it goes on as it began
        ledger = trying(machine, ["a", "b"], budget_s=budget_s, edits=["a", "b"])
    entries = by_name(ledger)
    assert not any(place.startswith("a/pair-") for place in machine.places)
    assert ledger.kept == ("a",)
    assert ledger.together == entries["a"].verdict
    assert entries["a"].status == "kept"
    assert entries["b"].status == "rejected"
    assert "fresh pairs do not confirm it" in entries["b"].why


@pytest.mark.parametrize(
    ("gain", "options", "is_tried"),
    [(1.95, {}, False), (1.85, {}, True), (1.95, {"asked": ("a", "b")}, True)],
)
def test_nothing_is_tried_on_top_of_what_brings_all_that_its_findings_could(
    trying: Trying, gain: float, options: dict[str, Any], is_tried: bool
) -> None:
    machine = Machine(product(a=gain, b=1.2))
    ledger = trying(machine, ["a", "b"], edits=["a", "b"], budget_s=120.0, **options)
    assert "a" in ledger.kept
    assert ledger.continue_with is None or is_tried
    assert any(place.startswith("b/") for place in machine.places) == is_tried
    says = "a already brings 1.9" in by_name(ledger)["b"].why
    assert says != is_tried


def test_each_state_of_the_trials_is_shown_with_the_verdict_of_the_pairs_so_far(
    trying: Trying,
) -> None:
    seen: list[TrialProgress] = []
    ledger = trying(Machine(product(a=1.5, b=1.0)), ["a", "b"], show=seen.append)
    assert {now.fixes for now in seen[1:]} == {("a", "b")}
    stages = dict.fromkeys((now.current, now.together, len(now.tried)) for now in seen)
    assert list(stages) == [
        *((None, False, 0), ("a", False, 0), (None, False, 1), ("b", False, 1), (None, False, 2)),
        (None, True, 2),
    ]
    assert [fix.status for fix in seen[-1].tried] == ["kept", "rejected"]
    assert {now.pair for now in seen if now.process.startswith("the losses")} == {None}
    known = [now.pair.interim for now in seen if now.pair is not None and now.tried == ()]
    counts = [0 if each is None else each.num_pairs for each in known]
    assert list(dict.fromkeys(counts)) == [0, 1, 2, 3]
    verdict = by_name(ledger)["a"].verdict
    assert verdict is not None
    assert known[-1] is not None
    assert known[-1].pair_ratios == verdict.pair_ratios[:3]


def test_error_is_shared_by_fixes_that_are_proven_at_once(trying: Trying) -> None:
    pair_s = 2 * (START_S + 60 * STEP_S)
    ledger = trying(Machine(product(a=1.5, b=1.0, c=1.0)), ["a", "b", "c"], budget_s=16 * pair_s)
    assert ledger.kept == ("a",)
    assert ledger.together is not None
    assert ledger.together.confidence == pytest.approx(1 - TOTAL_ERROR / 5 / 3)


def test_pairs_are_made_where_something_may_make_batches_ahead_or_steps_are_few(
    trying: Trying,
) -> None:
    for steps, threads in ((STEPS_TO_SWITCH, ("prefetcher",)), (40, ())):
        machine = toggleable(1, a=1.5)
        machine.threads = threads
        (entry,) = trying(machine, ["a"], seen_steps=steps, directory=f"run-{steps}").fixes
        assert entry.verdict is not None
        assert not entry.verdict.switched
        assert (entry.verdict.ratio or 0.0) > 1.3


def test_fix_that_brings_nothing_on_top_of_a_better_one_is_left_out(trying: Trying) -> None:
    def gain(fixes: frozenset[str], session: str) -> float:
        return 1.5 if "a" in fixes else 1.3 if "b" in fixes else 1.0

    ledger = trying(Machine(gain), ["b", "a"])
    entry = by_name(ledger)["b"]
    assert ledger.kept == ("a",)
    assert (entry.status, entry.why) == ("rejected", "faster alone, but not on top of a: no gain")
    assert entry.verdict is not None
    assert entry.verdict.outcome == "improved"


def test_what_rounds_products_is_added_last(trying: Trying) -> None:
    classes: dict[str, ParityClass] = {"a": "reduced_precision"}
    ledger = trying(Machine(product(a=2.0, b=1.2)), ["a", "b"], classes)
    assert ledger.kept == ("b", "a")


def test_fixes_that_exclude_each_other_are_not_put_together(trying: Trying) -> None:
    ledger = trying(Machine(product(a=1.5, b=1.2)), ["a", "b"], conflicts={"b": ("a",)})
    assert ledger.kept == ("a",)
    assert by_name(ledger)["b"].why == "faster alone, but it cannot be together with a"


def test_gain_that_fresh_pairs_do_not_show_is_not_claimed(trying: Trying) -> None:
    def gain(fixes: frozenset[str], session: str) -> float:
        return 1.2 if fixes and session == "a" else 1.0

    ledger = trying(Machine(gain), ["a", "b"])
    entry = by_name(ledger)["a"]
    assert ledger.kept == ()
    assert entry.status == "rejected"
    assert entry.why == "faster, and learns the same, but fresh pairs do not confirm it: no gain"


def test_stack_in_which_one_was_not_applied_when_it_was_timed_is_not_kept(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=1.2))
    machine.not_applied_in = {"together-a-b": "b"}
    ledger = trying(machine, ["a", "b"])
    assert ledger.kept == ()
    assert "do not confirm it: b was not applied: it found nothing" in by_name(ledger)["a"].why


def test_a_call_that_goes_on_may_keep_more_than_the_one_before(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=1.2))
    budget_s = 10 * 2 * (START_S + 60 * STEP_S)
    first = trying(machine, ["a", "b"], budget_s=budget_s)
    assert first.kept == ("a",)
    for _ in range(3):
        last = trying(machine, ["a", "b"], budget_s=budget_s)
    assert last.kept == ("a", "b")
    assert last.together is not None
    assert last.together.ratio == pytest.approx(1.8, rel=0.02)


def test_losses_of_another_torch_are_not_called_another_learning(trying: Trying) -> None:
    machine = Machine(product(a=1.2, b=1.5))
    machine.other_losses = frozenset({"b"})
    machine.unseeded = True
    trying(machine, ["a"])
    machine.torch = "2.13.0"
    entry = by_name(trying(machine, ["a", "b"]))["b"]
    assert entry.status == "rejected"
    assert "The environments differ in `torch`: None and '2.13.0'." in entry.why
    assert "learns something else" not in entry.why


def test_a_finished_run_is_told_again_and_no_fix_of_it_is_lost(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=1.2))
    first = trying(machine, ["a", "b"])
    measured = len(machine.places)
    again = trying(machine, ["a", "b"])
    assert len(machine.places) == measured
    assert (again.fixes, again.kept, again.together) == (first.fixes, first.kept, first.together)
    with pytest.raises(UsageError, match="it holds what came of `b`"):
        trying(machine, ["a"])


def test_fix_that_was_not_applied_on_top_of_another_is_left_out(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=1.2))
    machine.not_applied_in = {"with-a-b": "b"}
    ledger = trying(machine, ["a", "b"])
    assert ledger.kept == ("a",)
    assert "on top of a b was not applied" in by_name(ledger)["b"].why


def test_many_fixes_with_long_names_have_places_of_their_own(trying: Trying) -> None:
    names = [f"a_technique_with_a_long_name_{number}" for number in range(5)]
    machine = Machine(product(**dict.fromkeys(names, 1.2)))
    ledger = trying(machine, names)
    assert sorted(ledger.kept) == names


def test_fast_fix_that_learns_something_else_is_not_timed(trying: Trying) -> None:
    machine = Machine(product(a=3.0))
    machine.other_losses = frozenset({"a"})
    (entry,) = trying(machine, ["a"]).fixes
    assert entry.status == "rejected"
    assert entry.why.startswith("it learns something else")
    assert not any("/pair-" in place for place in machine.places)


@pytest.mark.parametrize(
    ("dtypes", "status"), [(("float32",), "rejected"), (("bfloat16", "float32"), "kept")]
)
def test_what_the_products_are_computed_in_decides_how_far_losses_may_part(
    trying: Trying, dtypes: tuple[str, ...], status: str
) -> None:
    machine = Machine(product(a=1.5))
    machine.other_losses, machine.wrong_by = frozenset({"a"}), 1.0001
    (entry,) = trying(machine, ["a"], {"a": "reduction_order"}, matmul_dtypes=dtypes).fixes
    assert entry.status == status
    # Only what the usual band rejects is held against how the script amplifies rounding.
    noisy = [place for place in machine.places if place.startswith("rounded-otherwise/")]
    assert bool(noisy) == (status == "rejected")


@pytest.mark.parametrize("where", ["losses", "pair-03"])
def test_fix_that_found_out_too_late_is_rejected_however_equal_its_losses(
    trying: Trying, where: str
) -> None:
    machine = Machine(product(a=2.0, b=1.5))
    machine.gives_wrong = lambda fix, place: fix == "a" and where in place
    ledger = trying(machine, ["a", "b"])
    entry = by_name(ledger)["a"]
    assert (entry.status, entry.why) == (
        "rejected",
        "it gave the script something else: stale items",
    )
    assert ledger.kept == ("b",)


def test_first_pair_in_which_it_gave_something_else_rejects_it(trying: Trying) -> None:
    machine = Machine(product(a=1.0, b=1.4, c=1.0, d=1.0))
    machine.gives_wrong = lambda fix, place: fix == "a" and "pair-01" in place
    pair_s = 2 * (START_S + 60 * STEP_S)
    entry = by_name(trying(machine, ["a", "b", "c", "d"], budget_s=24 * pair_s))["a"]
    assert entry.status == "rejected"
    assert entry.why == "it gave the script something else: stale items"


@pytest.mark.parametrize("edits", [(), ("a",)])
def test_timed_runs_of_a_script_without_a_seed_say_nothing_of_what_it_learns(
    trying: Trying, edits: tuple[str, ...]
) -> None:
    pair_s = 2 * (START_S + 60 * STEP_S)
    entries = []
    for pairs in (2, 3, 4, 30):
        machine = Machine(product(a=1.5))
        machine.unseeded = True
        given = {"budget_s": pairs * pair_s, "directory": f"run-{pairs}"}
        entries += trying(machine, ["a"], edits=edits, **given).fixes
    assert not any("learns something else" in entry.why for entry in entries)
    assert entries[-1].status == "kept"


def test_timed_runs_of_a_seeded_script_show_what_parts_after_the_losses_that_were_compared(
    trying: Trying,
) -> None:
    machine = Machine(product(a=1.5))
    machine.other_losses, machine.wrong_from = frozenset({"a"}), 62
    (entry,) = trying(machine, ["a"], seen_steps=80).fixes
    assert (entry.status, "learns something else: losses part" in entry.why) == ("rejected", True)


def test_losses_are_compared_where_a_late_fix_has_begun(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=1.5))
    machine.wrong_from = 170
    machine.other_losses = frozenset({"a"})
    ledger = trying(machine, ["a", "b"], late={"a": 160, "b": 160}, seen_steps=240)
    entries = by_name(ledger)
    assert entries["a"].status == "rejected"
    assert "learns something else: losses part" in entries["a"].why
    assert ledger.kept == ("b",)
    # Two runs as it is, once for both, and none of fewer steps.
    assert sum(place.startswith("baseline/losses") for place in machine.places) == 2


def test_command_that_fails_beside_a_fix_does_not_end_the_rest(trying: Trying) -> None:
    machine = Machine(product(a=1.5, b=1.5))
    machine.baseline_fails_in = "a"
    ledger = trying(machine, ["a", "b"])
    assert by_name(ledger)["a"].status == "failed"
    assert "the unchanged command failed beside it" in by_name(ledger)["a"].why
    assert ledger.kept == ("b",)


def test_small_budget_says_what_was_dropped_after_two_pairs(trying: Trying) -> None:
    names = ["a", "b", "c", "d"]
    machine = Machine(product(a=1.0, b=0.98, c=1.4, d=1.0))
    pair_s = 2 * (START_S + 60 * STEP_S)
    ledger = trying(machine, names, budget_s=18 * pair_s)
    entries = by_name(ledger)
    assert ledger.kept == ("c",)
    for name in "abd":
        assert entries[name].status == "stopped"
        assert entries[name].why.startswith("not tried further: 2 pairs showed ")
        verdict = entries[name].verdict
        assert verdict is not None
        assert verdict.num_pairs == 2
    assert machine.now <= 18 * pair_s


def test_where_all_are_to_be_measured_none_is_dropped_before_the_first_look(
    trying: Trying,
) -> None:
    names = ["a", "b", "c", "d"]
    machine = Machine(product(a=1.0, b=0.98, c=1.4, d=1.0))
    pair_s = 2 * (START_S + 60 * STEP_S)
    ledger = trying(machine, names, budget_s=26 * pair_s, to_first_look=True)
    entries = by_name(ledger)
    assert ledger.kept == ("c",)
    for name in "abd":
        assert entries[name].status == "rejected"
        verdict = entries[name].verdict
        assert verdict is not None
        assert verdict.num_pairs >= 4


def test_pairs_of_each_comparison_may_be_capped(trying: Trying) -> None:
    machine = Machine(product(a=1.002, b=1.5))
    ledger = trying(machine, ["a", "b"], most_pairs=4)
    assert [fix.verdict.num_pairs for fix in ledger.fixes if fix.verdict] == [4, 4]
    assert (
        max(int(place.split("pair-")[1][:2]) for place in machine.places if "pair-" in place) == 4
    )


@pytest.mark.parametrize("spent", [True, False])
def test_trial_that_the_budget_cut_off_is_gone_on_with(trying: Trying, spent: bool) -> None:
    class Hanging(Machine):
        def __call__(self, arm: Arm, place: Path, **rest: Any) -> Measurement:
            if "a" in arm.fixes:
                self.now += 10_000 * spent
                raise CommandFailed("`a` was ended", returncode=TIMED_OUT, arm="a")
            return super().__call__(arm, place, **rest)

    ledger = trying(Hanging(product(a=1.0)), ["a"], budget_s=600.0)
    (entry,) = ledger.fixes
    assert entry.status == ("not_tried" if spent else "failed")
    assert (ledger.continue_with is not None) is spent


@pytest.mark.parametrize(
    ("budget_s", "names"), [(None, ["starts_slowly", "quick"]), (900.0, ["quick", "starts_slowly"])]
)
def test_what_gains_as_much_in_less_time_comes_first_where_there_is_a_budget(
    trying: Trying, budget_s: float | None, names: list[str]
) -> None:
    machine = Machine(product(starts_slowly=1.2, quick=1.2))
    given = ["starts_slowly", "quick"]
    ledger = trying(machine, given, starts={"starts_slowly": 20.0}, budget_s=budget_s)
    assert [fix.name for fix in ledger.fixes] == names


def test_budget_ends_a_comparison_whose_processes_became_slow(trying: Trying) -> None:
    names = ["a", "b"]
    machine = Machine(product(a=1.1, b=1.1))
    pair_s = 2 * (START_S + 60 * STEP_S)
    machine.slow_after, machine.slow_start_s = 16, 3 * pair_s
    ledger = trying(machine, names, budget_s=35 * pair_s)
    entry = by_name(ledger)["b"]
    assert entry.status == "stopped"
    assert entry.why.startswith("out of budget: ")
    assert (
        machine.now < 35 * pair_s + 8 * machine.slow_start_s
    )  # what was promised to a confirms it


def test_small_budget_takes_fewer_steps_before_it_is_refused(trying: Trying) -> None:
    machine = Machine(product(a=1.5))
    ledger = trying(machine, ["a"], budget_s=140)
    assert ledger.steps < 55
    assert ledger.kept == ("a",)
    assert machine.now <= 140


@pytest.mark.parametrize("pairs", [12, 16, 20, 40, 80])
def test_budget_is_kept_and_what_it_left_out_is_said(trying: Trying, pairs: int) -> None:
    names = [f"fix_{number}" for number in range(8)]
    machine = Machine(product(**dict.fromkeys(names, 1.1)))
    budget_s = pairs * 2 * (START_S + 60 * STEP_S)
    ledger = trying(machine, names, budget_s=budget_s)
    assert machine.now <= budget_s
    assert [fix.name for fix in ledger.fixes] == names
    assert ledger.kept
    left_out = [fix for fix in ledger.fixes if fix.status in ("not_tried", "stopped")]
    assert left_out or pairs > 40
    assert all("out of budget" in fix.why for fix in left_out)


def counted(machine: Machine, session: str) -> set[tuple[int, int]]:
    """(warm-up, counted steps) of the processes that were timed in a session."""
    return {
        (run.plan.warmup_steps, run.plan.steps)
        for place, run in machine.finished.items()
        if place.parent.name == session and place.name.startswith("pair-")
    }


@pytest.mark.parametrize("confirmed", [True, False])
def test_steps_of_a_late_fix_and_of_what_holds_one_are_their_own(
    trying: Trying, confirmed: bool
) -> None:
    def gain(fixes: frozenset[str], session: str) -> float:
        if session.startswith("together-") and not confirmed:
            return 1.0
        return product(a=1.2, b=1.5, c=1.0)(fixes, session)

    machine = Machine(gain)
    ledger = trying(machine, ["a", "b", "c"], late={"a": 30})
    entries = by_name(ledger)
    assert ledger.kept == (("b", "a") if confirmed else ())
    assert (ledger.warmup_steps, ledger.steps) == (5, 55)
    for name in "abc":
        entry = entries[name]
        assert {(entry.warmup_steps, entry.steps)} == counted(machine, name)
    assert (entries["a"].warmup_steps, entries["a"].steps) == (30, 30)
    assert {(ledger.together_warmup_steps, ledger.together_steps)} == counted(
        machine, "together-b-a"
    )


def test_late_fix_that_adds_nothing_is_not_part_of_what_is_confirmed(trying: Trying) -> None:
    def gain(fixes: frozenset[str], session: str) -> float:
        return 1.5 if "b" in fixes else 1.2 if "a" in fixes else 1.0

    machine = Machine(gain)
    ledger = trying(machine, ["a", "b"], late={"a": 30})
    assert ledger.kept == ("b",)
    assert {(ledger.together_warmup_steps, ledger.together_steps)} == counted(machine, "together-b")
    assert ledger.together_steps == 55


def test_fix_that_was_not_timed_has_no_steps(trying: Trying) -> None:
    machine = Machine(product(a=3.0))
    machine.other_losses = frozenset({"a"})
    ledger = trying(machine, ["a"])
    (entry,) = ledger.fixes
    assert (entry.warmup_steps, entry.steps) == (None, None)
    assert (ledger.together_warmup_steps, ledger.together_steps) == (None, None)


def test_ledger_says_whether_trials_of_an_earlier_call_were_used(
    trying: Trying, tmp_path: Path
) -> None:
    assert not trying(Machine(product(a=1.0)), ["a"]).continued
    place = tmp_path / "run" / "trials" / "baseline" / "losses-of-an-earlier-call"
    place.mkdir(parents=True)
    (place / "measurement.json").write_text("{}")
    (tmp_path / "run" / "ledger.json").unlink()  # ended before it was written
    assert trying(Machine(product(b=1.0)), ["b"]).continued


def test_ledger_names_the_machines_that_trials_could_reach(trying: Trying, tmp_path: Path) -> None:
    if storage_for(tmp_path, tmp_path) is None:
        pytest.skip("this kernel gives no layers to unprivileged users")
    network = Network(("localhost:9", "b:1"))
    machine = Machine(product(a=1.5))
    ledger = trying(machine, ["a"], network=network)
    assert (ledger.network, ledger.network_hosts) == (True, network.hosts)
    ledger = trying(machine, ["a"])
    assert (ledger.network, ledger.network_hosts) == (False, ())


def test_option_that_does_not_go_with_what_was_begun_is_named(trying: Trying) -> None:
    machine = Machine(product(a=1.5))
    trying(machine, ["a"])
    said = "another --in-place: its trials were begun without it"
    with pytest.raises(UsageError, match=said) as refused:
        trying(machine, ["a"], in_place=True)
    assert "remove" not in str(refused.value)
    begun = list(machine.places)
    for budget_s in (
        100_000.0,
        140.0,
    ):  # fewer steps would fit into the last: they are no pairs of these
        assert trying(machine, ["a"], budget_s=budget_s).kept == ("a",)
    assert machine.places == begun


@pytest.mark.parametrize(
    ("ratio", "high", "effect", "again"),
    [
        (0.98, 1.15, 0.16, True),  # the expected 7 to 12 % could not have shown
        (0.98, 1.15, 0.08, False),  # they would have
        (0.90, 1.00, 0.16, False),  # no gain is possible any more
        (1.05, 1.15, 0.08, True),
    ],
)
def test_what_could_not_have_shown_is_tried_again(
    trying: Trying, ratio: float, high: float, effect: float, again: bool
) -> None:
    (entry,) = trying(Machine(product(a=1.0)), ["a"]).fixes
    assert entry.verdict is not None
    verdict = replace(
        entry.verdict, outcome="inconclusive", ratio=ratio, ratio_high=high, minimum_detectable_effect=effect
    )  # fmt: skip
    entry = replace(
        entry, status="undecided", verdict=verdict, predicted=Interval(1.09, 1.07, 1.12)
    )
    assert may_yet(entry) == again
    unknown = replace(verdict, parity=Parity("not_checked", "bitwise"))
    assert not may_yet(replace(entry, verdict=unknown))


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (0.164, "inconclusive (its pairs differ too much to show a gain below 16 %)"),
        (6167.8, "inconclusive (its pairs differ too much: even a 2x gain would not have shown)"),
        (None, "inconclusive"),
    ],
)
def test_what_pairs_could_have_shown_is_said_where_it_is_a_number(
    effect: float | None, words: str
) -> None:
    parity = Parity("same", "bitwise")
    verdict = Verdict("inconclusive", 1.0, 0.1, 9.0, 0.95, parity, "a", "b", num_pairs=10)
    found = status_of(replace(verdict, minimum_detectable_effect=effect))
    assert found == ("undecided", words)


@pytest.mark.parametrize(
    ("wrong_by", "parity_class", "kept", "num_runs"),
    [
        (1.0, "bitwise", ("a",), 1),
        (1 + 1e-6, "reduction_order", ("a",), 1),
        (1 + 1e-6, "bitwise", (), 2),
        (1 + 1e-4, "reduction_order", (), 2),
    ],
)
def test_second_run_as_it_is_is_made_only_where_the_narrowest_band_does_not_hold_losses(
    trying: Trying, wrong_by: float, parity_class: str, kept: tuple[str, ...], num_runs: int
) -> None:
    machine = Machine(product(a=1.5))
    machine.other_losses, machine.wrong_by = frozenset({"a"}), wrong_by
    assert trying(machine, ["a"], {"a": parity_class}).kept == kept
    runs = [place for place in machine.places if place.startswith("baseline/losses-")]
    assert len(runs) == num_runs
