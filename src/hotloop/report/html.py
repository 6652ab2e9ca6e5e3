"""One page that stands alone: nothing fetched, and no script but `templates/copy.js`, which a policy in the page holds
browsers to. The answer first."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from hotloop import report
from hotloop.core.census import Census
from hotloop.core.course import ArmsCourse, MachineCourse, PairSpeeds, StepCourse
from hotloop.core.files import write_atomically
from hotloop.core.judgement import Diagnosis, Target, Verdict
from hotloop.core.ledger import Ledger
from hotloop.core.measurement import Environment as Machine
from hotloop.core.memory_use import Fit, MemoryProfile, OutOfMemory
from hotloop.core.task_scores import TaskScores

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context
    from markupsafe import Markup

OF_A_RUN = {
    "before-after": "Before and after",
    "time": "Where a step's time goes",
    "loss": "Loss",
    "scores": "Held-out examples",
    "speed": "Speed",
    "memory-use": "Memory",
    "targets": "Targets",
    "hardware": "Use of the hardware",
    "findings": "Findings",
    "sample": "A sample of the trained model",
    "environment": "Environment",
    "settings": "Settings",
}
"""Sections of the page in their order: macros of `templates/sections.html`, with their titles."""

OF_A_COMMAND = {
    "fixes": "Fixes tried, by gain",
    "findings": "Findings",
    "time": "Where a step's time goes",
    "memory-use": "Memory",
    "host": "Time by line",
    "loaders": "Loaders",
    "seen": "Settings detected",
    "facts": "This run",
} | OF_A_RUN
"""The same for somebody else's command that was examined, below a card that says what to do."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page may show. Parts that are missing are left out."""

    title: str
    answer: str = ""
    """The one sentence a reader came for."""
    problems: Sequence[str] = ()
    """What is damaged."""
    notes: Sequence[str] = ()
    """What is missing or unfinished."""
    facts: Sequence[tuple[str, str]] = ()
    """Names and values below the answer, already in words."""
    verdict: Verdict | None = None
    pairs: Sequence[PairSpeeds] = ()
    arm_names: tuple[str, str] = ("baseline", "candidate")
    """Baseline and candidate of `pairs` and `arms`."""
    arms: ArmsCourse | None = None
    breakdowns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Host phases as fractions of wall time, per arm or run."""
    device: Mapping[str, float] | None = None
    """Fractions of device time."""
    ranks: Sequence[tuple[str, str]] = ()
    """Processes that train together, in words."""
    steps: StepCourse | None = None
    held_out: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """`(step, loss)` of evaluations, by name."""
    task: TaskScores | None = None
    """How well a fine-tuned model does on held-out examples."""
    machine: MachineCourse | None = None
    cpus: float | None = None
    """CPUs that the run may use."""
    use: Sequence[tuple[str, str]] = ()
    """How much of the hardware was used, in words."""
    targets: Sequence[Target] = ()
    memory: MemoryProfile | None = None
    out_of_memory: OutOfMemory | None = None
    fit: Fit | None = None
    """Memory against the microbatch."""
    fit_command: str = ""
    """How to get that, or a proof."""
    diagnosis: Diagnosis | None = None
    explanations: Mapping[str, str] = field(default_factory=dict)
    """The page of `hotloop explain` for each finding's code."""
    examined: Census | None = None
    """What somebody else's command was seen to do; its findings then stand before everything else."""
    ledger: Ledger | None = None
    """Fixes that were tried on it."""
    patch: str = ""
    """The diff of those that were kept."""
    next_command: str = ""
    """What goes on from here."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The text of the line at a `file:line`."""
    sample: str = ""
    """Text that the trained model wrote."""
    environment: Machine | None = None
    settings: Sequence[tuple[str, str, str]] = ()
    """Key, value, origin."""
    footer: str = ""


def write_html(path: Path, page: Page) -> None:
    """Write the page, whole or not at all. Raises `EnvironmentFailed`."""
    write_atomically(path, render_html(page).encode("utf-8", "replace"))


def render_html(page: Page) -> str:
    """The page as text. Everything that is not ours is escaped."""
    templates = _templates()
    section: Any = templates.get_template("sections.html").make_module({"page": page})
    script, *_ = templates.loader.get_source(templates, "copy.js")  # type: ignore[union-attr]
    drawn = [
        (name, title, getattr(section, name.replace("-", "_"))().strip())
        for name, title in (OF_A_RUN if page.examined is None else OF_A_COMMAND).items()
    ]
    return templates.get_template("page.html").render(
        page=page,
        tone=_tone(page.verdict),
        section=section,
        sections=[each for each in drawn if each[2]],
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context

    templates = Environment(
        loader=PackageLoader("hotloop.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {"coded": pass_context(coded), "printable": printable}
    templates.globals |= {
        each.name: import_module(f"{report.__name__}.{each.name}")
        for each in iter_modules(report.__path__)
    }
    return templates


def coded(context: Context, text: str) -> Markup:
    """Escaped, with what stands between backticks as code, and codes of the page's findings as links to them."""
    from markupsafe import Markup, escape

    diagnosis: Diagnosis | None = context["page"].diagnosis
    codes = [finding.code for finding in diagnosis.findings] if diagnosis else []
    html = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\bHL\d{3}\b", lambda code: _link(code[0], codes), html))


def _link(code: str, codes: Sequence[str]) -> str:
    return f'<a href="#{code}">{code}</a>' if code in codes else code


def printable(text: str) -> str:
    """An untrained model writes any byte; what is no letter has no place in a page."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _tone(verdict: Verdict | None) -> str:
    """Style class of the answer."""
    if verdict is None:
        return ""
    if verdict.outcome == "regressed" or verdict.parity.result == "different":
        return " bad"
    return " good" if verdict.is_proven else " plain"
