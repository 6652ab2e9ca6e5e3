"""`hotloop ARGUMENTS` that waits, after `HOLD_AFTER` updates, for whoever ends it.

For as long as the file `HOLD` is there, and no signal has come: torchrun may pass one on late. The end of the training takes
`END_S` seconds more.
"""

from __future__ import annotations

import os
import runpy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hotloop.train import loop, start
from hotloop.train.interruption import StopRequest

update, enter, telemetry = loop.update, StopRequest.__enter__, start.telemetry
requests: list[StopRequest] = []
made = 0


def entered(self: StopRequest) -> StopRequest:
    requests.append(self)
    return enter(self)


def is_held() -> bool:
    waits = made > int(os.environ["HOLD_AFTER"]) and os.path.exists(os.environ["HOLD"])
    return waits and not any(each.asked for each in requests)


def held(*args: Any) -> Any:
    global made
    made += 1
    while is_held():
        time.sleep(0.01)
    return update(*args)


@contextmanager
def that_ends_late(*args: Any, **named: Any) -> Iterator[Any]:
    with telemetry(*args, **named) as newest:
        try:
            yield newest
        finally:
            time.sleep(float(os.environ.get("END_S", "0")))


loop.update, StopRequest.__enter__ = held, entered  # type: ignore[method-assign]
start.telemetry = that_ends_late
runpy.run_module("hotloop", run_name="__main__", alter_sys=True)
