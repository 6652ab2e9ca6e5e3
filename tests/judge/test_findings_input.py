"""Waiting for data: the right cause of it, or none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from script_inputs import (
    BUSY_DEVICE,
    GPU_HEALTHY,
    HEALTHY,
    LOADER,
    STEP,
    codes,
    found,
    lines,
    only,
    script,
    steps,
    waiting,
    with_phase,
)

from hotloop.core.census import CollectionUse, LineUse, PaddingUse
from hotloop.core.judgement import Finding
from hotloop.core.step import StepRecord
from hotloop.judge.diagnose import diagnose
from hotloop.judge.worker_count import worker_count
from hotloop.optimizations.loader_workers import LOADER_WORKERS

SERIAL = {"num_workers": 0, "fetch_s": 0.03, "collate_s": 0.003}
WORKERS = {"num_workers": 2, "fetch_s": 0.19, "collate_s": 0.01, "prefetch_factor": 2}


GAINED = {str({**SERIAL, "collate_s": 0.016}): 0.3 * 0.016 / 0.03}
"""Of the step, where it is not all of the wait: without workers the rest of making a batch stays."""


def test_a_healthy_script_has_no_finding() -> None:
    diagnosis = diagnose(script(steps()))
    assert diagnosis.findings == ()
    assert diagnosis.bound == "compute"
    assert diagnosis.not_examined == ("garbage collection: not watched",)
    assert diagnosis.worth is not None
    assert diagnosis.worth.answer == "nothing to gain here"


@pytest.mark.parametrize(
    ("loader", "code"),
    [
        (SERIAL, "HL102"),
        ({**SERIAL, "in_memory": True}, "HL102"),
        ({**SERIAL, "collate_s": 0.016}, "HL103"),
        ({**SERIAL, "collate_s": 0.014}, "HL102"),
        ({**SERIAL, "fetch_cpu_fraction": 0.1}, "HL106"),
        ({**SERIAL, "fetch_cpu_fraction": 0.51}, "HL102"),
        ({**SERIAL, "fetch_s": None, "collate_s": None, "fetch_cpu_fraction": None}, "HL102"),
        (WORKERS, "HL104"),
        ({**WORKERS, "collate_s": 0.1}, "HL103"),
        ({**WORKERS, "fetch_cpu_fraction": 0.2}, "HL106"),
        ({**WORKERS, "fetch_s": None}, "HL101"),
        ({**WORKERS, "fetch_s": 0.1, "wait_s": 0.03, "wait_p99_s": 0.05}, "HL101"),
    ],
)  # fmt: skip
def test_a_wait_for_data_has_the_one_cause_that_was_seen(loader: dict[str, Any], code: str) -> None:
    measurement = waiting(0.03, loader)
    finding = only(measurement, code)
    assert finding.gain_at_most == pytest.approx(1 / (1 - GAINED.get(str(loader), 0.3)))
    assert diagnose(measurement).bound == "input"
    assert finding.advice


@pytest.mark.parametrize("loader", [SERIAL, WORKERS, {**SERIAL, "fetch_cpu_fraction": 0.1}])
def test_waits_below_five_per_cent_are_no_finding(loader: dict[str, Any]) -> None:
    assert diagnose(waiting(0.0049, loader)).findings == ()


def test_full_cpus_are_told_from_too_few_workers() -> None:
    full = replace(HEALTHY, cpu_busy=7.0)
    assert only(waiting(0.03, WORKERS, full), "HL105").evidence[
        "cpus_busy_fraction"
    ] == pytest.approx(0.875)
    free = replace(HEALTHY, cpu_busy=6.7)
    assert codes(diagnose(waiting(0.03, WORKERS, free))) == ["HL104"]
    # A worker that waits for its turn looks as if it waited for a disk.
    starved = {**WORKERS, "fetch_cpu_fraction": 0.3}
    assert codes(diagnose(waiting(0.03, starved, full))) == ["HL105"]
    unknown = replace(HEALTHY, cpu_busy=None, cpus=2.0, num_threads=2)
    assert codes(diagnose(waiting(0.03, WORKERS, unknown))) == ["HL105"]
    unknown = replace(HEALTHY, cpu_busy=None)
    assert codes(diagnose(waiting(0.03, WORKERS, unknown))) == ["HL104"]


def test_one_cpu_has_no_room_for_workers_unless_fetching_only_waits() -> None:
    one = replace(HEALTHY, cpus=1.0, num_threads=1, cpu_busy=1.0)
    assert codes(diagnose(waiting(0.03, SERIAL, one))) == ["HL105"]
    assert codes(diagnose(waiting(0.03, {**SERIAL, "fetch_cpu_fraction": 0.1}, one))) == ["HL106"]


def test_on_a_machine_that_others_fill_little_cpu_time_is_no_sign_of_a_disk() -> None:
    starved = {**SERIAL, "fetch_cpu_fraction": 0.4}  # of 0.71 that its threads got while computing
    for busy, foreign, expected in (
        (1.0, 0.5, ["HL803", "HL101"]),  # waiting for a disk, or for its turn
        (0.84, 0.5, ["HL106"]),
        (1.0, 0.19, ["HL106"]),  # its own threads
        (None, None, ["HL106"]),
    ):
        census = replace(HEALTHY, machine_busy=busy, foreign_busy=foreign)
        assert codes(diagnose(waiting(0.03, starved, census))) == expected
    crowded = replace(HEALTHY, machine_busy=1.0, foreign_busy=0.5, num_threads=4)
    computes = {**starved, "fetch_cpu_fraction": 0.51}
    assert codes(diagnose(waiting(0.03, computes, crowded))) == ["HL102"]
    # One thread on one CPU, which it gets whole while it computes: the others do not matter.
    alone = replace(
        HEALTHY, cpus=1.0, num_threads=1, cpu_busy=0.73, machine_busy=1.0, foreign_busy=0.6
    )
    waits = {**SERIAL, "fetch_cpu_fraction": 0.1}
    assert codes(diagnose(waiting(0.03, waits, alone))) == ["HL106"]
    robbed = replace(alone, cpu_busy=0.15)  # 0.17 while it computes
    assert codes(diagnose(waiting(0.03, waits, robbed))) == ["HL101"]
    assert codes(diagnose(waiting(0.03, waits, replace(alone, cpu_busy=None)))) == ["HL101"]
    for fetching in (0.3, 0.97):
        late = {**WORKERS, "fetch_cpu_fraction": fetching}
        diagnosis = diagnose(waiting(0.03, late, crowded))
        assert codes(diagnosis) == ["HL101"]  # half of the CPUs is all that it had
        own = replace(crowded, cpu_busy=7.5)  # of 8: these are full by itself
        assert codes(diagnose(waiting(0.03, late, own))) == ["HL105"]
        unknown = replace(crowded, cpu_busy=None, cpus=2.0, num_threads=1)
        assert codes(diagnose(waiting(0.03, late, unknown))) == ["HL101"]
    assert any("50 % of the machine" in line for line in diagnosis.not_examined)


@pytest.mark.parametrize(("collate_s", "gain"), [(0.1, 1 / 0.7), (0.19, 1 / 0.7)])
def test_with_workers_a_faster_collate_function_may_end_the_wait(
    collate_s: float, gain: float
) -> None:
    finding = only(waiting(0.03, {**WORKERS, "collate_s": collate_s}), "HL103")
    assert finding.gain_at_most == pytest.approx(gain)
    most = only(waiting(0.09, {**WORKERS, "collate_s": 0.1}), "HL103")
    assert most.gain_at_most == pytest.approx(1 / (1 - 0.1 / 0.19))


def test_workers_that_cost_more_than_they_bring_count_by_the_difference() -> None:
    finding = only(waiting(0.03, {**WORKERS, "fetch_s": 0.01}), "HL110")
    assert finding.gain_at_most == pytest.approx(1 / 0.8)
    assert diagnose(waiting(0.009, {**WORKERS, "fetch_s": 0.005})).findings == ()  # 4 %
    assert found(waiting(0.03, {**WORKERS, "fetch_s": 0.0251}), "HL110") is None
    crowded = replace(
        HEALTHY, machine_busy=1.0, foreign_busy=0.5, num_threads=4
    )  # late by waiting for its turn?
    assert codes(diagnose(waiting(0.03, {**WORKERS, "fetch_s": 0.01}, crowded))) == ["HL101"]


def coming_late(every: int, by_s: float, census: Any = HEALTHY) -> Any:
    """Workers with time to spare, and a batch that comes late now and then."""

    def each(number: int, record: StepRecord) -> StepRecord:
        return with_phase(record, "data_wait", by_s) if number % every == 3 else record

    loader = replace(LOADER, num_workers=4, fetch_s=0.1, wait_s=0.001, wait_p99_s=by_s)
    return script(steps(each=each), replace(census, loaders=(loader,)))


def test_batches_that_come_late_now_and_then_count_by_what_is_late() -> None:
    finding = only(coming_late(10, 0.3), "HL109")
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.3 / 1.3))
    assert diagnose(coming_late(10, 0.04)).findings == ()
    crowded = replace(HEALTHY, machine_busy=1.0, foreign_busy=0.5, num_threads=4)
    assert codes(diagnose(coming_late(10, 0.3, crowded))) == ["HL101"]


def test_the_way_from_a_worker_alone_is_no_sickness() -> None:
    """Every batch comes as late as every other, workers idle, and nothing tells why."""
    way = {**WORKERS, "fetch_s": 0.1, "wait_p99_s": None}
    assert diagnose(waiting(0.0099, way)).findings == ()
    assert codes(diagnose(waiting(0.0101, way))) == ["HL101"]


def test_whole_batches_copied_from_memory_are_not_sent_to_workers() -> None:
    copied = {**SERIAL, "in_memory": True, "batch_size": 10_000}
    finding = only(waiting(0.03, copied), "HL101")
    assert "which workers do no faster" in finding.advice
    assert codes(diagnose(waiting(0.03, {**copied, "in_memory": None}))) == ["HL102"]
    stacked = {**copied, "dataset": "TensorDataset"}  # 3 us for each sample: Python picks them
    assert only(waiting(0.03, stacked), "HL102").optimization == "whole_batches"
    at_once = {**stacked, "fetch_s": 0.009}
    assert codes(diagnose(waiting(0.03, at_once))) == ["HL101"]


def test_suggested_workers_keep_pace_with_the_rest_of_the_step() -> None:
    # 0.08 s to make a batch, 0.02 s of other work: four at a time.
    seen = replace(HEALTHY, profiled_step_s=0.1)
    serial = {**SERIAL, "fetch_s": 0.08, "wait_s": 0.08}
    assert only(waiting(0.08, serial, seen), "HL102").evidence["suggested_workers"] == 4
    few = replace(seen, cpus=2.0, num_threads=2)
    assert only(waiting(0.08, serial, few), "HL102").evidence["suggested_workers"] == 2
    late = {**WORKERS, "wait_s": 0.03}
    assert only(waiting(0.03, late, seen), "HL104").evidence["suggested_workers"] == 3
    # Two batches to a step: twice the work.
    two = waiting(
        0.06, {**SERIAL, "wait_s": 0.03, "num_batches": 120}, replace(seen, microbatches=2.0)
    )
    assert only(two, "HL102").evidence["suggested_workers"] == 2


@settings(max_examples=300, deadline=None)
@given(
    waited_s=st.floats(0.006, 0.095),
    loader=st.fixed_dictionaries(
        {
            "num_workers": st.integers(0, 16),
            "fetch_s": st.none() | st.floats(1e-4, 2.0),
            "wait_s": st.none() | st.floats(1e-4, 2.0),
            "wait_p99_s": st.none() | st.floats(1e-4, 2.0),
            "collate_s": st.none() | st.floats(0.0, 1.0),
            "fetch_cpu_fraction": st.none() | st.floats(0.0, 1.0),
            "draws_random": st.none() | st.booleans(),
            "in_memory": st.none() | st.booleans(),
        }
    ),
    seen=st.fixed_dictionaries(
        {
            "profiled_step_s": st.none() | st.floats(1e-3, 2.0),
            "profiled_wait_s": st.none() | st.floats(0.0, 1.0),
            "microbatches": st.none() | st.floats(1.0, 8.0),
            "cpus": st.floats(1.0, 64.0),
            "cpu_busy": st.none() | st.floats(0.0, 64.0),
            "machine_busy": st.none() | st.floats(0.0, 1.0),
            "foreign_busy": st.none() | st.floats(0.0, 1.0),
        }
    ),
)
def test_a_finding_advises_the_workers_that_the_fix_tries(
    waited_s: float, loader: dict[str, Any], seen: dict[str, Any]
) -> None:
    measurement = waiting(waited_s, loader, replace(HEALTHY, **seen))
    assert measurement.census is not None
    assert LOADER_WORKERS.values_for is not None
    tried = LOADER_WORKERS.values_for(measurement.census)
    for finding in diagnose(measurement).findings:
        said = [int(number) for number in re.findall(r"num_workers=(\d+)", finding.advice)]
        if (suggested := finding.evidence.get("suggested_workers")) is not None:
            said.append(int(suggested))
        assert {*said} <= {*tried}, finding


def test_samples_that_are_only_picked_from_memory_are_picked_at_once() -> None:
    picked = {**SERIAL, "in_memory": True, "batch_size": 1000}
    finding = only(waiting(0.03, picked), "HL102")
    assert "pick a batch at once" in finding.advice
    assert finding.optimization == "loader_workers"
    assert finding.evidence["suggested_workers"] is None
    tensors = {**picked, "dataset": "TensorDataset"}
    assert only(waiting(0.03, tensors), "HL102").optimization == "whole_batches"
    own_collate = waiting(0.03, {**tensors, "collate_site": "train.py:3"})
    assert only(own_collate, "HL102").optimization == "loader_workers"
    # In memory, and 0.9 ms of work on each: workers.
    worked_on = only(waiting(0.03, {**picked, "batch_size": 32}), "HL102")
    assert "num_workers=1" in worked_on.advice


def test_several_processes_on_unknown_machines_are_not_told_how_many_cpus_they_have() -> None:
    ranks = replace(HEALTHY, num_ranks=16, cpu_busy=8.0)
    assert codes(diagnose(waiting(0.03, WORKERS, ranks))) == ["HL101"]
    assert codes(diagnose(waiting(0.03, SERIAL, ranks))) == ["HL102"]
    four = replace(ranks, num_local_ranks=4, cpu_busy=1.0, num_threads=2)
    assert codes(diagnose(waiting(0.03, WORKERS, four))) == ["HL104"]


def test_an_iterable_dataset_is_warned_of_samples_that_come_twice() -> None:
    assert "twice" in only(waiting(0.03, {**SERIAL, "iterable": True}), "HL102").advice
    assert (
        "augmented with other numbers"
        in only(waiting(0.03, {**SERIAL, "draws_random": True}), "HL102").advice
    )


def test_the_site_is_the_dataset_the_collate_function_or_the_loader() -> None:
    workers = only(waiting(0.03, SERIAL), "HL102")
    assert (workers.site, workers.evidence["loader_site"]) == ("train.py:12", "train.py:30")
    assert "num_workers=1 in the DataLoader of train.py:30" in workers.advice
    installed = {**SERIAL, "dataset_site": "/v/site-packages/folder.py:3"}
    assert only(waiting(0.03, installed), "HL102").site == "train.py:30"
    picked = {**SERIAL, "in_memory": True, "batch_size": 1000}
    assert only(waiting(0.03, picked), "HL102").site == "train.py:12"
    assert only(waiting(0.03, {**picked, "dataset_site": None}), "HL102").site == "train.py:30"
    slow = {**SERIAL, "collate_s": 0.03, "collate_site": "train.py:20"}
    assert only(waiting(0.03, slow), "HL103").site == "train.py:20"


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "site"),
    [(100, 8, "train.py:51"), (30, 8, "train.py:12"), (100, 32, "train.py:12")],
)
def test_slow_samples_stand_at_the_line_that_enough_looks_saw(
    num_samples: int, batch_size: int, site: str
) -> None:
    loop, slow, quick = lines(*[("data_wait", "", each) for each in (0.2, 0.1, 0.05)])
    loop = replace(loop, inside="torch.utils.data._utils.fetch.fetch")
    census = replace(HEALTHY, lines=(loop, slow, quick), num_samples=num_samples)
    finding = only(waiting(0.03, {**SERIAL, "batch_size": batch_size}, census), "HL102")
    assert finding.site == site
    assert f"Make samples cheaper at {site}" in finding.advice


def test_workers_are_promised_no_more_than_idle_cpus_can_take() -> None:
    full = replace(HEALTHY, cpus=2.0, num_threads=2, cpu_busy=1.8)
    assert "1.11x at most" in only(waiting(0.03, SERIAL, full), "HL102").advice
    assert "CPUs are idle" not in only(waiting(0.03, SERIAL), "HL102").advice


def test_a_loader_that_only_evaluates_explains_nothing() -> None:
    assert codes(diagnose(waiting(0.03, {**SERIAL, "trains": False}))) == ["HL101"]


def test_a_hidden_wait_is_no_finding_and_one_without_device_clocks_neither() -> None:
    host = {"data_wait": 0.05, "forward": 0.02, "backward": 0.03}
    use = replace(LOADER, **SERIAL)
    census = replace(GPU_HEALTHY, loaders=(use,))
    busy = script(steps(host, device=BUSY_DEVICE), census)
    assert diagnose(busy).findings == ()
    idle = script(steps(host, device={"compute": 0.07, "idle": 0.03}), census)
    assert only(idle, "HL102").gain_at_most == pytest.approx(1 / 0.7)
    blind = diagnose(script(steps(host), census))
    assert blind.findings == ()
    assert any("device time" in line for line in blind.not_examined)


def restarting(first_s: float, **changes: Any) -> Any:
    """Epochs of 20 steps, whose first waits `first_s` longer."""

    def each(number: int, record: StepRecord) -> StepRecord:
        if number % 20:
            return record
        return with_phase(record, "data_wait", first_s, "epoch")

    loader = replace(LOADER, num_workers=2, prefetch_factor=2, per_epoch=20, **changes)
    return script(steps(each=each), replace(HEALTHY, loaders=(loader,)))


def test_the_pause_at_the_start_of_each_epoch_is_told_from_other_waits() -> None:
    finding = only(restarting(0.4), "HL108")
    assert finding.evidence["restart_fraction"] == pytest.approx(0.4 / (0.4 + 20 * 0.1), rel=0.01)
    assert "persistent_workers=True" in finding.advice
    assert diagnose(restarting(0.05)).findings == ()  # 2.4 % of the time
    assert finding.optimization is None  # whether the dataset changes between epochs was not seen
    unchanged = only(restarting(0.4, changes_between_epochs=False), "HL108")
    assert unchanged.optimization == "loader_workers"
    assert only(restarting(0.4, changes_between_epochs=True), "HL108").optimization is None
    without = only(restarting(0.4, persistent_workers=True), "HL108")
    assert "persistent_workers" not in without.advice


def test_the_share_of_restarts_is_that_of_whole_epochs() -> None:
    """One boundary among 20 measured steps of an epoch of 1000 is not a twentieth of the time."""

    def each(number: int, record: StepRecord) -> StepRecord:
        return with_phase(record, "data_wait", 1.0, "epoch") if number == 10 else record

    loader = replace(LOADER, num_workers=2, per_epoch=1000)
    assert found(script(steps(each=each), replace(HEALTHY, loaders=(loader,))), "HL108") is None
    unknown = replace(loader, per_epoch=None)
    assert found(script(steps(each=each), replace(HEALTHY, loaders=(unknown,))), "HL108") is None


def test_epochs_that_a_loop_leaves_early_are_as_long_as_they_are() -> None:
    nominal = replace(restarting(0.4).census.loaders[0], per_epoch=1000)
    early = replace(restarting(0.4), census=replace(HEALTHY, loaders=(nominal,)))
    share = only(early, "HL108").evidence["restart_fraction"]
    assert share == pytest.approx(0.4 / (0.4 + 20 * 0.1), rel=0.01)
    drawn = tuple(replace(record, left_out=9, left_out_s=0.9) for record in early.records)
    assert found(replace(early, records=drawn), "HL108") is None


@pytest.mark.parametrize("workers", [0, 4])
def test_a_loader_that_starts_anew_for_each_batch_needs_no_workers(workers: int) -> None:
    """`next(iter(loader))`: workers would be started for every batch."""
    use = {**SERIAL, "num_workers": workers, "wait_s": None, "wait_p99_s": None, "num_epochs": 80}
    started = waiting(0.03, use)
    finding = only(started, "HL101")
    assert "Make the iterator once" in finding.advice
    assert "num_workers" not in finding.advice
    assert finding.evidence["new_iterators"] == 80
    assert started.census is not None
    assert worker_count(started.census) is None
    once = found(
        waiting(0.03, {**use, "per_epoch": 1}), "HL101"
    )  # of a single batch: an epoch each
    assert once is None or "Make the iterator once" not in once.advice


def test_first_waits_like_the_others_are_no_restart() -> None:
    def each(number: int, record: StepRecord) -> StepRecord:
        return record if number % 20 else replace(record, tags=("epoch",))

    host = {"data_wait": 0.03, "forward": 0.03, "backward": 0.04}
    census = replace(HEALTHY, loaders=(replace(LOADER, **SERIAL, per_epoch=20),))
    assert codes(diagnose(script(steps(host, each=each), census))) == ["HL102"]


OWN = {"forward": 0.03, "backward": 0.05, "unattributed": 0.02}


@pytest.mark.parametrize(
    ("function", "inside", "code"),
    [
        ("get_batch", None, "HL107"),
        ("decode_image", None, "HL107"),
        ("load_sample", None, "HL107"),
        ("main.<locals>.decode", None, "HL107"),
        ("batches.<locals>.<genexpr>", "Image.Image.load", "HL107"),
        ("Decoder.advance", None, "HL801"),
        ("thread_pool", None, "HL801"),
        ("spread_metrics", None, "HL801"),
        ("<module>", "PIL.Image.load", "HL107"),
        ("train", "json.decoder.raw_decode", "HL107"),
        ("<module>", None, "HL801"),
        ("update_metrics", "numpy.percentile", "HL801"),
        ("upload", "threading.wait", "HL801"),
    ],
)
def test_own_code_that_prepares_data_is_told_from_other_code(
    function: str, inside: str | None, code: str
) -> None:
    census = replace(HEALTHY, lines=lines(("unattributed", function, 0.19), inside=inside))
    finding = only(script(steps(OWN), census), code)
    assert finding.gain_at_most == pytest.approx(1.25, rel=1e-4)
    assert finding.site == "train.py:50"
    assert diagnose(script(steps(OWN), census)).bound == ("input" if code == "HL107" else "host")


def test_own_code_is_found_by_samples_and_bounded_by_the_clock() -> None:
    """Samples say whose the time is, but not to the per cent: what is left of the step is the bound."""
    both = lines(("unattributed", "train", 0.12))
    torchs = lines(("unattributed", "train", 0.08), inside="torch.nn.functional.cross_entropy")
    finding = only(script(steps(OWN), replace(HEALTHY, lines=(*both, *torchs))), "HL801")
    assert finding.evidence["own_fraction"] == pytest.approx(0.12, rel=1e-3)
    assert finding.gain_at_most == pytest.approx(1.25, rel=1e-4)


def test_own_code_counts_only_for_its_lines_and_without_collections() -> None:
    both = lines(("unattributed", "get_batch", 0.12), ("unattributed", "report", 0.08))
    finding = only(script(steps(OWN), replace(HEALTHY, lines=both)), "HL107")
    assert finding.evidence["own_fraction"] == pytest.approx(0.12, rel=1e-3)
    assert finding.gain_at_most == pytest.approx(1.25, rel=1e-4)
    elsewhere = lines(("forward", "get_batch", 0.2))
    assert diagnose(script(steps(OWN), replace(HEALTHY, lines=elsewhere))).findings == ()
    gc = CollectionUse(num=60, seconds=60 * 0.018, num_full=60, full_s=60 * 0.018)
    collected = replace(HEALTHY, lines=lines(("unattributed", "train", 0.2)), collections=gc)
    assert codes(diagnose(script(steps(OWN), collected))) == ["HL804"]
    inside = replace(collected, collections=replace(gc, outside_s=0.0))  # of the phases
    assert sorted(codes(diagnose(script(steps(OWN), inside)))) == ["HL801", "HL804"]
    once = replace(collected, collections=replace(gc, num=1, num_full=1))
    assert diagnose(script(steps(OWN), once)).findings == ()


def test_a_line_that_few_samples_saw_is_not_blamed_for_a_whole_phase() -> None:
    for fraction, expected in ((0.049, []), (0.051, ["HL801"])):
        census = replace(HEALTHY, lines=lines(("unattributed", "train", fraction)))
        assert codes(diagnose(script(steps(OWN), census))) == expected


def test_a_loss_that_the_loop_computes_is_computing() -> None:
    loss = lines(("unattributed", "train", 0.2), inside="functional.cross_entropy")
    assert diagnose(script(steps(OWN), replace(HEALTHY, lines=loss))).findings == ()
    mixed = (*loss, *lines(("unattributed", "train", 0.2), inside="time.nap"))
    found_here = only(script(steps(OWN), replace(HEALTHY, lines=mixed)), "HL801")
    assert found_here.evidence["own_fraction"] == pytest.approx(0.1, rel=1e-3)


def test_operations_that_the_loss_depends_on_are_no_code_beside_the_training() -> None:
    """An inner update, `weight - rate * slope`: the profiled steps tell, the sampled line cannot."""
    census = replace(HEALTHY, lines=lines(("unattributed", "train", 0.2)), profiled_step_s=0.2)
    little = replace(census, profiled_between_s=0.01)
    assert only(script(steps(OWN), little), "HL801").evidence["own_fraction"] == pytest.approx(
        0.15, rel=1e-2
    )
    mainly = diagnose(script(steps(OWN), replace(census, profiled_between_s=0.025)))
    assert mainly.findings == ()
    assert any("operations on tensors that the loss" in line for line in mainly.not_examined)


def test_the_probes_own_cost_is_in_no_phase_and_not_taken_off_again() -> None:
    slow_clock = replace(HEALTHY, lines=lines(("unattributed", "train", 0.2)), clock_read_s=1.6e-3)
    assert diagnose(script(steps(OWN), slow_clock)).probe_overhead_fraction == pytest.approx(0.16)
    assert only(script(steps(OWN), slow_clock), "HL801").gain_at_most == pytest.approx(1 / 0.8)


def test_where_no_module_is_called_the_model_is_among_the_scripts_own_lines() -> None:
    host = {"backward": 0.08, "optimizer": 0.001, "unattributed": 0.1}
    census = replace(HEALTHY, lines=lines(("unattributed", "<module>", 0.5)))
    diagnosis = diagnose(script(steps(host), census))
    assert diagnosis.findings == ()
    assert any("not told from the model" in line for line in diagnosis.not_examined)
    named = diagnose(script(steps({**host, "forward": 0.01}), census))
    assert codes(named) == ["HL801"]


@pytest.mark.parametrize(("samples", "expected"), [(20, []), (26, ["HL801"]), (None, ["HL801"])])
def test_five_samples_are_needed_to_tell_of_own_code(
    samples: int | None, expected: list[str]
) -> None:
    census = replace(HEALTHY, lines=lines(("unattributed", "train", 0.2)), num_samples=samples)
    diagnosis = diagnose(script(steps(OWN), census))
    assert codes(diagnosis) == expected
    assert any("fewer than 5 samples" in line for line in diagnosis.not_examined) is (not expected)


@pytest.mark.parametrize(("num", "told"), [(20, False), (500, True)])
def test_own_code_in_stretches_too_short_for_samples_is_told_as_such(
    num: int, *, told: bool
) -> None:
    """Samples that fell there came late, and into the next phase."""
    census = replace(HEALTHY, lines=lines(("forward", "train", 0.9)), num_samples=num)
    diagnosis = diagnose(script(steps(OWN), census))
    assert diagnosis.findings == ()
    line = "the script's own code between the phases: 20 % of the time is in stretches of Python too short"
    assert any(each.startswith(line) for each in diagnosis.not_examined) is told


def test_a_line_that_holds_little_of_it_is_not_said_to_be_the_place() -> None:
    parts = [("unattributed", "train", 0.02)] * 10
    spread = replace(HEALTHY, lines=lines(*parts), num_samples=1000)
    finding = only(script(steps(OWN), spread), "HL801")
    assert finding.site == "train.py:50"
    assert "train.py:50 (10%), train.py:51 (10%), train.py:52 (10%)" in finding.advice
    few = only(script(steps(OWN), replace(spread, num_samples=100)), "HL801")
    assert few.site is None
    assert "over 10 lines; none stands out" in few.advice


@pytest.mark.parametrize(
    "inside",
    [
        "hotloop.probe", "optimizer.Optimizer.zero_grad", "autocast_mode.autocast.__exit__",
        "clip_grad.clip_grad_norm_", "torch.nn.utils.clip_grad._clip_grads_with_norm_",
        "torch.nn.modules.module.Module.zero_grad", "torch.autograd.graph._engine_run_backward",
    ],
)  # fmt: skip
def test_neither_the_probe_nor_torch_is_the_scripts_own_code(inside: str) -> None:
    seen = lines(("unattributed", "train", 0.2), inside=inside)
    assert diagnose(script(steps(OWN), replace(HEALTHY, lines=seen))).findings == ()


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("monai.losses.functional.dice", "HL801"),
        ("somebody.loss.focal", "HL801"),
        ("PIL.Image.Image.load", "HL107"),
        ("transformers.tokenization_utils_base.PreTrainedTokenizerBase.__call__", "HL107"),
        ("tokenization_utils_fast.PreTrainedTokenizerFast._batch_encode_plus", "HL107"),
        ("wandb.sdk.lib.json.dumps", "HL801"),
        ("torch.cuda.memory.empty_cache", "HL801"),
        ("torch.serialization.load", "HL107"),
        ("torch.utils.data._utils.collate.default_collate", "HL107"),
    ],
)
def test_other_peoples_code_is_known_by_its_package(inside: str, code: str) -> None:
    seen = lines(("unattributed", "train", 0.2), inside=inside)
    finding = only(script(steps(OWN), replace(HEALTHY, lines=seen)), code)
    assert finding.evidence["inside"] == inside


def test_a_line_that_calls_the_model_as_well_is_computing() -> None:
    """`model(images / 255)`: only the division is outside of the phase."""
    line = LineUse("unattributed", "train.py:9", "train", 0.2)
    for phase, expected in (("forward", []), ("backward", []), ("logging", ["HL801"])):
        seen = (line, replace(line, phase=phase, inside="linear.Linear.forward"))
        assert codes(diagnose(script(steps(OWN), replace(HEALTHY, lines=seen)))) == expected
    called = (replace(line, inside="metrics.count"), replace(line, phase="forward"))
    assert codes(diagnose(script(steps(OWN), replace(HEALTHY, lines=called)))) == ["HL801"]


def test_a_stray_sample_does_not_make_a_line_computing() -> None:
    """The sampler had to wait for its turn between reading the line and the phase, once in 40 samples."""
    (line,) = lines(("unattributed", "train", 0.2))
    stray = replace(line, phase="forward", fraction=0.005, inside="torch.nn.modules.linear.forward")
    census = replace(HEALTHY, lines=(line, stray))
    assert only(script(steps(OWN), census), "HL801").site == line.site


def test_what_happens_inside_of_a_call_that_trains_is_the_librarys() -> None:
    """`learn.fit_one_cycle(1)`: the only line of the script holds all there is, and cannot be done less often."""
    fit = LineUse(
        "unattributed", "fai.py:7", "<module>", 0.05, inside="fastai.learner.Learner.one_batch"
    )
    most = replace(fit, inside="fastai.callback.core.Callback.__call__", fraction=0.15)
    trained = [
        replace(fit, phase=each, inside="torch.nn.modules.linear.forward")
        for each in ("forward", "backward")
    ]
    finding = only(script(steps(OWN), replace(HEALTHY, lines=(fit, most, *trained))), "HL801")
    assert finding.site is None
    assert finding.gain_is_loose
    assert finding.evidence["function"] is None
    assert finding.evidence["inside"] == "fastai.callback.core.Callback.__call__"
    assert "`fastai.callback.core.Callback.__call__` (75%)" in finding.advice
    assert "fai.py" not in finding.advice
    assert "less often, on the device" not in finding.advice
    assert "library" in finding.title


def test_a_library_of_which_no_function_stands_out_is_no_finding() -> None:
    """A Trainer's odds and ends: a regular expression that is compiled once is in one sample of 130."""
    called = ("_compiler._generate_overlap_table", "enum.EnumType.__call__", "tool.state.save")
    seen = [
        LineUse("unattributed", "fai.py:7", "<module>", 4 / 130, inside=f"{name}{n}")
        for name in called
        for n in range(3)
    ]
    trained = replace(seen[0], phase="forward", inside="torch.nn.modules.linear.forward")
    census = replace(HEALTHY, lines=(*seen, trained), num_samples=130)
    diagnosis = diagnose(script(steps(OWN), census))
    assert diagnosis.findings == ()
    assert any("no function of the library" in each for each in diagnosis.not_examined)


def test_one_line_is_never_spread() -> None:
    parts = [
        LineUse("unattributed", "train.py:9", "<module>", 0.02, inside=f"a.b{n}") for n in range(9)
    ]
    finding = only(script(steps(OWN), replace(HEALTHY, lines=tuple(parts))), "HL801")
    assert finding.site == "train.py:9"
    assert finding.evidence["line_fraction"] == finding.evidence["own_fraction"]
    assert "<module>" not in finding.advice
    assert "train.py:9" in finding.advice


@pytest.mark.parametrize(
    ("feeds", "code", "bound"), [(True, "HL107", "input"), (False, "HL801", "host")]
)
def test_what_feeds_the_loop_is_input_whatever_it_is_called(
    feeds: bool, code: str, bound: str
) -> None:
    line = LineUse("unattributed", "pipe.py:9", "Pipe.decode", 0.2, feeds=feeds)
    census = replace(HEALTHY, lines=(replace(line, function="Pipe.work"),))
    only(script(steps(OWN), census), code)
    assert diagnose(script(steps(OWN), census)).bound == bound


@pytest.mark.parametrize(("padded", "expected"), [(0.19, []), (0.5, ["HL111"])])
def test_padding_counts_from_a_fifth_of_the_tokens(padded: float, expected: list[str]) -> None:
    census = replace(HEALTHY, padding=PaddingUse(10_000, padded, "attention_mask", "train.py:9"))
    diagnosis = diagnose(script(steps(), census))
    assert codes(diagnosis) == expected
    if expected:
        assert diagnosis.findings[0].gain_at_most == pytest.approx(1 / (1 - 0.93 * 0.5))


def test_nothing_but_padding_or_none_of_it_is_no_finding() -> None:
    for padded in (0.0, 1.0):
        census = replace(HEALTHY, padding=PaddingUse(10_000, padded, "labels"))
        assert diagnose(script(steps(), census)).findings == ()


def test_loaders_that_fetched_nothing_while_counted_do_not_divide_by_zero() -> None:
    unused = replace(LOADER, num_batches=0, num_workers=2, fetch_s=0.1)
    host = {**STEP, "data_wait": 0.03}
    assert codes(diagnose(script(steps(host), replace(HEALTHY, loaders=(unused,))))) == ["HL101"]


@pytest.mark.parametrize(
    ("collate", "site"),
    [
        ("train.py:20", "train.py:20"),
        ("/v/site-packages/x.py:3", "train.py:47"),
        (None, "train.py:47"),
    ],
)
def test_padding_stands_at_the_scripts_own_collate_function(collate: str | None, site: str) -> None:
    padding = PaddingUse(10_000, 0.79, "attention_mask", "train.py:47")
    padded = replace(HEALTHY, padding=padding, loaders=(replace(LOADER, collate_site=collate),))
    finding = only(script(steps(), padded), "HL111")
    assert finding.site == site
    assert "DataCollatorWithPadding" in finding.advice


def padded_finding(**seen: float | None) -> Finding:
    padding = PaddingUse(10_000, 0.75, "attention_mask", "train.py:9", **seen)
    return only(script(steps(), replace(HEALTHY, padding=padding)), "HL111")


def test_what_cutting_and_grouping_would_bring_follows_from_the_padding_they_leave() -> None:
    """Of 4 tokens 3 are padding. With a half of it 2 are computed, with a fifth 1.25; 0.93 of the time depends on them."""
    finding = padded_finding(longest_padded_fraction=0.5, grouped_padded_fraction=0.2)
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.93 * 0.75))
    assert finding.evidence["gain_at_longest"] == pytest.approx(1 / (1 - 0.93 * 0.5))
    assert finding.evidence["gain_grouped"] == pytest.approx(1 / (1 - 0.93 * 2.75 / 4))
    assert finding.optimization == "dynamic_padding"
    assert "50 % of the tokens would be padding, at most 1.87x as fast" in finding.advice
    assert "about 20 % padding, up to about 2.77x as fast as now" in finding.advice
    assert "your choice, and not tried" in finding.advice


def test_batches_that_no_loader_made_are_cut_by_hand() -> None:
    padding = PaddingUse(10_000, 0.75, "attention_mask", "train.py:9", longest_padded_fraction=0.5)
    finding = only(script(steps(), replace(HEALTHY, padding=padding, loaders=())), "HL111")
    assert finding.optimization is None
    assert finding.advice.startswith("Pad to the longest sequence of each batch")


def test_batches_that_end_with_their_longest_row_have_no_fix_but_a_choice() -> None:
    finding = padded_finding(longest_padded_fraction=0.75, grouped_padded_fraction=0.2)
    assert finding.optimization is None
    assert finding.advice.startswith("Batches end with their longest sequence")
    assert "DataCollatorWithPadding" not in finding.advice
    assert 'train_sampling_strategy="group_by_length"' in finding.advice


def test_grouping_that_would_leave_the_padding_is_not_advised() -> None:
    finding = padded_finding(longest_padded_fraction=0.2, grouped_padded_fraction=0.19)
    assert finding.optimization == "dynamic_padding"
    assert "train_sampling_strategy" not in finding.advice


def test_grouping_is_advised_without_a_number_where_lengths_were_not_seen() -> None:
    finding = padded_finding()
    assert finding.evidence["gain_grouped"] is None
    assert "train_sampling_strategy" in finding.advice
    assert "as fast" not in finding.advice


@pytest.mark.parametrize("left", [1.0, 2.0, -1.0])
def test_damaged_padding_of_a_file_divides_nothing_by_zero(left: float) -> None:
    finding = padded_finding(longest_padded_fraction=left, grouped_padded_fraction=left)
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.93 * 0.75))
