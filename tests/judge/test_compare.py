"""A wrong verdict is the worst bug this project can have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from judge_inputs import ENVIRONMENT, pairs, run, sampled

from hotloop.core.census import Census
from hotloop.core.errors import UsageError
from hotloop.core.files import to_plain
from hotloop.core.judgement import Verdict
from hotloop.core.measurement import COMPARABLE_KEYS, Environment, Measurement
from hotloop.core.step import StepRecord
from hotloop.judge.compare import Pair, compare

GOLDEN = Path(__file__).parent.parent / "golden" / "verdict.json"


def judge(*args, **kwargs) -> Verdict:
    return compare(*args, parity_class="reduction_order", **kwargs)


def said(verdict: Verdict) -> str:
    return " ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [(1.3, "improved"), (1.05, "improved"), (1 / 1.3, "regressed"), (1 / 1.05, "regressed")],
)
def test_a_clear_difference_is_called_by_its_direction(ratio: float, outcome: str) -> None:
    verdict = judge(pairs(ratio, 6))
    assert verdict.outcome == outcome
    assert verdict.ratio_low < ratio < verdict.ratio_high
    assert verdict.ratio == pytest.approx(ratio, rel=0.01)


def test_no_difference_and_little_scatter_is_unchanged() -> None:
    verdict = judge(pairs(1.0, 10, scatter=0.5))
    assert verdict.outcome == "unchanged"
    assert verdict.ratio_low > 1 / 1.01
    assert verdict.ratio_high < 1.01


def test_no_difference_and_much_scatter_is_inconclusive() -> None:
    assert judge(pairs(1.0, 6, scatter=10)).outcome == "inconclusive"


def test_a_gain_below_one_per_cent_is_never_improved() -> None:
    verdict = judge(pairs(1.008, 10, scatter=0.02))
    assert verdict.ratio_low > 1
    assert verdict.outcome == "unchanged"


def test_a_wide_noise_floor_is_not_a_place_to_call_things_unchanged() -> None:
    # Both arms drift together, so pairs agree while identical runs differ by 10 %.
    drifting = [
        (run("plain", b * s), run("fast", c * s))
        for (b, c), s in zip(
            [(0.1, 0.0962), (0.1, 0.0960), (0.1, 0.0963), (0.1, 0.0961)], [1.0, 1.2, 1.0, 1.2]
        )
    ]
    verdict = judge(drifting)
    assert verdict.noise_floor > 0.04
    assert verdict.ratio_high < 1 + verdict.noise_floor
    assert verdict.outcome == "inconclusive"
    assert "too wide to call it unchanged" in said(verdict)


@pytest.mark.parametrize("key", COMPARABLE_KEYS)
def test_each_key_that_matters_makes_runs_incomparable(key: str) -> None:
    value = getattr(ENVIRONMENT, key)
    other = replace(ENVIRONMENT, **{key: value + 1 if isinstance(value, int | float) else "other"})
    verdict = judge(pairs(1 / 1.5, 6, environment=other))
    assert verdict.outcome == "incomparable"
    assert verdict.ratio is None
    assert f"`{key}`" in said(verdict)


def test_different_gpu_is_incomparable_not_regressed() -> None:
    def gpu(name: str) -> Environment:
        return replace(ENVIRONMENT, device=name)

    mixed = [
        (
            run("plain", environment=gpu("NVIDIA H200")),
            run("fast", 0.2, environment=gpu("NVIDIA L4")),
        )
        for _ in range(6)
    ]
    verdict = judge(mixed)
    assert verdict.outcome == "incomparable"
    assert "NVIDIA H200" in said(verdict)
    assert "NVIDIA L4" in said(verdict)


def test_one_odd_environment_among_many_pairs_is_enough_to_be_incomparable() -> None:
    some = pairs(1.3, 6)
    some[4] = (some[4][0], replace(some[4][1], environment=replace(ENVIRONMENT, torch="2.12.0")))
    assert judge(some).outcome == "incomparable"


@pytest.mark.parametrize("key", ["kernel", "load_average", "git_commit", "num_cpus"])
def test_a_key_that_does_not_matter_leaves_runs_comparable(key: str) -> None:
    other = replace(ENVIRONMENT, **{key: "5.0" if key in ("kernel", "git_commit") else 7})
    assert judge(pairs(1.3, 6, environment=other)).outcome == "improved"


def test_one_pair_is_inconclusive() -> None:
    verdict = judge(pairs(3.0, 1))
    assert verdict.outcome == "inconclusive"
    assert verdict.ratio == pytest.approx(3.0, rel=0.02)
    assert verdict.ratio_low is verdict.ratio_high is verdict.confidence is None
    assert verdict.noise_floor is verdict.minimum_detectable_effect is None


@pytest.mark.parametrize("count", [2, 3])
def test_fewer_pairs_than_the_first_look_are_inconclusive(count: int) -> None:
    verdict = judge(pairs(3.0, count, scatter=0.01))
    assert verdict.outcome == "inconclusive"
    assert f"{count} of at least 4 pairs" in said(verdict)
    assert verdict.ratio_low < verdict.ratio < verdict.ratio_high


def test_no_pair_at_all_is_inconclusive() -> None:
    assert judge([]).outcome == "inconclusive"


def test_an_interrupted_session_gets_a_wider_interval_than_either_look_around_it() -> None:
    some = pairs(1.1, 6)
    at_five, at_six = judge(some[:5]), judge(some)
    assert "not a planned look" in said(at_five)
    assert at_five.num_looks == at_six.num_looks == 2
    assert at_five.confidence == pytest.approx(1 - 0.01 - 0.0075)
    assert at_six.confidence == pytest.approx(1 - 0.01 - 0.015)
    widened = judge(some[:5], looks=(5,))  # the same pairs with all error at one look
    assert at_five.ratio_high - at_five.ratio_low > 1.5 * (widened.ratio_high - widened.ratio_low)


def test_more_pairs_than_the_last_look_are_refused() -> None:
    with pytest.raises(ValueError, match="plan the looks"):
        judge(pairs(1.1, 11))


def test_the_confidence_at_the_last_look_is_95_per_cent() -> None:
    verdict = judge(pairs(1.1, 10))
    assert verdict.num_looks == 3
    assert verdict.confidence == pytest.approx(0.95)


def test_equal_ratios_in_every_pair_are_no_measurement() -> None:
    verdict = judge([(run("plain", 0.1), run("fast", 0.05)) for _ in range(6)])
    assert verdict.outcome == "inconclusive"
    assert "clock is too coarse" in said(verdict)


def test_a_baseline_that_always_ran_first_proves_nothing() -> None:
    ordered = [
        (replace(b, plan=replace(b.plan, position=0)), replace(c, plan=replace(c.plan, position=1)))
        for b, c in pairs(1.3, 6)
    ]
    verdict = judge(ordered)
    assert verdict.outcome == "inconclusive"
    assert "`plain` ran first in every pair" in said(verdict)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_times_that_are_not_positive_numbers_are_refused(seconds: float) -> None:
    some = pairs(1.1, 4)
    records = list(some[2][1].records)
    records[7] = replace(records[7], wall_s=seconds)
    some[2] = (some[2][0], replace(some[2][1], records=tuple(records)))
    with pytest.raises(UsageError, match="step 7") as caught:
        judge(some)
    assert "`fast`" in str(caught.value)


def test_a_run_without_counted_steps_is_incomparable() -> None:
    some = pairs(1.1, 4)
    some[1] = (some[1][0], replace(some[1][1], records=some[1][1].records[:2]))
    verdict = judge(some)
    assert verdict.outcome == "incomparable"
    assert "`fast` in pair 2 has no step that counts" in said(verdict)


def test_a_failed_run_is_incomparable() -> None:
    some = pairs(1.1, 4)
    some[0] = (some[0][0], replace(some[0][1], returncode=1))
    assert judge(some).outcome == "incomparable"


def test_tokens_against_steps_are_incomparable() -> None:
    some = [(b, run("fast", 0.09, tokens=None)) for b, _ in pairs(1.1, 4)]
    verdict = judge(some)
    assert verdict.outcome == "incomparable"
    assert "step and token" in said(verdict)


def test_runs_of_unequal_length_are_not_judged() -> None:
    some = [(b, run("fast", 0.05 + 0.001 * i, steps=12)) for i, (b, _) in enumerate(pairs(1, 4))]
    verdict = judge(some)
    assert verdict.outcome == "inconclusive"
    assert "between 12 and 30 steps" in said(verdict)


def test_work_per_step_is_divided_out() -> None:
    # Twice the tokens in twice the time is no change.
    some = [(run("plain", 0.1 + 1e-4 * (i % 2)), run("large", 0.2, tokens=2000)) for i in range(6)]
    verdict = judge(some)
    assert verdict.outcome == "unchanged"
    assert verdict.unit == "token"
    assert verdict.baseline_s_per_work == pytest.approx(1e-4, rel=1e-2)


def test_steps_that_may_be_of_other_samples_decide_only_where_losses_are_equal() -> None:
    losses = [2.0 - 0.02 * step + 0.01 * (step % 3) for step in range(32)]

    def judged(difference: float, **how: bool) -> Verdict:
        other = [loss * (1 + difference * (-1) ** step) for step, loss in enumerate(losses)]
        some = [
            (run("plain", 0.1 + i * 1e-4, tokens=None, losses=losses), run("fast", 0.05, tokens=None, losses=other))
            for i in range(4)
        ]  # fmt: skip
        return compare(some, parity_class="reduced_precision", **how)

    assert judged(1e-3).outcome == "improved"  # of one batch size, as the caller knows
    alike = judged(1e-6, equal_steps=False)
    assert alike.outcome == "improved"
    assert "What is compared is the time per step." in said(alike)
    other = judged(1e-3, equal_steps=False)
    assert other.outcome == "inconclusive"
    assert other.ratio == pytest.approx(2, rel=0.01)
    assert "How many samples each step takes was not seen" in said(other)
    tokens = judge(pairs(1.3, 4), equal_steps=False)
    assert tokens.outcome == "improved"
    assert "the time per token." in said(tokens)


def test_warmup_steps_are_not_counted() -> None:
    assert judge(pairs(1.1, 4)).all_in.ratio == pytest.approx(1.1, rel=0.01)


def test_plain_samples_are_compared_by_value_per_work() -> None:
    some = [
        (sampled("plain", [1.0, 1.01, 1.02 + 0.01 * i]), sampled("fast", [1.0, 1.01, 1.02], 1.3))
        for i in range(4)
    ]
    some[0] = (sampled("plain", [1.0, 1.013, 1.02]), some[0][1])
    verdict = judge(some)
    assert verdict.unit == "work"
    assert verdict.outcome == "improved"
    assert verdict.parity.result == "not_checked"


def test_typical_step_that_gains_while_all_steps_together_lose_is_no_improvement() -> None:
    verdict = judge(with_stall(2.0))  # one stall of 20 steps
    assert verdict.outcome == "inconclusive"
    assert verdict.all_in.ratio_high < 1
    (doubt,) = verdict.doubts
    assert doubt.startswith(
        "Its typical step is faster (1.1x), but all steps together are slower (0.6"
    )
    assert doubt in verdict.reasons


def with_stall(seconds: float, *, tags: tuple[str, ...] = (), at: int = -1) -> list[Pair]:
    """Pairs of a candidate whose steps take 10 % less, but for one of them."""
    some = []
    for baseline, candidate in pairs(1.1, 6):
        records = list(candidate.records)
        records[at] = replace(records[at], wall_s=seconds, tags=tags)
        some.append((baseline, replace(candidate, records=tuple(records))))
    return some


def test_slow_steps_that_eat_part_of_the_gain_count() -> None:
    verdict = judge(with_stall(0.2))
    assert (verdict.outcome, verdict.over) == ("improved", "all")
    assert verdict.ratio == verdict.all_in.ratio == pytest.approx(30 / (29 / 1.1 + 2), rel=0.01)


def test_steps_that_compile_once_are_a_cost_of_the_start_and_not_of_every_stretch() -> None:
    once, late = (judge(with_stall(2.0, tags=("compile",), at=at)) for at in (4, -1))
    assert once.outcome == "improved"
    assert once.all_in.ratio == pytest.approx(1.1, rel=0.01)
    assert late.outcome == "inconclusive"


def fed(
    arm: str, step_s: float, *, ready: tuple[int, int], position: int, luck: float
) -> Measurement:
    """A run over 30 batches of loader workers, of which fewer and fewer are ready."""
    made = run(arm, step_s * (1 + luck), position=position)
    first, last = ready
    records = []
    for number, record in enumerate(made.records):
        left = first + (last - first) * max(number - 2, 0) / 29
        records.append(replace(record, batches_taken=1, batches_ready=round(left)))
    return replace(made, records=tuple(records))


def queued(ready: tuple[int, int]) -> list[Pair]:
    """Workers make a batch each 0.1 s either way; the candidate has some in stock, and takes 0.05 s a step."""
    some = []
    for i in range(4):
        lucks = [0.002 * (-1) ** i, 0.001 * (i % 3)]
        baseline = fed("plain", 0.1, ready=(0, 0), position=i % 2, luck=lucks[0])
        candidate = fed("fast", 0.05, ready=ready, position=1 - i % 2, luck=lucks[1])
        some.append((baseline, candidate))
    return some


def test_speed_that_a_full_queue_lends_is_not_counted() -> None:
    verdict = judge(queued((15, 0)), over="all")
    assert verdict.outcome != "improved"
    assert verdict.ratio == pytest.approx(1.0, abs=0.06)
    assert judge(queued((15, 15)), over="all").ratio == pytest.approx(2.0, rel=0.01)


def ending(ready: tuple[int, int], last_made: int) -> list[Pair]:
    """As `queued`, with an epoch whose last batch is made that many steps before its end: the queue runs empty."""
    some = []
    for baseline, candidate in queued(ready):
        records = list(candidate.records)
        left = records[-last_made - 1].batches_ready
        assert left is not None
        for number in range(last_made):
            few = round(left * (1 - (number + 1) / last_made))
            place = len(records) - last_made + number
            records[place] = replace(records[place], batches_ready=few, batches_to_come=False)
        records[:-last_made] = [replace(r, batches_to_come=True) for r in records[:-last_made]]
        some.append((baseline, replace(candidate, records=tuple(records))))
    return some


def test_queue_that_runs_empty_at_the_end_of_an_epoch_takes_nothing_off() -> None:
    full = ending((15, 15), 15)
    assert judge(full, over="all").ratio == pytest.approx(2.0, rel=0.01)
    unknown = [
        tuple(replace(run, records=tuple(replace(r, batches_to_come=None) for r in run.records)) for run in pair)
        for pair in full
    ]  # fmt: skip
    assert judge(unknown, over="all").ratio < 1.1  # type: ignore[arg-type]


def test_waves_of_batches_are_compared_at_their_height() -> None:
    """Twelve workers deliver at once: what is ready falls from 11 to 0 between two waves, and grows no shorter."""
    some = []
    for baseline, candidate in queued((0, 0)):
        waves = [replace(r, batches_ready=11 - n % 12) for n, r in enumerate(candidate.records)]
        some.append((baseline, replace(candidate, records=tuple(waves))))
    assert judge(some, over="all").ratio == pytest.approx(2.0, rel=0.01)


def test_queue_that_became_shorter_before_the_end_of_the_epoch_still_does() -> None:
    assert judge(ending((15, 0), 10), over="all").ratio == pytest.approx(1.0, abs=0.06)


def test_steps_that_are_all_after_the_last_batch_was_made_are_looked_at_as_they_are() -> None:
    assert judge(ending((28, 25), 25), over="all").outcome == "inconclusive"


def test_what_a_queue_lent_makes_nothing_slower() -> None:
    verdict = judge(queued((20, 0)), over="all")  # workers had made the last batch before the end
    assert verdict.ratio_high < 1
    assert verdict.outcome == "inconclusive"
    assert any("how fast they are made shows at least" in doubt for doubt in verdict.doubts)


def test_steps_fed_by_a_queue_alone_say_nothing() -> None:
    verdict = judge(queued((30, 0)), over="all")
    assert verdict.outcome == "inconclusive"
    assert "of the batches of the counted steps were ready before them" in verdict.doubts[0]


def second_is_slower(ratio: float, count: int) -> list[Pair]:
    """Each process that runs second in its pair takes 5 % longer."""
    some = []
    for pair in pairs(ratio, count):
        slow = [
            replace(r, records=tuple(replace(e, wall_s=1.05 * e.wall_s) for e in r.records))
            if r.plan.position == 1
            else r
            for r in pair
        ]
        some.append((slow[0], slow[1]))
    return some


@pytest.mark.parametrize("ratio", [1.0, 1.06])
def test_what_running_second_costs_hides_no_gain(ratio: float) -> None:
    verdict = judge(second_is_slower(ratio, 6))
    assert verdict.ratio == pytest.approx(ratio, abs=0.01)
    assert verdict.ratio_high - verdict.ratio_low < 0.04


def test_explicit_aa_pairs_raise_the_noise_floor() -> None:
    some = pairs(1.04, 6)
    restless = [(run("plain", 0.1), run("plain", 0.13)), (run("plain", 0.14), run("plain", 0.1))]
    quiet, noisy = judge(some), judge(some, baseline_aa=restless)
    assert quiet.outcome == "improved"
    assert noisy.noise_floor > 5 * quiet.noise_floor
    assert noisy.outcome != "improved"


def test_aa_pairs_from_another_machine_are_left_out_of_the_floor_and_named() -> None:
    elsewhere = replace(ENVIRONMENT, cpu_model="Other")
    foreign = (run("plain", 0.1, environment=elsewhere), run("plain", 0.2, environment=elsewhere))
    some = pairs(1.3, 6)
    verdict = judge(some, baseline_aa=[foreign])
    assert verdict.noise_floor == judge(some).noise_floor
    assert "A/A pair 1 says nothing" in said(verdict)


def test_aa_pairs_that_count_other_steps_are_left_out_of_the_floor_and_named() -> None:
    shorter = (run("plain", 0.1, steps=20), run("plain", 0.2, steps=20))
    some = pairs(1.3, 6)
    verdict = judge(some, baseline_aa=[shorter])
    assert verdict.noise_floor == judge(some).noise_floor
    assert "A/A pair 1 counts other steps" in said(verdict)


def with_evaluations(ratio: float, *places: tuple[int, int]) -> list[Pair]:
    """Toggled pairs of 30 steps, with evaluations of 1 s at so many of the baseline's and of the candidate's."""
    return [
        tuple(
            replace(run, records=tuple(_slow(run.records, range(-count, 0))))
            for run, count in zip(pair, counts)
        )
        for pair, counts in zip(pairs(ratio, len(places)), places)
    ]


def _slow(records: Sequence[StepRecord], places: Iterable[int]) -> list[StepRecord]:
    found = list(records)
    for place in places:
        found[place] = replace(found[place], wall_s=1.0)
    return found


def test_evaluations_that_take_a_third_of_the_time_shrink_the_gain() -> None:
    """Whichever half of a toggled process they fell into."""
    some = with_evaluations(1.1, (4, 0), (0, 4), (3, 1), (2, 2), (1, 3), (4, 0))
    verdict = judge(some, toggled=True)
    assert (verdict.outcome, verdict.over) == ("improved", "steady")
    beyond = (4 * 1.0 - 4 * 0.095) / 2
    assert verdict.ratio == pytest.approx((3.0 + beyond) / (3.0 / 1.1 + beyond), rel=0.01)
    assert verdict.baseline_s_per_work == pytest.approx((3.0 + beyond) / 30_000, rel=0.02)
    assert "Rare slow steps, such as evaluations and saves, take 3" in said(verdict)


def test_gain_that_evaluations_hide_is_none() -> None:
    assert judge(pairs(1.03, 6), toggled=True).outcome == "improved"
    assert judge(with_evaluations(1.03, *[(14, 14)] * 6), toggled=True).outcome == "unchanged"


@pytest.mark.parametrize(("over", "outcome"), [("steady", "unchanged"), ("all", "improved")])
def test_gains_in_rare_steps_are_seen_by_all_steps_together(over: str, outcome: str) -> None:
    some = []
    for baseline, candidate in pairs(1.0, 6, scatter=0.1):
        records = list(baseline.records)
        records[-1] = replace(records[-1], wall_s=2.0)
        some.append((replace(baseline, records=tuple(records)), candidate))
    verdict = judge(some, over=over)
    assert (verdict.outcome, verdict.over) == (outcome, over)
    if over == "all":
        assert verdict.ratio == verdict.all_in.ratio == pytest.approx((29 * 0.1 + 2) / 3, rel=0.01)


@pytest.mark.parametrize("num_ends", [0, 2, 4])
def test_ends_of_epochs_that_larger_batches_come_to_sooner_are_as_long_in_both(
    num_ends: int,
) -> None:
    some = []
    for baseline, candidate in pairs(1.0, 6):
        records = [replace(r, tokens=4000, wall_s=1.2 * r.wall_s) for r in candidate.records]
        for place in range(5, 5 + 5 * num_ends, 5):
            records[place] = replace(records[place], wall_s=3.0)
        some.append((baseline, replace(candidate, records=tuple(records))))
    ends_s = num_ends * (3.0 - 0.12) / (30 * 5)  # per 1000 tokens of both
    verdict = judge(some)
    assert (verdict.outcome, verdict.over) == ("improved", "steady")
    assert verdict.ratio == pytest.approx((0.1 + ends_s) / (0.03 + ends_s), rel=0.02)
    assert verdict.doubts == ()


def test_the_noise_floor_is_the_rms_of_aa_log_ratios_over_root_pairs() -> None:
    some = pairs(1.3, 4)
    medians = [b.records[5].wall_s for b, _ in some]
    squares = [math.log(a / b) ** 2 for a, b in pairwise(medians)]
    expected = math.exp(math.sqrt(sum(squares) / 3) / 2) - 1
    assert judge(some).noise_floor == pytest.approx(expected)


def test_no_pair_is_ever_left_out() -> None:
    some = pairs(1.3, 6)
    some[3] = (some[3][0], run("fast", 5.0))  # a wild one
    verdict = judge(some)
    assert len(verdict.pair_ratios) == verdict.num_pairs == 6
    assert min(verdict.pair_ratios) < 0.03
    assert verdict.outcome == "inconclusive"


def test_wild_pairs_still_give_a_verdict_that_can_be_stored() -> None:
    some = [(run("plain", 1e-6), run("fast", 1e3)), (run("plain", 1e3), run("fast", 1e-6))]
    stored = json.loads(json.dumps(to_plain(judge(some)), allow_nan=False))
    assert stored["outcome"] == "inconclusive"
    assert stored["ratio_low"] < 1 < stored["ratio_high"]


def test_pairs_of_more_than_one_comparison_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one comparison"):
        judge([*pairs(1.1, 3), (run("plain"), run("third"))])


def test_swapping_the_arms_inverts_the_verdict() -> None:
    some = pairs(1.07, 6)
    there, back = judge(some), judge([(c, b) for b, c in some])
    assert (there.outcome, back.outcome) == ("improved", "regressed")
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.ratio_low * back.ratio_high == pytest.approx(1)


def within(ratio: float) -> list[tuple[Measurement, Measurement]]:
    """Halves of six processes: each process has a speed of its own, 10 % from the next one's."""
    speeds = [0.1, 0.12, 0.09, 0.11, 0.095, 0.105]
    scatter = [1.0, 1.002, 0.999, 1.001, 0.998, 1.003]
    return [
        (run("plain", s), run("fast", s / ratio * wobble)) for s, wobble in zip(speeds, scatter)
    ]


def test_halves_of_a_process_have_in_common_what_processes_differ_by() -> None:
    quiet = [(run("plain", 0.1), run("plain", 0.1001)) for _ in range(6)]
    judged = [
        judge(within(1.04), baseline_aa=quiet, toggled=toggled, looks=(4, 6))
        for toggled in (True, False)
    ]
    assert [verdict.outcome for verdict in judged] == ["improved", "inconclusive"]
    assert judged[0].switched
    assert judged[0].noise_floor == pytest.approx(0.001 / math.sqrt(6), rel=0.01)
    assert "turned on and off" in said(judged[0])
    assert judge(within(1.0), baseline_aa=quiet, toggled=True).outcome == "unchanged"


def test_what_the_halves_without_it_differ_by_is_the_noise() -> None:
    noisy = [(run("plain", 0.1), run("plain", 0.1 * (1.3 if n % 2 else 0.75))) for n in range(6)]
    verdict = judge(within(1.06), baseline_aa=noisy, toggled=True, looks=(4, 6))
    assert verdict.noise_floor > 0.06
    assert verdict.outcome == "inconclusive"


def test_halves_of_a_process_say_nothing_of_what_it_learns() -> None:
    verdict = judge(within(1.06), toggled=True, looks=(4, 6))
    assert verdict.parity.result == "not_checked"
    assert "one process" in verdict.parity.reason


def test_the_golden_verdict_is_unchanged() -> None:
    # No switch rewrites the file: a changed verdict is read by a person, who copies it from the failure.
    plain = to_plain(judge(pairs(1.1, 6), baseline_aa=[(run("plain", 0.1), run("plain", 0.101))]))
    golden = json.loads(GOLDEN.read_text())
    assert _close(plain, golden), json.dumps(plain, indent=1)


def _close(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_close(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_close(a, b) for a, b in zip(left, right))
    return left == right


def test_different_numbers_of_threads_are_said() -> None:
    def threaded(measurement: Measurement, threads: int) -> Measurement:
        return replace(measurement, census=Census(num_threads=threads))

    some = pairs(1.3, 6)
    same = judge([(threaded(b, 2), threaded(c, 2)) for b, c in some])
    other = judge([(threaded(b, 1), threaded(c, 2)) for b, c in some])
    assert "threads" not in said(same)
    assert "different numbers of threads: 1 against 2" in said(other)
