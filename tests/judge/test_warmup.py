"""Which first steps are a script's start, and that none is ever left out silently."""

from __future__ import annotations

from dataclasses import replace

import pytest
from script_inputs import HEALTHY, script, steps

from hotloop.core.step import StepRecord
from hotloop.judge.diagnose import diagnose
from hotloop.judge.warmup import first_steady, tag_warmup


def walls(*seconds: float) -> tuple[StepRecord, ...]:
    return tuple(StepRecord(n, wall, host={"forward": wall}) for n, wall in enumerate(seconds))


def tagged(records: tuple[StepRecord, ...], tag: str, *numbers: int) -> tuple[StepRecord, ...]:
    return tuple(replace(r, tags=(*r.tags, tag)) if r.step in numbers else r for r in records)


def num_warmup(records: tuple[StepRecord, ...]) -> int:
    return sum("warmup" in record.tags for record in tag_warmup(records))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0.1] * 40, 0),
        ([5.0] + [0.1] * 40, 1),
        ([5.0, 0.5, 0.4, 0.3, 0.3] + [0.1] * 40, 5),
        ([0.111] * 10 + [0.1] * 40, 8),  # until three of five are within a tenth
        ([0.109] * 10 + [0.1] * 40, 0),
        ([0.05] * 20 + [0.1] * 40, 0),  # getting slower is no start
        ([0.1, 0.1, 3.0, 0.1, 0.1] * 10, 0),  # slow now and then, all the time
        ([2.0] * 40, 0),
        ([0.3] * 30 + [0.1] * 10, 0),  # steady nowhere in the first half
    ],
)
def test_the_start_ends_where_steps_are_like_later_ones(
    seconds: list[float], expected: int
) -> None:
    assert num_warmup(walls(*seconds)) == expected


def test_no_record_is_changed_but_for_its_tag() -> None:
    before = walls(5.0, *[0.1] * 40)
    after = tag_warmup(before)
    assert [r.wall_s for r in after] == [r.wall_s for r in before]
    assert after[1:] == before[1:]
    assert after[0].tags == ("warmup",)
    assert tag_warmup(after) == after  # once more changes nothing


def test_too_few_steps_are_left_as_they_are() -> None:
    few = walls(5.0, *[0.1] * 18)
    assert first_steady(few) is None
    assert tag_warmup(few) == few
    assert tag_warmup(()) == ()


def test_steps_that_were_tagged_stay_so() -> None:
    records = tagged(walls(*[0.1] * 40), "warmup", 0, 1, 2)
    assert num_warmup(records) == 3
    slow_after = tagged(walls(0.1, 0.1, 0.1, 4.0, *[0.1] * 40), "warmup", 0, 1, 2)
    assert num_warmup(slow_after) == 4


def test_compiling_belongs_to_the_start_and_an_evaluation_does_not() -> None:
    compiled_late = tagged(walls(*[0.1] * 6, 9.0, *[0.1] * 40), "compile", 6)
    assert num_warmup(compiled_late) == 0  # a steady window before it
    compiled_early = tagged(walls(*[0.1] * 3, 9.0, *[0.1] * 40), "compile", 3)
    assert num_warmup(compiled_early) == 4
    evaluated_first = tagged(walls(3.0, *[0.1] * 40), "eval", 0)
    assert num_warmup(evaluated_first) == 0


def test_the_diagnosis_counts_the_start_of_a_script_as_warm_up() -> None:
    slow = steps(each=lambda n, r: replace(r, wall_s=3.0, host={"forward": 3.0}) if n < 2 else r)
    diagnosis = diagnose(script(slow, HEALTHY))
    assert (diagnosis.steps.warmup, diagnosis.steps.measured) == (2, 58)
    assert diagnosis.steps.median_s == pytest.approx(0.1)
    own = diagnose(script(slow, replace(HEALTHY, loader={"num_workers": 0})))
    assert own.steps.warmup == 0  # hotloop's own trainer says itself what its start is


def test_steps_that_are_faster_after_the_profiler_make_no_start_of_those_before() -> None:
    records = walls(0.5, 0.3, *[0.1] * 38, *[0.2] * 3, *[0.05] * 40)
    seen = tagged(records, "profiled", 40, 41, 42)
    assert num_warmup(seen) == 2
    assert num_warmup(records) > 30
    # With too few before it, those after it tell what is usual.
    early = tagged(walls(*[0.1] * 15, 0.2, *[0.05] * 40), "profiled", 15)
    assert num_warmup(early) == 14  # three of five are within a tenth
