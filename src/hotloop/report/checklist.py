"""The checklist of targets, in words: for the terminal and for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hotloop.core.judgement import Target
from hotloop.report import numbers

SIGNS = {"pass": "✓", "fail": "✗", "not_applicable": "–"}
WORDS = {"pass": "pass", "fail": "fail", "not_applicable": "n/a"}
WIDTH = 100


def count_line(targets: Sequence[Target]) -> str:
    """`5 pass, 1 fails, 7 do not apply or are not known`"""
    num = {status: sum(t.status == status for t in targets) for status in WORDS}
    fails = "1 fails" if num["fail"] == 1 else f"{num['fail']} fail"
    passes = "1 passes" if num["pass"] == 1 else f"{num['pass']} pass"
    rest = num["not_applicable"]
    others = "1 does not apply or is" if rest == 1 else f"{rest} do not apply or are"
    return f"{passes}, {fails}, {others} not known"


def value_text(target: Target) -> str:
    """The measured value with its unit; empty where there is none."""
    value = target.value
    if value is None:
        return ""
    match target.unit:
        case "fraction" | "relative_difference":
            return numbers.percent(value)
        case "s":
            return numbers.seconds(value)
        case "ratio":
            return numbers.ratio(value)
        case "tokens/s":
            return numbers.rate(value, "tokens")
        case "samples/s":
            return numbers.rate(value, "samples")


def render_targets(targets: Sequence[Target]) -> str:
    """A table for the terminal; reasons wrap under themselves."""
    if not targets:
        return ""
    rows = [(WORDS[t.status], t.title, value_text(t), t.bar, t.reason) for t in targets]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [f"targets: {count_line(targets)}"]
    for row in rows:
        first = "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row[:4], widths))
        reason = textwrap.wrap(row[4], max(WIDTH - len(first) - 2, 30)) or [""]
        lines.append(f"{first}  {reason[0]}".rstrip())
        lines += [f"{'':{len(first)}}  {more}" for more in reason[1:]]
    return "\n".join(lines)
