"""The pages of `hotloop explain`, from what a finding or an optimization says of itself."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

WIDTH = 88


class Technique(Protocol):
    """What is read of an optimization; the catalogue lies above this room and is handed in."""

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def parity_class(self) -> str: ...
    @property
    def other_draws_in(self) -> object: ...
    @property
    def key(self) -> str: ...
    @property
    def off(self) -> Any: ...
    @property
    def settings(self) -> tuple[Any, ...]: ...
    @property
    def answers(self) -> tuple[str, ...]: ...
    @property
    def source_form(self) -> str: ...
    @property
    def live_form(self) -> object: ...
    @property
    def no_live_form(self) -> str: ...
    @property
    def leaves(self) -> str: ...
    @property
    def conflicts(self) -> tuple[str, ...]: ...
    @property
    def risks(self) -> str: ...


MEANING = {
    "bitwise": "bitwise: the same losses, to the last bit",
    "reduction_order": "reduction_order: the same sums in another order; losses agree to rounding "
    "(with products of bf16, fp16 or tf32 to theirs: judged as reduced_precision)",
    "reduced_precision": "reduced_precision: fewer digits; losses agree within a calibrated band",
    "other_draws": "other_draws: the same samples in the same order, augmented with other random numbers of the same "
    "distribution; with these numbers held fixed it is held to the class above, with its own to the script's spread",
    "changes_training": "changes_training: another training; only the result can be compared",
}


def explain_optimization(technique: Technique) -> str:
    """What it does, how to turn it on here and in one's own source, and what can go wrong."""
    on = ", ".join(f"{technique.key}={_shown(value)}" for value in technique.settings)
    rows = (
        ("parity", MEANING.get(technique.parity_class, technique.parity_class)),
        ("parity of random", MEANING["other_draws"] if technique.other_draws_in else ""),
        ("turn on", on if technique.key else ""),
        ("turn off", technique.key and f"{technique.key}={_shown(technique.off)}"),
        ("answers", ", ".join(technique.answers)),
        ("on a live script", "yes" if technique.live_form else f"no: {technique.no_live_form}"),
        ("left alone", technique.leaves),
        ("conflicts", "; ".join(technique.conflicts)),
        ("risks", technique.risks),
    )
    parts = [technique.name, "", *_wrapped(technique.summary, "  "), ""]
    for name, value in rows:
        if value:
            parts += _wrapped(value, f"  {name:<17} ")
    if technique.source_form:
        code = textwrap.indent(technique.source_form.strip("\n"), "    ")
        parts += ["", "  in your own source", code]
    return "\n".join(parts)


def explain_finding(page: str | None) -> str:
    """The page of a finding: its module's docstring."""
    return inspect.cleandoc(page or "no page has been written")


def list_pages(titles: Mapping[str, str], techniques: Sequence[Technique]) -> str:
    """Every name that can be explained: findings by code and title, then the catalogue."""
    lines = []
    if titles:
        lines += ["findings", *(f"  {code}  {title}" for code, title in titles.items())]
    if techniques:
        width = max(len(technique.name) for technique in techniques)
        lines += [""] if lines else []
        lines.append("optimizations")
        for technique in techniques:
            lines += _wrapped(technique.summary, f"  {technique.name:<{width}}  ")
    return "\n".join(lines)


def _shown(value: object) -> str:
    """As it would be typed in a config: `true`, `null`, `bf16`."""
    return json.dumps(value).strip('"')


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
    ) or [first.rstrip()]
