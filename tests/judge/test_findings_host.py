"""Saving, evaluating, logging, threads, collections, heat, the start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from script_inputs import (
    BUSY_DEVICE,
    GPU_HEALTHY,
    HEALTHY,
    STEP,
    codes,
    found,
    lines,
    only,
    script,
    steps,
    with_phase,
)

from hotloop.core.census import WITH_GRADIENTS, CallUse, CollectionUse, DebugSwitch, OperatorUse
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord
from hotloop.judge.diagnose import diagnose

SAVE = CallUse("torch.save", "train.py:70", num=6, seconds=3.0, num_bytes=6 << 20)


def every(
    phase: str, seconds: float, period: int, *, first: int = 5, ended: bool = False, num: int = 60
) -> Measurement:
    def each(number: int, record: StepRecord) -> StepRecord:
        if number < first or (number - first) % period:
            return record
        return with_phase(record, phase, seconds, phase)

    census = replace(HEALTHY, saves=(SAVE,) if phase == "checkpoint" else ())
    return script(steps(num=num, each=each), census, returncode=0 if ended else None)


def test_saving_counts_over_whole_intervals() -> None:
    finding = only(every("checkpoint", 0.5, 10), "HL701")
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.5 / 1.5))
    assert finding.site == "train.py:70"
    assert finding.evidence["steps_between"] == pytest.approx(10)
    assert finding.evidence["seconds_per_save"] == pytest.approx(0.5)
    assert diagnose(every("checkpoint", 0.5, 10)).bound == "checkpoint"
    assert diagnose(every("checkpoint", 0.015, 10)).findings == ()


def test_what_makes_a_save_last_is_no_save_of_its_own() -> None:
    """`torch.save`, `os.fsync`, `os.replace`: one save."""
    rest = [replace(SAVE, what=f"os.{name}", seconds=0.6) for name in ("fsync", "replace")]
    measurement = every("checkpoint", 0.7, 10)
    census = replace(HEALTHY, saves=(SAVE, *rest))
    evidence = only(replace(measurement, census=census), "HL701").evidence
    assert (evidence["num_saves"], evidence["seconds_per_save"]) == (6, pytest.approx(0.7))


def test_one_save_says_nothing_about_its_share_and_that_is_said() -> None:
    once = diagnose(every("checkpoint", 5.0, 1000))
    assert codes(once) == []
    said = "the share of saving: in the 60 steps that were looked at it came once at most, so how often is not known"
    assert said in once.not_examined
    whole = diagnose(every("checkpoint", 5.0, 1000, ended=True))
    assert codes(whole) == ["HL701"]
    assert whole.findings[0].gain_at_most == pytest.approx(1 / (1 - 5.0 / 11.0))
    assert not any("saving" in line for line in whole.not_examined)


@pytest.mark.parametrize("every_steps", [1, 15])
def test_a_save_that_the_disk_held_up_hides_no_other(every_steps: int) -> None:
    def saved(number: int, record: StepRecord) -> StepRecord:
        seconds = 8.0 if number == 30 else 0.2 * (number % every_steps == 0)
        return with_phase(record, "checkpoint", seconds, "checkpoint")

    saving = script(steps(each=saved), replace(HEALTHY, saves=(SAVE,)))
    assert only(saving, "HL701").evidence["steps_between"] == every_steps
    assert not any("saving" in line for line in diagnose(saving).not_examined)


def test_two_saves_make_one_interval() -> None:
    """At steps 5 and 55 of 60: 0.5 s in 50 steps and not 1 s in 60."""
    assert found(every("checkpoint", 0.5, 50), "HL701").evidence["checkpoint_fraction"] == (  # type: ignore[union-attr]
        pytest.approx(0.5 / 5.5)
    )


def test_evaluation_counts_from_fifteen_per_cent_and_not_in_every_step() -> None:
    assert only(every("eval", 0.3, 10), "HL702").gain_at_most == pytest.approx(1.3)
    assert diagnose(every("eval", 0.3, 10)).bound == "evaluation"
    assert diagnose(every("eval", 0.17, 10)).findings == ()
    assert found(every("eval", 0.05, 1, first=0), "HL702") is None  # a teacher's forward
    graded = replace(HEALTHY, evaluations=(CallUse(WITH_GRADIENTS, "train.py:9", 6, 1.8),))
    advice = only(replace(every("eval", 0.3, 10), census=graded), "HL702").advice
    assert advice.startswith("Put it under torch.no_grad()")


def test_the_trainers_own_evaluation_and_logging_name_its_settings() -> None:
    often = {"eval": "eval.every_steps=10", "logging": "logging.tensorboard=auto"}
    own = replace(HEALTHY, loader={"kind": "memory map"}, how_often=often)
    finding = only(replace(every("eval", 0.3, 10), census=own), "HL702")
    assert "eval.windows" in finding.advice
    assert "a tenth as often: at most 1.26x; set by `eval.every_steps=10`" in finding.advice
    logs = script(steps({**STEP, "logging": 0.02}), own)
    assert only(logs, "HL703").advice == "Turn off what nobody reads: logging.tensorboard=auto."
    assert codes(diagnose(replace(logs, census=replace(own, how_often={})))) == []


def test_small_forwards_in_every_step_do_not_hide_an_evaluation() -> None:
    def each(number: int, record: StepRecord) -> StepRecord:
        return with_phase(record, "eval", 0.4 if number % 10 == 3 else 1e-4)

    finding = only(script(steps(each=each)), "HL702")
    assert finding.evidence["num_evaluations"] == 6


def test_logging_counts_from_one_per_cent() -> None:
    log = CallUse("SummaryWriter.add_histogram", "train.py:80", num=120, seconds=1.0)
    host = {**STEP, "logging": 0.02}
    finding = only(script(steps(host), replace(HEALTHY, logs=(log,))), "HL703")
    assert finding.site == "train.py:80"
    assert finding.evidence["calls_per_step"] == 2
    assert finding.gain_at_most == pytest.approx(1.2)
    assert diagnose(script(steps({**STEP, "logging": 0.0009}))).findings == ()
    busy = {"compute": 0.1195, "idle": 0.0005}
    assert diagnose(script(steps(host, device=busy), GPU_HEALTHY)).findings == ()


def test_one_thread_is_found_where_long_operations_could_be_split() -> None:
    sick = replace(HEALTHY, num_threads=1)
    finding = only(script(steps(), sick), "HL802")
    assert finding.gain_at_most == pytest.approx(1 / (0.5 + 0.5 / 8))
    assert "OMP_NUM_THREADS=8" in finding.advice
    assert "torch.set_num_threads(1)" in finding.advice
    assert diagnose(script(steps(), replace(sick, num_threads=2))).findings == ()
    assert diagnose(script(steps(), replace(sick, cpus=1.0))).findings == ()
    assert (
        diagnose(script(steps(), replace(sick, num_ranks=8, num_local_ranks=8))).findings == ()
    )  # one CPU each
    assert found(script(steps(), replace(sick, device="cuda:0")), "HL802") is None
    assert found(script(steps(), replace(sick, operators=())), "HL802") is None


CROWDED = {"machine_busy": 0.97, "foreign_busy": 0.8}


def test_beside_programs_that_fill_the_machine_fewer_threads_are_advised_and_no_more() -> None:
    alone = replace(HEALTHY, num_threads=1, **CROWDED)
    assert found(script(steps(), alone), "HL802") is None
    finding = found(script(steps(), replace(HEALTHY, cpus=2.0, num_threads=2, **CROWDED)), "HL803")
    assert finding is not None
    assert finding.optimization is None, "a patch would slow down all the hours without others"
    assert "OMP_NUM_THREADS=1" in finding.advice
    assert "`threads` is not tried" in finding.advice
    assert finding.evidence["other_programs"] == 0.8
    slow = replace(HEALTHY, cpus=2.0, num_threads=2, optimizer="AdamW", **CROWDED)
    update = {"data_wait": 0.03, "backward": 0.04, "optimizer": 0.03}
    assert codes(diagnose(script(steps(update), slow)))[0] == "HL803", "its gain is the largest"
    half = {"machine_busy": 0.97, "foreign_busy": 0.2}
    assert found(script(steps(), replace(HEALTHY, num_threads=8, **half)), "HL803") is None


def test_what_is_there_for_debugging_comes_first() -> None:
    checks = OperatorUse("aten::_is_any_true", "bool", num=8, self_s=0.0)
    sick = replace(HEALTHY, collections=collecting(0.9), operators=(*HEALTHY.operators, checks))
    assert codes(diagnose(script(steps(), sick))) == ["HL807", "HL804"]


def test_more_threads_than_cpus_promise_nothing_but_are_found() -> None:
    sick = replace(HEALTHY, cpus=2.0, num_threads=8)
    finding = only(script(steps(), sick), "HL803")
    assert finding.gain_is_loose
    assert "OMP_NUM_THREADS=2" in finding.advice
    assert diagnose(script(steps(), replace(sick, num_threads=2))).findings == ()
    assert diagnose(script(steps(), replace(sick, cpus=0.5, num_threads=1))).findings == ()


def collecting(seconds: float, num_full: int = 3) -> CollectionUse:
    return CollectionUse(num=400, seconds=seconds, num_full=num_full, full_s=seconds / 2)


def test_collections_count_from_two_per_cent() -> None:
    sick = replace(HEALTHY, collections=collecting(0.9))
    diagnosis = diagnose(script(steps(), sick))
    assert codes(diagnosis) == ["HL804"]
    assert diagnosis.findings[0].gain_at_most == pytest.approx(1 / 0.85)
    assert diagnosis.bound == "compute"
    more = replace(sick, collections=collecting(1.5))
    assert diagnose(script(steps(), more)).bound == "gc"
    assert diagnose(script(steps(), replace(sick, collections=collecting(0.1)))).findings == ()
    assert diagnose(script(steps(), replace(sick, collections=collecting(0.0)))).findings == ()


def test_one_full_collection_is_no_rate() -> None:
    """It is said that it was seen; the many small ones beside it count."""
    for num, expected in ((2, []), (3, ["HL804"])):
        slow = CollectionUse(num=400, seconds=0.2, num_full=num, full_s=0.19)
        diagnosis = diagnose(script(steps(), replace(HEALTHY, collections=slow)))
        assert codes(diagnosis) == expected
        told = [line for line in diagnosis.not_examined if "garbage" in line]
        assert len(told) == (not expected)
    young = diagnose(script(steps(), replace(HEALTHY, collections=collecting(0.9, 2))))
    assert young.findings[0].gain_at_most == pytest.approx(1 / (1 - 0.075))


def test_collections_of_what_proved_to_be_a_start_are_left_out() -> None:
    """A script that collects garbage in its first steps alone trains without it from then on."""

    def each(number: int, record: StepRecord) -> StepRecord:
        return with_phase(record, "unattributed", 0.4, "gc") if number < 27 else record

    gc = CollectionUse(num=27, seconds=27 * 0.4, num_full=27, full_s=27 * 0.4)
    early = diagnose(script(steps(each=each), replace(HEALTHY, collections=gc)))
    assert early.steps.warmup >= 25
    assert "HL804" not in codes(early) or early.findings[0].gain_at_most < 1.4

    def always(number: int, record: StepRecord) -> StepRecord:
        return with_phase(record, "unattributed", 0.1, "gc")

    gc = CollectionUse(num=60, seconds=6.0, num_full=60, full_s=6.0)
    late = script(steps(each=always), replace(HEALTHY, collections=gc))
    assert only(late, "HL804").gain_at_most == pytest.approx(2)


def test_a_script_that_asks_for_collections_is_shown_its_line() -> None:
    host = {"forward": 0.03, "backward": 0.05, "unattributed": 0.02}
    called = lines(("unattributed", "train", 0.18))
    asked = replace(HEALTHY, collections=collecting(1.1, num_full=60), lines=called)
    diagnosis = diagnose(script(steps(host), asked))
    assert (codes(diagnosis), diagnosis.findings[0].site) == (["HL804"], "train.py:50")
    assert diagnosis.bound == "gc"
    seen = replace(asked, collections=replace(collecting(1.1), site="train.py:9"))
    assert found(script(steps(host), seen), "HL804").site == "train.py:9"  # type: ignore[union-attr]
    by_itself = replace(asked, collections=collecting(1.1))
    assert found(script(steps(host), by_itself), "HL804").site is None  # type: ignore[union-attr]


def test_a_device_that_is_held_back_is_found_by_time_and_clock() -> None:
    hot = replace(
        GPU_HEALTHY, throttled_fraction=0.5, clock_drop_fraction=0.2, throttled_by=("thermal_slowdown",)
    )  # fmt: skip
    finding = only(script(steps(device=BUSY_DEVICE), hot), "HL805")
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.098))
    for cool in (
        replace(hot, throttled_fraction=0.09),
        replace(hot, clock_drop_fraction=0.1),
        replace(hot, clock_drop_fraction=None),
        replace(hot, throttled_fraction=None),
    ):
        assert diagnose(script(steps(device=BUSY_DEVICE), cool)).findings == ()


def test_a_slow_start_needs_a_minute_and_a_run_whose_length_is_known() -> None:
    slow = replace(HEALTHY, start_s=100.0)
    assert diagnose(script(steps(), slow)).findings == ()
    whole = only(script(steps(), slow, returncode=0), "HL806")
    assert whole.gain_at_most == pytest.approx(106 / 6)
    left_out = steps(each=lambda n, r: replace(r, left_out=3, left_out_s=0.3))
    assert only(script(left_out, slow, returncode=0), "HL806").gain_at_most == pytest.approx(
        124 / 24
    )
    planned = only(script(steps(), replace(slow, planned_steps=5000)), "HL806")
    assert planned.evidence["start_fraction"] == pytest.approx(100 / 600)
    assert diagnose(script(steps(), replace(slow, planned_steps=10_000))).findings == ()
    assert diagnose(script(steps(), replace(slow, start_s=59.0), returncode=0)).findings == ()


def test_what_the_census_counted_is_divided_by_the_steps_that_it_counted() -> None:
    """Steps that only their course shows to be start are not under way, but were counted."""

    def each(number: int, record: StepRecord) -> StepRecord:
        return with_phase(record, "forward", 0.1) if number < 20 else record

    # 20 steps of 0.2 s, 40 of 0.1 s; a tenth of the 8 s went into collecting.
    gc = CollectionUse(num=60, seconds=0.8, num_full=3, full_s=0.1)
    diagnosis = diagnose(script(steps(each=each), replace(HEALTHY, collections=gc)))
    assert diagnosis.steps.warmup == 18  # the window of five forgives two
    assert codes(diagnosis) == ["HL804"]
    assert diagnosis.findings[0].evidence["collection_fraction"] == pytest.approx(0.1)


FILLING = OperatorUse("uninitialized::fill_", "float", num=9, self_s=0.02)
DETERMINISTIC = (
    DebugSwitch("fill_uninitialized_memory", "train.py:3"),
    DebugSwitch("use_deterministic_algorithms", "train.py:3"),
)


def test_filling_by_deterministic_algorithms_is_found_by_its_time() -> None:
    operators = (*HEALTHY.operators, FILLING)
    on = replace(HEALTHY, debug_switches=DETERMINISTIC, operators=operators)
    finding = only(script(steps(), on), "HL808")
    assert finding.site == "train.py:3"
    assert finding.evidence == {
        "switches": "fill_uninitialized_memory (train.py:3)",
        "fill_fraction": pytest.approx(0.2),
    }
    assert finding.gain_at_most == pytest.approx(1 / 0.8)
    assert finding.optimization == "uninitialized_fill"
    assert "deterministic algorithms stay" in finding.advice
    little = replace(on, operators=(*HEALTHY.operators, replace(FILLING, self_s=0.004)))
    assert diagnose(script(steps(), little)).findings == ()


@pytest.mark.parametrize("name", ["CUDA_LAUNCH_BLOCKING", "cudnn.deterministic"])
def test_settings_that_cost_a_gpu_only_are_no_finding_on_a_cpu(name: str) -> None:
    switches = (DebugSwitch(name),)
    assert diagnose(script(steps(), replace(HEALTHY, debug_switches=switches))).findings == ()
    on_gpu = replace(GPU_HEALTHY, debug_switches=switches)
    idle = {"compute": 0.06, "memcpy": 0.0, "idle": 0.04}
    finding = found(script(steps(device=idle), on_gpu), "HL808")
    assert finding is not None
    assert finding.evidence["switches"] == f"{name} (environment)"


def test_checks_of_collectives_need_several_processes() -> None:
    alone = replace(HEALTHY, debug_switches=(DebugSwitch("TORCH_DISTRIBUTED_DEBUG"),))
    assert diagnose(script(steps(), alone)).findings == ()
    together = script(steps(), replace(alone, num_ranks=2, num_local_ranks=2))
    finding = found(together, "HL808")
    assert finding is not None
    assert finding.optimization == "debug_environment"


def test_profiler_that_was_left_on_is_found_and_has_no_fix() -> None:
    on = replace(HEALTHY, debug_switches=(DebugSwitch("profiler", "train.py:9"),))
    finding = only(script(steps(), on), "HL808")
    assert finding.optimization is None
    assert "torch.profiler.schedule" in finding.advice


def test_anomaly_detection_that_was_left_on_is_found() -> None:
    checks = OperatorUse("aten::_is_any_true", "bool", num=101, self_s=0.001)
    finding = only(
        script(steps(), replace(HEALTHY, operators=(*HEALTHY.operators, checks))), "HL807"
    )
    assert finding.evidence["checks_per_step"] == 101
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.93))
    assert finding.gain_is_loose
    once = replace(
        checks, num=1 / 3
    )  # in one of three steps that were profiled: the script asked itself
    assert "HL807" not in codes(diagnose(script(steps(), replace(HEALTHY, operators=(once,)))))


def test_half_and_a_tenth_as_often_are_what_amdahl_says() -> None:
    finding = only(every("eval", 0.3, 10), "HL702")  # 0.3 of 1.3 s
    share = 0.3 / 1.3
    assert finding.evidence["gain_half_as_often"] == pytest.approx(1 / (1 - share / 2))
    assert finding.evidence["gain_tenth_as_often"] == pytest.approx(1 / (1 - share * 0.9))
    assert "Half as often: at most 1.13x, a tenth as often: at most 1.26x." in finding.advice
    assert "set_by" not in finding.evidence


def test_tenth_of_what_a_whole_run_has_fewer_than_ten_of_is_none() -> None:
    few = only(every("eval", 0.3, 10, ended=True), "HL702")
    assert "gain_tenth_as_often" not in few.evidence
    assert "a tenth" not in few.advice
    many = only(every("eval", 0.3, 5, ended=True), "HL702")
    assert many.evidence["num_evaluations"] >= 10  # type: ignore[operator]
    assert "gain_tenth_as_often" in many.evidence
    once = diagnose(every("checkpoint", 5.0, 1000, ended=True)).findings[0]
    assert not {"gain_half_as_often", "gain_tenth_as_often"} & set(once.evidence)


@pytest.mark.parametrize(
    ("setting", "period", "named"),
    [
        ("eval_steps=10", 10, True),
        ('eval_strategy="epoch"', 10, True),
        ("val_check_interval=0.25, check_val_every_n_epoch=1", 10, True),
        ("eval_steps=500", 10, False),  # a callback of the script's own evaluates
        ("eval_steps=2", 10, False),
    ],
)
def test_argument_is_named_where_it_may_be_what_sets_the_evaluation(
    setting: str, period: int, named: bool
) -> None:
    run = every("eval", 0.3, period)
    census = replace(HEALTHY, how_often={"eval": setting, "logging": "logging_steps=1"})
    finding = only(replace(run, census=census), "HL702")
    assert finding.evidence.get("set_by") == (setting if named else None)
    assert (f"set by `{setting}`" in finding.advice) == named


@pytest.mark.parametrize(
    ("what", "inside", "named"),
    [
        ("print", "transformers.trainer_callback.on_log", True),
        ("SummaryWriter.add_scalar", "lightning.fabric.loggers.tensorboard.log_metrics", True),
        ("tqdm.update", "transformers.trainer_callback.on_step_end", False),
        ("print", "train.training_step", False),
        ("print", None, False),
    ],
)
def test_logging_of_the_scripts_own_is_not_said_to_be_set_by_the_trainer(
    what: str, inside: str | None, named: bool
) -> None:
    log = CallUse(what, "train.py:80", num=60, seconds=1.0, inside=inside)
    census = replace(HEALTHY, logs=(log,), how_often={"logging": "logging_steps=1"})
    finding = only(script(steps({**STEP, "logging": 0.02}), census), "HL703")
    assert finding.evidence.get("set_by") == ("logging_steps=1" if named else None)
    assert finding.evidence["gain_half_as_often"] == pytest.approx(1 / (1 - 0.02 / 0.12 / 2))


def test_saving_names_its_argument() -> None:
    save = replace(SAVE, inside="transformers.trainer._save")
    census = replace(HEALTHY, saves=(save,), how_often={"checkpoint": "save_steps=10"})
    finding = only(replace(every("checkpoint", 0.5, 10), census=census), "HL701")
    assert finding.evidence["set_by"] == "save_steps=10"
