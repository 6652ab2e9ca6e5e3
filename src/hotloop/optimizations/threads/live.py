"""Setting the number of threads of a running script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hotloop.optimizations.hooks import (
    TORCH,
    after_first_step,
    compiler_is_used,
    optimizer_device_type,
    watch_compiler,
)
from hotloop.optimizations.live_report import Report
from hotloop.optimizations.threads import VARIABLES
from hotloop.probe.attach.sites import caller, file_and_line
from hotloop.probe.entry import around_call


def apply(value: Any, report: Report) -> None:
    """When the first optimizer is made: in the process that trains, not in those that load, and before
    anything is compiled, since another number of threads would have it compiled again."""
    watch_compiler()  # it writes the number of threads into what it makes
    before = torch.get_num_threads()
    set_num_threads = torch.set_num_threads
    done = False

    def chose(original: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal done
        frame = caller()
        if frame is not None and not frame.f_code.co_filename.startswith(TORCH):
            done = True
            report.refused(f"the script calls torch.set_num_threads at {file_and_line(frame)}")
        original(*args, **kwargs)

    def made(original: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal done
        original(*args, **kwargs)
        if done:
            return
        done = True
        why = _chosen_in_code()
        if why is None:
            set_num_threads(int(value))
        else:
            report.refused(why)

    def toggle(on: bool) -> None:
        set_num_threads(int(value) if on else before)

    def step_ended(optimizer: torch.optim.Optimizer | None) -> None:
        if torch.get_num_threads() != int(value) or before == int(value):
            return
        if optimizer_device_type(optimizer) == "cpu":
            report.applied(
                f"threads: {value} instead of {before}",
                toggle=None if compiler_is_used() else toggle,
            )
        else:
            set_num_threads(before)
            report.refused("the model does not run on the CPU")

    around_call(torch, "set_num_threads", chose)
    around_call(torch.optim.Optimizer, "__init__", made)
    after_first_step(step_ended, report)


def _chosen_in_code() -> str | None:
    """A variable that the process has set for itself: it was another one when it was started."""
    try:
        parts = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # not Linux: not known
        return None
    started = dict(os.fsdecode(part).partition("=")[::2] for part in parts if part)
    for name in VARIABLES:
        if os.environ.get(name) != started.get(name) and name in os.environ:
            return f"the script sets {name}={os.environ[name]}"
    return None
