"""What torch.compile did in this process, read from dynamo's own counters where it is loaded at all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.probe.attach.watch import Watch

MAX_REASONS = 8
_OTHER_TORCH = (AttributeError, KeyError, TypeError, RuntimeError)
"""What its internals raise where they are not the tested ones."""


class CompileWatch:
    """What was compiled since it was made: before, in a notebook, other cells may have compiled something else. Tags the
    steps in which something was. Runs on the thread that steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._before = _now()
        self._graphs, self._failures = num_graphs(), recompiles()[0] or 0

    def at_boundary(self) -> None:
        """At the end of each step."""
        graphs = num_graphs()
        if graphs == self._graphs:
            return
        failures = recompiles()[0] or 0
        # Again, since a guard failed; and not for the first time: shapes settle in the first steps.
        again = failures > self._failures and self._watch.counting
        if graphs > self._graphs:
            self._watch.tag("recompile" if again else "compile")
        self._graphs, self._failures = graphs, failures

    def used(self, runs_compiled: bool | None) -> dict[str, Any]:
        """Fields of the census. runs_compiled: whether torch's profiler saw something compiled run, where it was at work."""
        since = {name: _since(value, self._before[name]) for name, value in _now().items()}
        compiled = compiler_counts()[0]
        if compiled and not since["num_graphs"]:
            compiled = runs_compiled
        reasons = recompiles()[1] if since["num_recompiles"] else ()
        return {"compiled": compiled, "recompile_reasons": reasons, **since}


def _now() -> dict[str, Any]:
    """Fields of the census that count since the process began."""
    _, graphs, breaks = compiler_counts()
    return {
        "num_graphs": graphs,
        "num_graph_breaks": breaks,
        "num_recompiles": recompiles()[0],
        "compile_s": compile_seconds(),
    }


def _since(now: Any, before: Any) -> Any:
    if now is None or now < (before or 0):  # less: the script has put the counters back
        return now
    return now - (before or 0)


def _utils() -> Any:
    """Dynamo's counters; `None` where it was never loaded."""
    return sys.modules.get("torch._dynamo.utils")


def compiler_counts() -> tuple[bool | None, int | None, int | None]:
    """Whether something was compiled, graphs, and graph breaks, where dynamo was loaded at all."""
    utils = _utils()
    if utils is None:
        return False, None, None
    try:
        graphs = int(utils.counters["stats"]["unique_graphs"])
        return graphs > 0, graphs, sum(utils.counters["graph_break"].values())
    except _OTHER_TORCH:
        return None, None, None


def num_graphs() -> int:
    """Compiled so far; cheap enough to be read in every step."""
    utils = _utils()
    try:
        return int(utils.counters.get("stats", {}).get("unique_graphs", 0)) if utils else 0
    except _OTHER_TORCH:
        return 0


def recompiles() -> tuple[int | None, tuple[str, ...]]:
    """How often something was compiled again, and why: dynamo's words. `None` without dynamo."""
    try:
        failures = list(_utils().guard_failures.values())
        reasons = [" ".join(str(reason).split()) for each in failures for reason in list(each)]
    except _OTHER_TORCH:
        return None, ()
    short = (each if len(each) <= 200 else f"{each[:197]}..." for each in reasons)
    return len(reasons), tuple(dict.fromkeys(short))[-MAX_REASONS:]


def compile_seconds() -> float | None:
    """Seconds in torch.compile so far; `None` where nothing was compiled or dynamo does not tell."""
    metrics = getattr(_utils(), "compilation_time_metrics", None)
    if not isinstance(metrics, dict):
        return None
    for name in ("_compile.compile_inner", "_compile"):
        if metrics.get(name):
            return float(sum(metrics[name]))
    return None
