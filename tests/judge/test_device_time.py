from __future__ import annotations

from dataclasses import replace

import pytest
from script_inputs import GPU_HEALTHY, HEALTHY, STEP, found, script, steps

from hotloop.core.census import Census, LineUse
from hotloop.core.step import StepRecord
from hotloop.judge.attribute import device_shares, host_shares
from hotloop.judge.diagnose import diagnose


def step(tags: tuple[str, ...] = (), **device: float) -> StepRecord:
    return StepRecord(step=0, wall_s=0.1, host={"forward": 0.1}, device=device, tags=tags)


def test_what_is_no_kernel_was_idling() -> None:
    records = [step(compute=0.02, unknown=0.06)] * 5
    seen = Census(profiled_busy_s=0.03)
    assert device_shares(records, seen) == pytest.approx({"compute": 0.375, "idle": 0.625})


def test_without_the_kernels_nothing_is_said_of_idling() -> None:
    records = [step(compute=0.02, unknown=0.06)]
    assert device_shares(records, Census()) is None
    assert device_shares(records) is None
    little = device_shares([step(compute=0.09, idle=0.009, unknown=0.001)])
    assert little == pytest.approx({"compute": 0.91, "idle": 0.09})


@pytest.mark.parametrize(("busy", "idle"), [(0.5, 0.3), (0.0, 0.8), (0.06, 0.4)])
def test_idling_stays_within_what_the_events_allow(busy: float, idle: float) -> None:
    records = [step(compute=0.02, idle=0.03, unknown=0.05)]
    shares = device_shares(records, Census(profiled_busy_s=busy))
    assert shares is not None
    assert shares["idle"] == pytest.approx(idle)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_pace_is_the_devices_where_the_host_runs_ahead_of_it() -> None:
    ahead = [replace(step(compute=0.2), samples=8)] * 30
    behind = [replace(step(compute=0.05, unknown=0.15), samples=8, wall_s=0.2, host={"sync": 0.2})]
    records = tuple(replace(each, step=n) for n, each in enumerate(ahead + behind))
    found = diagnose(script(records, GPU_HEALTHY)).steps
    assert found.median_s == pytest.approx(0.2)
    assert found.samples_per_s == pytest.approx(40)


def test_steps_that_evaluate_do_not_tell_how_long_kernels_take() -> None:
    plain, evaluating = step(unknown=0.1), step(("eval",), compute=5.0, unknown=0.1)
    shares = device_shares([plain] * 9 + [evaluating], Census(profiled_busy_s=0.08))
    assert shares is not None
    assert shares["idle"] == pytest.approx(0.2 * 1.0 / 6.0)


def test_communication_that_nothing_hid_is_no_computing() -> None:
    records = [step(compute=0.1)] * 4
    seen = Census(profiled_busy_s=0.1, profiled_communication_s=0.03)
    assert device_shares(records, seen) == pytest.approx({"compute": 0.7, "communication": 0.3})


def test_waits_for_other_processes_inside_the_pass_backward_are_no_computing() -> None:
    seen = Census(device="cpu", profiled_step_s=0.2, profiled_communication_s=0.1)
    shares = host_shares({"forward": 0.1, "backward": 0.8, "grad_sync": 0.1}, seen)
    assert shares == pytest.approx({"forward": 0.1, "backward": 0.4, "grad_sync": 0.5})
    assert host_shares({"backward": 0.3}, replace(seen, device="cuda:0")) == {"backward": 0.3}


def test_ranks_that_wait_inside_the_pass_backward_are_found() -> None:
    host = {"forward": 0.01, "backward": 0.09}
    seen = replace(
        HEALTHY, num_ranks=2, num_local_ranks=2, parallel="DistributedDataParallel",
        profiled_step_s=0.1, profiled_communication_s=0.06,
    )  # fmt: skip
    diagnosis = diagnose(script(steps(host), seen))
    assert diagnosis.bound == "communication"
    finding = next(each for each in diagnosis.findings if each.code == "HL601")
    assert finding.gain_at_most == pytest.approx(1 / 0.4)
    unseen = diagnose(script(steps(host), replace(seen, profiled_communication_s=None)))
    assert unseen.bound is None
    assert any("other processes" in line for line in unseen.not_examined)


OWN = LineUse("unattributed", "train.py:40", "get_batch", 0.74, "PIL.open")
HOST = {"forward": 0.01, "backward": 0.01, "sync": 0.02, "unattributed": 0.06}
EVENTS = {"compute": 0.04, "communication": 0.0, "memcpy": 0.0, "idle": 0.0, "unknown": 0.06}


def test_device_that_waits_for_the_scripts_own_code_is_not_bound_by_computing() -> None:
    seen = replace(GPU_HEALTHY, lines=(OWN,), profiled_busy_s=0.04)
    diagnosis = diagnose(script(steps(HOST, device=EVENTS), seen))
    assert diagnosis.bound == "input"
    assert diagnosis.device is not None
    assert diagnosis.device["idle"] == pytest.approx(0.6)
    assert found(script(steps(HOST, device=EVENTS), seen), "HL107") is not None


def test_idling_that_is_not_known_is_said_to_be_so() -> None:
    diagnosis = diagnose(script(steps(HOST, device=EVENTS), replace(GPU_HEALTHY, lines=(OWN,))))
    assert (diagnosis.bound, diagnosis.device) == (None, None)
    assert any("when the device idled" in line for line in diagnosis.not_examined)
    healthy = diagnose(script(steps(STEP, device={"compute": 0.1, "unknown": 0.001}), GPU_HEALTHY))
    assert healthy.device is not None
