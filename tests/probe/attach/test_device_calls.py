from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.probe.attach.device_clock import KINDS, DeviceClock, DeviceStep

COPIES = """
import json, sys, torch
from pathlib import Path
from hotloop.probe.attach.device_calls import watch_device_calls
from hotloop.probe.attach.watch import Watch
watch = Watch(Path(sys.argv[1]))
watch_device_calls(watch, "meta")  # the one accelerator that every machine has
x = torch.ones(4, 8)
x.to("meta"); x.to(torch.device("meta")); x.to(x.to("meta"))
x.to(torch.float64); x.to("cpu"); x.cpu(); x.item if x.numel() == 1 else None
torch.empty(4, 8, device="meta").copy_(x)
torch.empty(4, 8, device="meta").copy_(torch.empty(4, 8, device="meta"))
try: torch.ones((), device="meta").item()
except (RuntimeError, NotImplementedError): pass
torch.ones(()).item()
watch.calls.close_step(counted=True)
found = [(u.what, u.num, u.num_bytes, u.pageable) for kind in ("copies", "syncs")
         for u in watch.calls.uses(kind, watch.sites)]
_, seconds, _ = watch.clock.end_step()
model = torch.nn.Linear(8, 8)
def f(y): return model(y.to(torch.float64).to(torch.float32).cpu()) * y.to("cpu")
torch.compile(f, backend="eager", fullgraph=True)(x)
print(json.dumps([sorted(found), sorted(seconds)]))
"""


def test_copies_to_the_device_are_told_from_those_that_stay(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COPIES, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found, phases = json.loads(done.stdout)
    merged: dict[str, int] = {}
    for what, num, num_bytes, pageable in found:
        merged[what] = merged.get(what, 0) + num
        if what != "item":
            assert (num_bytes, pageable) == (128 * num, True)
    assert merged == {"Tensor.to": 4, "Tensor.copy_": 1, "item": 1}
    assert phases == ["host_to_device", "sync", "unattributed"]


class Event:
    """Passes when told; `at` in milliseconds on the device."""

    def __init__(self, at: float, passed: bool = True) -> None:
        self.at = at
        self.passed = passed

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_device_time_of_a_step_is_what_its_events_say() -> None:
    spans = [("idle", Event(10), Event(14)), ("memcpy", Event(20), Event(21))]
    step = DeviceStep(Event(0), Event(100), spans, True)
    found = step.seconds()
    assert found == pytest.approx(
        {"compute": 0.095, "communication": 0.0, "memcpy": 0.001, "idle": 0.004}
    )
    assert DeviceStep(Event(0), Event(1), [], False).seconds() is None
    assert not DeviceStep(Event(0), Event(1, passed=False), [], True).passed()


def test_only_the_outermost_wait_has_events() -> None:
    failures: list[str] = []

    class Clock(DeviceClock):
        made = 0.0

        def _event(self) -> Event:
            self.made += 1.0
            return Event(self.made)

    clock = Clock(None, failures.append)  # type: ignore[arg-type]
    assert clock.cut() is None  # the first step began before there was a clock
    clock.enter("forward", 1)
    clock.enter("logging", 2)
    clock.enter("sync", 3)
    clock.leave(3)
    clock.leave(2)
    clock.leave(1)
    step = clock.cut()
    assert step is not None
    assert [(kind, end.at - begin.at) for kind, begin, end in step.spans] == [("idle", 1.0)]
    assert set(KINDS.values()) == {"idle", "memcpy", "communication"}
    assert not failures
