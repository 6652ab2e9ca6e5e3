"""What torch.compile did in this process, read from dynamo's own counters where it is loaded at all."""

from __future__ import annotations

import sys
from typing import Any

from hotloop.probe.attach.watch import Watch

MAX_REASONS = 8


class Compiling:
    """Tags the steps in which something was compiled. Runs on the thread that steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._graphs = 0
        self._failures = 0

    def at_boundary(self) -> None:
        """At the end of each step."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        if utils is None or not (stats := utils.counters.get("stats")):
            return
        graphs = stats["unique_graphs"]
        if graphs == self._graphs:
            return
        failures = len(_reasons(utils))
        # Again, since a guard failed; and not for the first time: shapes settle in the first steps.
        again = failures > self._failures and self._watch.counting
        if graphs > self._graphs:
            self._watch.tag("recompile" if again else "compile")
        self._graphs, self._failures = graphs, failures


def recompiles() -> tuple[int | None, tuple[str, ...]]:
    """How often something was compiled again, and why: dynamo's words. `None` without dynamo."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None, ()
    try:
        reasons = _reasons(utils)
    except (AttributeError, TypeError, RuntimeError):  # internals of another torch
        return None, ()
    first = [_first_line(reason) for reason in reasons]
    return len(reasons), tuple(dict.fromkeys(first))[-MAX_REASONS:]


def compile_seconds() -> float | None:
    """Seconds in torch.compile so far; `None` where nothing was compiled or dynamo does not tell."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    metrics = getattr(utils, "compilation_time_metrics", None)
    if not isinstance(metrics, dict):
        return None
    for name in ("_compile.compile_inner", "_compile"):
        if metrics.get(name):
            return float(sum(metrics[name]))
    return None


def _reasons(utils: Any) -> list[str]:
    failures = list(utils.guard_failures.values())
    return [str(reason) for each in failures for reason in list(each)]


def _first_line(reason: str) -> str:
    text = " ".join(reason.split())
    return text if len(text) <= 200 else text[:197] + "..."
