"""The lines of the user's own code on which the model computes, as the host was seen there in forward.

torch's profiler tells what took the time, the sampled lines tell where it may have been: a line is given
only where it is the likely one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from hotloop.core.census import Census, LineUse
from hotloop.judge.exposure import lines_of

_MULTIPLYING = re.compile(r"(?:torch\.nn\.modules\.)?(?:linear|conv)\.")
"""Files of torch.nn.modules."""
_OF_TENSORS = re.compile(r"(?:torch\.)?_tensor\.")


def products_line(census: Census | None) -> str | None:
    """The line that most often called a layer that multiplies; else the one most seen."""
    lines = lines_of(census, "forward")
    return _most_seen([line for line in lines if _MULTIPLYING.match(line.inside or "")] or lines)


def formula_line(census: Census | None) -> str | None:
    """The line that most often called single operations itself, of the function that most did."""
    return _of_function(_formulas(census), at_least=0.0)


def attention_line(census: Census | None) -> str | None:
    """The line that called softmax; else of the one function whose formulas take most of the time."""
    lines = lines_of(census, "forward")
    softmax = _most_seen([line for line in lines if _calls_softmax(line)])
    return softmax or _of_function(_formulas(census), at_least=0.5)


def compiled_line(census: Census | None, at_least: float) -> str | None:
    """The line that called what was compiled, where the host was seen in it for such a share."""
    lines = [line for line in lines_of(census, "forward") if line.inside is not None]
    site = _most_seen(lines)
    return site if _sum(lines, lambda line: line.site == site) >= at_least else None


def called_module(line: LineUse) -> str:
    """The package, or file of Python's own, of what the line was calling; empty where it called nothing that
    is written in Python."""
    return (line.inside or "").partition(".")[0]


def _formulas(census: Census | None) -> list[LineUse]:
    lines = lines_of(census, "forward")
    return [line for line in lines if line.inside is None or _OF_TENSORS.match(line.inside)]


def _calls_softmax(line: LineUse) -> bool:
    called = (line.inside or "").lower()
    return "softmax" in called and "log" not in called


def _of_function(lines: Sequence[LineUse], *, at_least: float) -> str | None:
    whole = _sum(lines, lambda _: True)
    names = {line.function for line in lines}
    seen = {name: _sum(lines, lambda line, name=name: line.function == name) for name in names}  # type: ignore[misc]
    best = max(sorted(seen), key=lambda name: seen[name], default=None)
    if best is None or seen[best] < at_least * whole:
        return None
    return _most_seen([line for line in lines if line.function == best])


def _most_seen(lines: Sequence[LineUse]) -> str | None:
    sites = sorted({line.site for line in lines})
    return max(sites, key=lambda site: _sum(lines, lambda line: line.site == site), default=None)


def _sum(lines: Sequence[LineUse], belongs: Callable[[LineUse], bool]) -> float:
    return math.fsum(line.fraction for line in lines if belongs(line))
