"""The device's clock against a simulated device: one queue per stream, and a host that spends time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.probe.attach import device_clock, watch
from hotloop.probe.attach.device_clock import MAX_EDGES, DeviceClock, DeviceStep

AHEAD = 1000.0
"""Of the device's clock, in seconds: the two count from different moments."""


class Gpu:
    """Time passes only where the host says so."""

    def __init__(self) -> None:
        self.now = 5.0
        self.free = {"main": 0.0, "side": 0.0}
        """When each queue runs dry, by the host's clock."""
        self.current = "main"
        self.capturing = False
        self.busy = 0.0
        self.queries = 0
        self.breaks = False

    def host(self, seconds: float) -> None:
        self.now += seconds

    def kernel(self, seconds: float) -> None:
        self.free[self.current] = max(self.free[self.current], self.now) + seconds
        self.busy += seconds

    def wait(self) -> None:
        self.now = max(self.now, self.free[self.current])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert not gpu.capturing
            self.at = max(gpu.now, gpu.free[stream])

        def query(self) -> bool:
            assert not gpu.capturing, "cudaErrorStreamCaptureUnsupported"
            gpu.queries += 1
            return gpu.now >= self.at

        def elapsed_time(self, other: Event) -> float:
            assert gpu.now >= max(self.at, other.at), "cudaErrorNotReady"
            if gpu.breaks:
                raise RuntimeError("an illegal memory access was encountered")
            return (other.at + AHEAD - (self.at + AHEAD)) * 1000

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: gpu.current)
    monkeypatch.setattr(device_clock, "_stream_handle", lambda index: gpu.current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing)
    monkeypatch.setattr(device_clock.time, "perf_counter", lambda: gpu.now)
    return gpu


class Host:
    """Opens and closes phases as the watch does."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.opened = ["unattributed"]
        self.failures: list[str] = []
        self.clock = DeviceClock(torch.device("cuda:0"), self.opened, self.failures.append)

    def enter(self, phase: str) -> None:
        self.opened.append(phase)
        self.clock.edge(len(self.opened))

    def leave(self) -> None:
        self.clock.edge(len(self.opened) - 1)
        self.opened.pop()

    def phase(self, name: str, host: float = 0.0, kernels: float = 0.0, num: int = 10) -> None:
        """The host takes so long, and submits its kernels evenly over it."""
        self.enter(name)
        for _ in range(num):
            if kernels:
                self.gpu.kernel(kernels / num)
            self.gpu.host(host / num)
        self.leave()

    def sync(self) -> None:
        self.enter("sync")
        self.gpu.wait()
        self.leave()

    def seconds(self) -> dict[str, float]:
        step = self.clock.cut()
        assert step is not None
        self.gpu.host(100.0)  # it is read much later
        assert step.passed()
        found = step.seconds()
        self.clock.cut()
        return found


def host_of(gpu: Gpu) -> Host:
    host = Host(gpu)
    assert host.clock.cut() is None  # the first step began before there was a clock
    return host


def about(**seconds: float) -> Any:
    empty = dict.fromkeys(("compute", "communication", "memcpy", "idle", "unknown"), 0.0)
    return pytest.approx(empty | seconds, abs=1e-6)


def test_waiting_for_data_on_an_empty_queue_is_idling(gpu: Gpu) -> None:
    host = host_of(gpu)
    host.phase("data_wait", host=0.06)
    gpu.kernel(0.02)
    host.sync()
    assert host.seconds() == about(idle=0.06, compute=0.02)


def test_waiting_behind_a_busy_device_costs_nothing(gpu: Gpu) -> None:
    host = host_of(gpu)
    gpu.kernel(0.1)
    host.phase("data_wait", host=0.06)
    host.sync()
    assert host.seconds() == about(compute=0.1)


def test_own_code_on_an_empty_queue_is_the_most_that_can_be_idling(gpu: Gpu) -> None:
    host = host_of(gpu)
    gpu.kernel(0.02)
    host.sync()
    gpu.host(0.06)  # the script's own lines: did they start something?
    assert host.seconds() == about(compute=0.02, unknown=0.06)


@pytest.mark.parametrize("kernels", [0.0, 0.02, 0.05, 0.0599])
def test_gaps_between_short_kernels_lie_in_what_is_unknown(gpu: Gpu, kernels: float) -> None:
    host = host_of(gpu)
    host.phase("forward", host=0.06, kernels=kernels)
    host.sync()
    found = host.seconds()
    whole = sum(found.values())
    idle = whole - gpu.busy
    assert found["idle"] - 1e-6 <= idle <= found["idle"] + found["unknown"] + 1e-6
    assert found["unknown"] <= 0.06 + 1e-6


def test_device_that_is_behind_its_host_all_the_time_never_idles(gpu: Gpu) -> None:
    gpu.kernel(0.5)
    host = host_of(gpu)
    for _ in range(3):
        host.phase("forward", host=0.01, kernels=0.05)
        host.phase("backward", host=0.02, kernels=0.1)
    # No event found an empty queue, so both clocks can not be compared: the queries tell.
    assert host.seconds() == about(compute=0.45)


def test_only_what_comes_before_the_device_falls_behind_is_unknown(gpu: Gpu) -> None:
    host = host_of(gpu)
    host.phase("forward", host=0.01, kernels=0.05)
    host.phase("backward", host=0.02, kernels=0.1)
    host.phase("optimizer", host=0.005, kernels=0.01)
    host.sync()
    assert host.seconds() == about(compute=0.15, unknown=0.01)


def test_copies_collectives_and_evaluations_are_what_they_are(gpu: Gpu) -> None:
    host = host_of(gpu)
    host.phase("host_to_device", host=0.01, kernels=0.01)
    host.enter("backward")
    host.phase("grad_sync", host=0.02, kernels=0.02)
    host.leave()
    host.phase("eval", host=0.03, kernels=0.01)
    assert host.seconds() == about(memcpy=0.01, communication=0.02, compute=0.03)


def test_inside_a_wait_everything_is_part_of_it(gpu: Gpu) -> None:
    host = host_of(gpu)
    host.enter("logging")
    host.phase("sync", host=0.01)
    host.phase("forward", host=0.01)
    host.leave()
    assert host.seconds() == about(idle=0.02)


def test_span_with_another_stream_in_it_is_no_idling(gpu: Gpu) -> None:
    host = host_of(gpu)
    gpu.current = "side"
    host.phase("data_wait", host=0.02)
    host.phase("forward", host=0.02, kernels=0.02)
    gpu.current = "main"
    host.phase("data_wait", host=0.01)
    assert host.seconds() == about(unknown=0.04, idle=0.01)
    host.enter("data_wait")
    gpu.host(0.01)
    gpu.current = "side"
    host.leave()
    gpu.current = "main"
    assert host.seconds()["idle"] == 0.0


def test_step_that_ends_on_another_stream_has_no_times(gpu: Gpu) -> None:
    host = host_of(gpu)
    gpu.current = "side"
    host.phase("forward", host=0.01, kernels=0.01)
    assert host.clock.cut() is None
    host.phase("data_wait", host=0.02)
    assert host.seconds() == about(idle=0.02)  # from there on that one is watched
    assert not host.failures


def test_nothing_is_asked_or_recorded_while_a_graph_is_captured(gpu: Gpu) -> None:
    host = host_of(gpu)
    host.phase("data_wait", host=0.01)
    gpu.capturing = True
    before = gpu.queries
    assert not host.clock.is_free()
    host.phase("data_wait", host=0.01)
    host.phase("forward", host=0.01)
    assert host.clock.cut() is None
    assert gpu.queries == before
    gpu.capturing = False
    assert host.clock.cut() is None
    assert host.clock.is_free()
    host.phase("data_wait", host=0.02)
    assert host.seconds() == about(idle=0.02)
    assert not host.failures


def test_step_with_too_many_phases_is_unknown_from_there_on(gpu: Gpu) -> None:
    host = host_of(gpu)
    for _ in range(MAX_EDGES):
        host.phase("data_wait", host=0.001)
        host.phase("forward", host=0.001)
    found = host.seconds()
    assert sum(found.values()) == pytest.approx(2 * MAX_EDGES * 0.001)
    assert found["idle"] <= MAX_EDGES / 2 * 0.001 + 1e-6
    assert found["unknown"] == pytest.approx(sum(found.values()) - found["idle"])


def test_events_are_used_again_once_they_were_read(gpu: Gpu) -> None:
    host = host_of(gpu)
    host.phase("data_wait", host=0.01)
    step = host.clock.cut()
    assert step is not None
    events = step.events()
    host.clock.give_back(step)
    host.phase("data_wait", host=0.01)
    second = host.clock.cut()
    assert second is not None
    assert {id(event) for event in second.events()[1:]} <= {id(event) for event in events}
    assert len({id(edge.event) for edge in second.edges}) == len(second.edges)


def watched(gpu: Gpu, tmp_path: Path) -> watch.Watch:
    watched = watch.Watch(tmp_path)
    watched.device = DeviceClock(torch.device("cuda:0"), watched.clock.opened, watched.notes.append)
    for _ in range(2):
        watched.end_step()
    assert not watched.closed or watched.closed[0].device is None
    return watched


def test_steps_are_released_when_the_capture_is_over(gpu: Gpu, tmp_path: Path) -> None:
    seen = watched(gpu, tmp_path)
    before = len(seen.closed)
    gpu.kernel(1.0)
    seen.end_step()
    gpu.host(2.0)
    gpu.capturing = True
    queries = gpu.queries
    seen.release()
    assert (len(seen.closed), gpu.queries) == (before, queries)
    gpu.capturing = False
    seen.release()
    assert len(seen.closed) == before + 1
    assert seen.closed[-1].device is not None


def test_failing_event_costs_the_device_times_and_not_the_probe(gpu: Gpu, tmp_path: Path) -> None:
    seen = watched(gpu, tmp_path)
    gpu.breaks = True
    seen.end_step()
    assert seen.active
    assert seen.closed[-1].device is None
    assert "illegal memory access" in (tmp_path / "notes.txt").read_text()


def test_no_event_is_read_before_all_have_passed(gpu: Gpu) -> None:
    host = host_of(gpu)
    gpu.kernel(1.0)
    host.phase("data_wait", host=0.01)
    step = host.clock.cut()
    assert isinstance(step, DeviceStep)
    assert not step.passed()
    gpu.host(2.0)
    assert step.passed()


def test_what_events_cost_is_counted_once(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two outside of the probe's other work, two within it; that of the step's end is the next one's. Of all of it follows how many steps are left out."""
    seen = watched(gpu, tmp_path)
    seen.step = watch.WARMUP_STEPS
    record = torch.cuda.Event.record

    def slow(event: Any, stream: Any) -> None:
        gpu.host(0.001)
        record(event, stream)

    monkeypatch.setattr(torch.cuda.Event, "record", slow)
    for call in (lambda action: action(), seen.guarded):
        call(lambda: seen.leave(seen.enter("data_wait")))
    seen.guarded(seen.end_step)
    assert seen.closed[-1].own_s == seen._worked_s == pytest.approx(0.004)
    seen.guarded(seen.end_step)
    assert seen.closed[-1].own_s == pytest.approx(0.001)


@pytest.mark.parametrize("behind_s", [0.0, 0.099, 1.0])
def test_the_probes_work_is_taken_off_only_as_far_as_the_device_waited(
    behind_s: float, gpu: Gpu, tmp_path: Path
) -> None:
    """behind_s: what the device had to do yet when the step began."""
    seen = watched(gpu, tmp_path)
    gpu.kernel(behind_s)
    depth = seen.enter("data_wait")
    gpu.host(0.1)
    seen.leave(depth)
    seen.own = {"data_wait": 0.003}
    seen.guarded(seen.end_step)
    gpu.host(2.0)
    seen.release()
    step = seen.closed[-1]
    assert step is not None
    assert step.device is not None
    waited = min(0.003, max(0.1 - behind_s, 0.0))
    assert step.own_s == pytest.approx(0.003)
    assert step.wall_s == step.host["data_wait"] == pytest.approx(0.1 - waited)
    assert step.device == about(compute=behind_s, idle=max(0.1 - behind_s, 0.0) - waited)


def test_only_after_what_may_be_idling_the_device_is_asked(gpu: Gpu) -> None:
    host = host_of(gpu)
    host.phase("data_wait", host=0.01)  # at its begin
    host.sync()
    host.clock.cut()  # here
    assert gpu.queries == 3


def resting(seen: watch.Watch) -> int:
    """Steps that are left out from here on."""
    seen.most_cost, seen.counting, seen.claimed = 0.016, True, True
    seen.counted_steps, seen.counted_s, seen._worked_s = 100, 0.1, 0.05
    seen.guarded(seen.rest)
    assert seen.resting > 1
    return seen.resting


def test_no_time_of_the_device_holds_steps_that_were_left_out(gpu: Gpu, tmp_path: Path) -> None:
    """The step before them has not passed when they begin; the one after them begins with an event of its own."""
    seen = watched(gpu, tmp_path)
    gpu.kernel(0.05)
    seen.guarded(seen.end_step)
    for _ in range(num := resting(seen)):
        gpu.kernel(0.3)
        seen.leave(seen.enter("data_wait"))
        gpu.host(0.4)
        seen.guarded(seen.end_step)
    depth = seen.enter("data_wait")
    gpu.host(0.03)
    seen.leave(depth)
    gpu.kernel(0.02)
    depth = seen.enter("sync")
    gpu.wait()
    seen.leave(depth)
    seen.guarded(seen.end_step)
    before, after = list(seen.closed)[-2:]
    assert before is not None
    assert after is not None
    assert (before.left_out, after.left_out) == (0, num)
    assert before.device == about(compute=0.05)
    assert after.device == about(idle=0.03, compute=0.02)


def test_step_after_those_that_were_left_out_has_no_times_where_a_graph_is_captured(
    gpu: Gpu, tmp_path: Path
) -> None:
    seen = watched(gpu, tmp_path)
    num = resting(seen)
    for left in range(num, 0, -1):
        gpu.capturing = left == 1
        seen.guarded(seen.end_step)
    gpu.capturing = False
    gpu.host(0.01)
    for _ in range(2):
        seen.guarded(seen.end_step)
        gpu.host(0.02)
    seen.release()
    assert [each and each.device for each in list(seen.closed)[-2:]] == [None, about(unknown=0.02)]
    assert seen.active
