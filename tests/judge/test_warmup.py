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


def around_the_profiler(before_s: float, after_s: float, **host: float) -> tuple[StepRecord, ...]:
    """30 steps that compute, 3 under the profiler, 30 after it; each with `host`, too."""

    def step(n: int, seconds: float, *tags: str) -> StepRecord:
        phases = {"forward": seconds, **host}
        return StepRecord(n, sum(phases.values()), host=phases, tags=tags)

    seconds = [before_s] * 30 + [3 * before_s] * 3 + [after_s] * 30
    return tuple(step(n, s, *(["profiled"] if 30 <= n < 33 else [])) for n, s in enumerate(seconds))


def test_what_the_profiler_made_faster_is_left_out_and_that_is_said() -> None:
    """What it frees changes how memory is given back: the steps after it are not the script's own pace."""
    diagnosis = diagnose(script(around_the_profiler(0.1, 0.05)))
    assert (diagnosis.steps.measured, diagnosis.steps.median_s) == (30, pytest.approx(0.1))
    assert any(
        line.startswith("30 steps after torch's profiler") for line in diagnosis.not_examined
    )
    for after in (0.095, 0.1, 0.2):
        same = diagnose(script(around_the_profiler(0.1, after)))
        assert same.steps.measured == 60
    on_gpu = replace(HEALTHY, device="cuda:0")
    assert diagnose(script(around_the_profiler(0.1, 0.05), on_gpu)).steps.measured == 60


def test_what_became_faster_later_was_not_the_profiler() -> None:
    """Other programs ended 40 steps after it: the typical step is the one since."""

    def step(n: int, seconds: float, *tags: str) -> StepRecord:
        return StepRecord(n, seconds, host={"forward": seconds}, tags=tags)

    seconds = [0.1] * 30 + [0.3] * 3 + [0.1] * 40 + [0.05] * 250
    records = [step(n, s, *(["profiled"] if 30 <= n < 33 else [])) for n, s in enumerate(seconds)]
    diagnosis = diagnose(script(records))
    assert not any("profiler, whose traces" in line for line in diagnosis.not_examined)
    assert diagnosis.steps.median_s == pytest.approx(0.05)


BUSY_MS = (
    "142 318 434 105 125 339 371 389 392 124 79 33 62 283 43 78 427 303 274 278 290 274 278 274 270 306 "
    "53 31 38 52 26 28 23 26 55 37 19 14 18 14 38 263 18 82 39 15 13 9 254 24 6 6 5 8 6 5 7 8 10 8 70 11 "
    "7 9 7 7 9 7 5 6 6 5 5 11 93 13 59 23 125 26 81 297 17 27 24 24 19 17 32 17 39 155 276 142 12 11 12 "
    "262 285 419 99 256 163 52 190 240 549 486 390 133 506 591 234 56 95 136 295 218 101 127 585 554 534 "
    "361 257 "
)
"""Computing per step as recorded while other programs came and went; step 41 was under the profiler."""


def test_other_programs_that_come_and_go_are_neither_the_profiler_nor_a_start() -> None:
    seconds = [int(ms) / 1000 for ms in BUSY_MS.split()]
    recorded = tagged(tagged(walls(*seconds), "warmup", *range(10)), "profiled", 41)
    assert not any("after_profiler" in r.tags for r in tag_warmup(recorded, frees_memory=True))
    slow, fast = seconds[91:111], seconds[44:74]
    assert num_warmup(walls(*slow, *fast, *slow, *fast)) == 0  # it comes again
    assert num_warmup(walls(*slow, *fast, *fast, *fast)) >= 20


def test_where_its_memory_is_kept_faster_steps_after_the_profiler_count() -> None:
    """Something else made them faster."""
    freed = script(around_the_profiler(0.1, 0.05), HEALTHY)
    kept = script(around_the_profiler(0.1, 0.05), replace(HEALTHY, profile_kept=True))
    assert diagnose(kept).steps.measured == diagnose(freed).steps.measured + 30


def test_only_enough_steps_before_the_profiler_and_what_they_compute_count() -> None:
    few, enough = (around_the_profiler(0.1, 0.05)[n:] for n in (11, 10))
    for records, expected in ((few, 0), (enough, 30)):
        tagged_after = [
            r for r in tag_warmup(records, frees_memory=True) if "after_profiler" in r.tags
        ]
        assert len(tagged_after) == expected
    waits = around_the_profiler(0.1, 0.1, data_wait=0.1)
    less = tuple(replace(r, wall_s=0.1, host={"forward": 0.1}) if r.step > 32 else r for r in waits)
    assert not any("after_profiler" in r.tags for r in tag_warmup(less, frees_memory=True))


def test_what_comes_rarely_counts_after_the_profiler_too() -> None:
    """Saved at steps 10, 40 and 50: two of three after it."""
    records = tuple(
        replace(r, wall_s=r.wall_s + 0.5, host={**r.host, "checkpoint": 0.5}, tags=("checkpoint",))
        if r.step in (10, 40, 50)
        else r
        for r in around_the_profiler(0.1, 0.05)
    )
    finding = next(f for f in diagnose(script(records)).findings if f.code == "HL701")
    assert finding.evidence["num_saves"] == 3
