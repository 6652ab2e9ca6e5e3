from __future__ import annotations

from typing import Any

COPIES = """
from pathlib import Path
from hotloop.probe.attach.side_calls import watch_device_calls
from hotloop.probe.attach.watch import Watch
watch = Watch(Path())
watch_device_calls(watch, "meta")  # the one accelerator that every machine has
x = torch.ones(4, 8)
x.to("meta"); x.to(torch.device("meta")); x.to(x.to("meta"))
x.to(torch.float64); x.to("cpu"); x.cpu(); x.item if x.numel() == 1 else None
torch.empty(4, 8, device="meta").copy_(x)
torch.empty(4, 8, device="meta").copy_(torch.empty(4, 8, device="meta"))
try: torch.ones((), device="meta").item()
except (RuntimeError, NotImplementedError): pass
torch.ones(()).item()
watch.calls.count(watch.calls.take())
found = [(u.what, u.num, u.num_bytes, u.pageable) for kind in ("copies", "syncs")
         for u in watch.calls.uses(kind, watch.sites)]
_, seconds, _ = watch.clock.end_step()
model = torch.nn.Linear(8, 8)
def f(y): return model(y.to(torch.float64).to(torch.float32).cpu()) * y.to("cpu")
torch.compile(f, backend="eager", fullgraph=True)(x)
print(json.dumps([sorted(found), sorted(seconds)]))
"""


def test_copies_to_the_device_are_told_from_those_that_stay(run: Any) -> None:
    found, phases = run(COPIES, watched=False).last
    merged: dict[str, int] = {}
    for what, num, num_bytes, pageable in found:
        merged[what] = merged.get(what, 0) + num
        if what != "item":
            assert (num_bytes, pageable) == (128 * num, True)
    assert merged == {"Tensor.to": 4, "Tensor.copy_": 1, "item": 1}
    assert phases == ["host_to_device", "sync", "unattributed"]


PARTS = """
from pathlib import Path
from hotloop.probe.attach.side_calls import watch_device_calls
from hotloop.probe.attach.watch import Watch
watch = Watch(Path())
watch_device_calls(watch, "meta")
x = torch.ones(4, 8)
scalar = torch.ones((), device="meta")
def both():
    x.to("meta")
    try: scalar.item()
    except (RuntimeError, NotImplementedError): pass
def booked(): return [(key[0], key[1]) for key, _, _ in watch.calls.take()]
found = {}
for phase in ("eval", "logging", "checkpoint", "data_wait", "forward"):
    depth = watch.enter(phase)
    inner = watch.enter("optimizer")
    both()
    watch.leave(depth)
    found[phase] = booked()
watch.evaluates = True  # between two passes of an evaluation
with torch.no_grad(): both()
found["between passes"] = booked()
both()
found["with gradients"] = booked()
watch.eval_batch = True
both()
found["after a batch that evaluates"] = booked()
watch.evaluates = False
with torch.no_grad(): both()
found["a metric"] = booked()
_, seconds, _ = watch.clock.end_step()
print(json.dumps(found))
"""
BOTH = [["copies", "Tensor.to"], ["syncs", "item"]]


def test_what_evaluates_logs_or_saves_takes_in_its_copies_and_waits(run: Any) -> None:
    assert run(PARTS, watched=False).last == {
        "eval": [],
        "logging": [],
        "checkpoint": [],
        "data_wait": [],
        "forward": BOTH,
        "between passes": [],
        "with gradients": BOTH,
        "after a batch that evaluates": [],
        "a metric": BOTH,
    }
