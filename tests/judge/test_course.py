"""What is drawn of a run: nothing is smoothed away, and what adds up still adds up."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_inputs import curve as losses_of
from judge_inputs import pairs, phased, run

from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.judge.course import (
    CURVE_PLACES,
    SPANS,
    TELEMETRY_PLACES,
    arms_course,
    machine_course,
    pace,
    pair_speeds,
    step_course,
)


def test_one_slow_step_among_a_hundred_thousand_is_still_the_edge_of_the_band() -> None:
    records = [StepRecord(n, 0.1, tokens=1000, loss=3.0) for n in range(100_000)]
    records[54_321] = StepRecord(54_321, 5.0, tokens=1000, loss=9.5)
    found = step_course(records)
    assert found is not None
    assert len(found.rate.x) <= CURVE_PLACES
    assert len(found.spans) <= SPANS
    assert min(low for low in found.rate.low if low is not None) == pytest.approx(200.0)
    assert max(high for high in found.loss.high if high is not None) == 9.5
    assert {round(mid or 0) for mid in found.loss.mid} == {3}
    assert max(span.longest_s for span in found.spans) == 5.0


@given(st.integers(1, 1000))
def test_every_step_falls_into_exactly_one_span(count: int) -> None:
    found = step_course([StepRecord(n, 0.5, host={"forward": 0.5}) for n in range(count)])
    assert found is not None
    assert sum(span.num_steps for span in found.spans) == count
    assert math.fsum(span.num_steps * span.wall_s for span in found.spans) == pytest.approx(
        count / 2
    )
    edges = [(span.first_step, span.last_step) for span in found.spans]
    assert edges[0][0] == 0
    assert edges[-1][1] == count - 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(edges))


def test_phases_of_a_span_add_up_to_its_step_and_tags_are_counted() -> None:
    records = [
        phased(n, 1.0 + (n % 100 == 7), *(("eval",) if n % 100 == 7 else ()),
               forward=0.4, backward=0.6, **({"eval": 1.0} if n % 100 == 7 else {}))
        for n in range(600)
    ]  # fmt: skip
    found = step_course(records)
    assert found is not None
    for span in found.spans:
        assert math.fsum(span.host.values()) == pytest.approx(span.wall_s)
    assert sum(span.tags.get("eval", 0) for span in found.spans) == 6
    assert "data_wait" not in found.spans[0].host


def test_losses_that_are_no_numbers_leave_gaps_and_are_counted() -> None:
    found = step_course(losses_of([3.0, float("nan"), 2.0, None, float("inf")]))
    assert found is not None
    assert found.loss.mid == (3.0, None, 2.0, None, None)
    assert (found.num_not_finite, found.first_not_finite) == (2, 1)
    assert found.loss.num_values == 2
    assert found.grad_norm.num_values == 0


def test_pace_is_of_steps_without_a_tag() -> None:
    records = [StepRecord(n, 0.1, tokens=100) for n in range(100)]
    records += [
        StepRecord(100, 50.0, tokens=100, tags=("compile",)),
        StepRecord(101, 0.0, tokens=100),
    ]
    found = pace(records)
    assert found is not None
    assert (found.unit, found.num_steps) == ("token", 100)
    assert found.low == found.median == found.high == pytest.approx(1000.0)
    assert pace([]) is None
    assert pace([StepRecord(0, 1.0, tags=("gc",))]) is None
    assert step_course([]) is None


def test_a_run_without_tokens_is_counted_in_samples_or_steps() -> None:
    samples = step_course([StepRecord(0, 0.5, samples=8), StepRecord(1, 0.5, samples=8)])
    steps = step_course([StepRecord(0, 0.5), StepRecord(1, 0.5)])
    assert samples is not None
    assert steps is not None
    assert (samples.unit, samples.rate.mid) == ("sample", (16.0, 16.0))
    assert (steps.unit, steps.rate.mid) == ("step", (2.0, 2.0))


def test_a_night_between_two_processes_is_cut_out_of_the_time_axis() -> None:
    samples = [TelemetrySample(float(n), cpu_fraction=0.5) for n in range(5)]
    samples += [TelemetrySample(40_000.0 + n, cpu_fraction=0.7) for n in range(5)]
    found = machine_course(samples[::-1])
    assert found is not None
    assert found.breaks == (4.0,)
    assert found.seconds == 9.0
    assert found.curves["cpu_fraction"].mid == (0.5,) * 5 + (0.7,) * 5
    assert set(found.curves) == {"cpu_fraction"}
    assert machine_course(samples[:1]) is None


def test_long_telemetry_keeps_its_extremes() -> None:
    samples = [TelemetrySample(float(n), process_bytes=100) for n in range(50_000)]
    samples[777] = replace(samples[777], process_bytes=9000)
    found = machine_course(samples)
    assert found is not None
    assert len(found.curves["process_bytes"].x) <= TELEMETRY_PLACES
    assert max(found.curves["process_bytes"].high) == 9000.0  # type: ignore[type-var]


def test_a_gpu_that_is_not_always_seen_has_gaps_and_its_throttling_is_a_share() -> None:
    gpu = GpuSample(3, name="H200", busy_fraction=0.9, throttled_by=("power_cap",))
    samples = [TelemetrySample(float(n), gpus=(gpu,) if n % 4 else ()) for n in range(40)]
    found = machine_course(samples)
    assert found is not None
    (card,) = found.gpus
    assert (card.index, card.name) == (3, "H200")
    assert card.throttled == {"power_cap": 0.75}
    assert card.curves["busy_fraction"].num_values == 30
    assert "power_w" not in card.curves


def test_speeds_of_pairs_are_those_that_the_verdict_compares() -> None:
    measured = [(n, base, cand) for n, (base, cand) in enumerate(pairs(2.0, 3), 1)]
    found = pair_speeds([*measured, (4, None, run("fast"))])
    assert [each.pair for each in found] == [1, 2, 3, 4]
    assert found[3].baseline_per_s is None
    for each in found[:3]:
        assert each.baseline_per_s is not None
        assert each.candidate_per_s is not None
        assert each.candidate_per_s / each.baseline_per_s == pytest.approx(2.0, rel=0.05)


def test_losses_of_two_arms_are_held_against_each_other_at_common_steps() -> None:
    base = [losses_of([4.0, 2.0, 1.0]), losses_of([4.0, 2.2, 1.0])]
    found = arms_course(base, [losses_of([4.4, 2.1])])
    assert found is not None
    assert found.baseline.low == (4.0, 2.0, 1.0)
    assert found.baseline.high == (4.0, 2.2, 1.0)
    assert found.difference.mid == pytest.approx((0.1, 0.0))
    assert arms_course(base, []) is None
    assert arms_course([losses_of([None])], base) is None
