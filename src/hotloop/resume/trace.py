"""What `probe.resume_trace` wrote of one process: its steps, by number. Standard library alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Step = list[dict[str, Any]]
"""The updates of one step, in their order."""
Steps = Mapping[int, Step]


@dataclass(slots=True)
class Trace:
    """One process of a training."""

    log: Path
    code: int = 0
    first: int | None = None
    """Number of its first step; `None` where it made none."""
    matched: bool = True
    """Its first weights are those of that step."""
    steps: dict[int, Step] = field(default_factory=dict)
    saves: dict[int, list[int]] = field(default_factory=dict)
    """Of each save that ended, in order: the step it was made after, once for each call."""
    saved: dict[int, list[dict[str, list[str]]]] = field(default_factory=dict)
    """What was saved after a step, for each call: of each entry a digest of its tensors, and one of its numbers."""
    end: str | None = None
    """`killed` or `stopped`, by us; `None`: it ended by itself."""
    moment: str = ""
    left: tuple[str, int] | None = None
    """Weights at the kill, and the step that would have begun with them."""

    @property
    def failed(self) -> bool:
        return self.end is None and self.code != 0

    @property
    def made(self) -> int:
        """Steps made in all, with those that it continues."""
        return max(self.steps, default=(self.first or 0) - 1) + 1


def read_trace(place: Path) -> Trace:
    """Of a process that has ended."""
    path, code = place / "trace.jsonl", place / "code"
    found, updates = Trace(place / "log.txt"), list[dict[str, Any]]()
    found.code = int(code.read_text()) if code.exists() else 0
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        read: dict[str, Any] = json.loads(line)
        if "first" in read:
            found.first, found.matched = read["first"], read["matched"]
        elif "save" in read:
            found.saves.setdefault(read["group"], []).append(read["save"])
            found.saved.setdefault(read["save"], []).append(read["parts"])
        elif "end" in read:
            found.end, found.moment = read["end"], read.get("moment", "")
            found.left = (read["weights"], read["step"]) if "weights" in read else None
        else:
            updates.append(read)
            if read["ends"] == "STEP_OF_ANOTHER":  # as `StepRule` says
                for each in updates:
                    each["ends"] = "STEP" if each.get("by") == read.get("by") else "NOTHING"
    step: Step = []
    for update in updates:
        step += [update] if "weights" in update else []
        if update["ends"] != "NOTHING" and found.first is not None:
            found.steps[found.first + len(found.steps)], step = step, []
    return found


def known_weights(traces: Sequence[Trace]) -> dict[str, list[int]]:
    """By the weights before it: the numbers of steps."""
    known: dict[str, list[int]] = {}
    for number, step in (pair for trace in traces for pair in trace.steps.items() if pair[1]):
        known.setdefault(step[0]["weights"], []).append(number)
    for weights, number in (trace.left for trace in traces if trace.left is not None):
        known.setdefault(weights, []).append(number)
    return known


def saved_otherwise(one: Trace, two: Trace) -> Iterator[tuple[int, str, bool]]:
    """Of steps after which both saved: entries that are not the same, and whether they differ in tensors."""
    for step in sorted(one.saved.keys() & two.saved.keys()):
        for parts, others in zip(one.saved[step], two.saved[step], strict=False):
            both = sorted(parts.keys() & others.keys())
            for name in both:
                if parts[name] != others[name]:
                    yield step, name, parts[name][0] != others[name][0]


def saved(traces: Sequence[Trace], torn: int | None = None) -> list[int]:
    """The steps of all whole saves of these processes. torn: the one that the last was killed in."""
    whole = (s for t in traces for g, s in t.saves.items() if t is not traces[-1] or g != torn)
    return sorted({steps[0] for steps in whole})
