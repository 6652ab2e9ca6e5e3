"""A wait for data is never passed over: it is named, and nothing says that there is nothing to gain."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from script_inputs import GPU_HEALTHY, HEALTHY, LOADER, found, script, steps, waiting

from hotloop.core.census import LoaderUse
from hotloop.core.command_run import CommandRun
from hotloop.core.judgement import Diagnosis
from hotloop.core.measurement import Measurement
from hotloop.judge.diagnose import diagnose
from hotloop.judge.thresholds import MODERATE
from hotloop.report.examined import examined_answer

CROWDED = replace(
    HEALTHY, machine_busy=1.0, foreign_busy=0.86, cpus=2.0, cpu_busy=0.5, num_threads=2
)
STARVED = {"num_workers": 0, "fetch_s": 0.07, "fetch_cpu_fraction": 0.29}
ABOUT_DATA = re.compile(r"HL1(0[1-6]|08|09|10)|HL201")


def answer(diagnosis: Diagnosis) -> str:
    run = CommandRun(("python", "train.py"), "/", 0.0, "0", ended="by_itself", returncode=0)
    return examined_answer(run, diagnosis, num_steps=60)


@pytest.mark.parametrize("loader", [STARVED, {**STARVED, "num_workers": 1}])
def test_wait_on_a_crowded_machine_is_named_with_what_hides_its_cause(
    loader: dict[str, Any],
) -> None:
    diagnosis = diagnose(waiting(0.074, loader, CROWDED))
    assert answer(diagnosis) == (
        "The training waits for data 74 % of the time (HL101, train.py:30); other programs keep 86 % of "
        "the CPUs busy, so this run does not show whether workers would help: trying them does, best when the machine "
        "is quiet."
    )
    assert diagnosis.worth is not None
    assert diagnosis.worth.answer == "not known"
    assert "86 % of the machine's CPUs" in diagnosis.worth.reason
    assert [each.code for each in diagnosis.findings] == ["HL101", "HL803"]
    finding = diagnosis.findings[0]
    assert finding.evidence["other_programs_fraction"] == 0.86
    assert "decode them once, smaller, and store the result" in finding.advice
    drawing = diagnose(waiting(0.074, {**loader, "draws_random": True}, CROWDED)).findings[0]
    assert "decode what comes before the random part once" in drawing.advice
    in_memory = {**loader, "in_memory": True, "batch_size": 1}
    held = diagnose(waiting(0.074, in_memory, CROWDED)).findings[0]
    assert "decode" not in held.advice


def test_smaller_gain_elsewhere_does_not_hide_the_wait() -> None:
    update = {"data_wait": 0.06, "forward": 0.01, "backward": 0.02, "optimizer": 0.01}
    use = replace(LOADER, wait_s=0.06, **STARVED)
    census = replace(CROWDED, loaders=(use,), optimizer="AdamW")
    diagnosis = diagnose(script(steps(update), census))
    assert [f.code for f in diagnosis.findings] == ["HL101", "HL803", "HL401"]
    assert answer(diagnosis).startswith("The training waits for data 60 % of the time (HL101")


def test_first_batches_that_no_finding_names_are_not_taken_from_the_wait() -> None:
    """Half of all steps begin an epoch: their waits are usual ones then, and how long one is is not known."""

    def each(number: int, record: Any) -> Any:
        return replace(record, tags=("epoch",)) if number % 2 else record

    host = {"data_wait": 0.04, "forward": 0.06}
    slower = {"data_wait": 0.12, "forward": 0.06}
    usual, first = steps(host, each=each), steps(slower, each=each)
    records = tuple(first[i] if i % 2 else usual[i] for i in range(60))
    use = replace(LOADER, num_workers=0, fetch_s=0.05)
    finding = found(script(records, replace(HEALTHY, loaders=(use,))), "HL102")
    assert finding is not None
    assert finding.evidence["data_wait_fraction"] == pytest.approx(0.16 / 0.28)


SHARES = st.floats(0.0, 1.0)
LOADERS = st.builds(
    lambda **changes: replace(LOADER, **changes),
    num_workers=st.sampled_from([0, 1, 4, 16]),
    fetch_s=st.none() | st.floats(1e-6, 1.0),
    collate_s=st.none() | st.floats(0.0, 0.5),
    fetch_cpu_fraction=st.none() | SHARES,
    wait_s=st.none() | st.floats(0.0, 0.2),
    wait_p99_s=st.none() | st.floats(0.0, 1.0),
    in_memory=st.none() | st.booleans(),
    batch_size=st.none() | st.integers(1, 100_000),
    trains=st.booleans(),
    draws_random=st.booleans(),
    pin_memory=st.booleans(),
    pin_s=st.none() | st.floats(0.0, 0.1),
    per_epoch=st.none() | st.integers(1, 1000),
    num_batches=st.sampled_from([30, 60, 120]),
)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    """Any breakdown of sixty steps, with any loader, on any machine."""
    parts = {
        name: draw(st.floats(0.0, 0.1))
        for name in ("data_wait", "forward", "backward", "optimizer", "unattributed", "logging")
    }
    parts["forward"] += 1e-4
    on_cpu = draw(st.booleans())
    idle = draw(SHARES)
    device = None if on_cpu else {"compute": 1 - idle, "idle": idle}
    wall = sum(parts.values())
    device = device and {name: share * wall for name, share in device.items()}
    every = draw(st.sampled_from([0, 5, 20]))
    late = draw(st.floats(1.0, 20.0))

    def each(number: int, record: Any) -> Any:
        if not every or number % every:
            return record
        more = (late - 1) * record.host["data_wait"]
        host = {**record.host, "data_wait": record.host["data_wait"] + more}
        grown = record.device and {**record.device, "idle": record.device["idle"] + more}
        tags = ("epoch",)
        return replace(record, host=host, wall_s=record.wall_s + more, device=grown, tags=tags)

    loaders: tuple[LoaderUse, ...] = draw(st.lists(LOADERS, max_size=2).map(tuple))
    census = replace(
        HEALTHY if on_cpu else GPU_HEALTHY,
        loaders=loaders,
        optimizer=draw(st.sampled_from(["AdamW", "AdamW(fused)"])),
        cpus=draw(st.sampled_from([None, 1.0, 2.0, 8.0])),
        cpu_busy=draw(st.none() | st.floats(0.0, 8.0)),
        machine_busy=draw(st.none() | SHARES),
        foreign_busy=draw(st.none() | SHARES),
    )
    return script(steps(parts, device=device, each=each), census)


@settings(max_examples=400, deadline=None)
@given(measurements())
def test_any_data_wait_above_its_threshold_is_named_and_never_nothing_to_gain(
    measurement: Measurement,
) -> None:
    diagnosis = diagnose(measurement)
    wait = diagnosis.breakdown["data_wait"]
    if diagnosis.device is not None:
        wait = min(wait, diagnosis.device["idle"])
    if wait < MODERATE + 1e-9:
        return
    about_data = [f for f in diagnosis.findings if ABOUT_DATA.fullmatch(f.code)]
    assert about_data
    assert diagnosis.worth is not None
    assert diagnosis.worth.answer != "nothing to gain here"
    said = answer(diagnosis)
    assert "nothing was found" not in said
    largest = max(f.gain_at_most for f in about_data)
    others = [f.gain_at_most for f in diagnosis.findings if f not in about_data]
    if largest >= 1.05 and largest > max(others, default=1.0):
        assert re.search("data|batch", said.split(";")[diagnosis.bound == "compute"])
