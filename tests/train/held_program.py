"""`hotloop ARGUMENTS` that waits, after `HOLD_AFTER` updates, for whoever ends it.

For as long as the file `HOLD` is there, and no signal has come: torchrun may pass one on late.
"""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

from hotloop.train import loop
from hotloop.train.interruption import StopRequest

update, enter = loop.update, StopRequest.__enter__
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


loop.update, StopRequest.__enter__ = held, entered  # type: ignore[method-assign]
runpy.run_module("hotloop", run_name="__main__", alter_sys=True)
