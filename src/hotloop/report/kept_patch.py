"""What goes with a kept patch: the description of a pull request in Markdown, and a picture of the answer."""

from __future__ import annotations

import io
import re
import shlex
import textwrap
from typing import TYPE_CHECKING

from hotloop.core.judgement import Diagnosis, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Environment
from hotloop.report import numbers
from hotloop.report.ledger import ledger_answer, ratio_words, start_cost
from hotloop.report.terminal import render_breakdown
from hotloop.report.words import losses, sentence

if TYPE_CHECKING:
    from rich.console import Console

BEGINS = "<!-- hotloop doctor -->"
"""First line of the text, so that it is known again."""
WIDTH = 84
MOST_OF_COMMAND = 64
_FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Of rich's pictures: fonts from a server, which a picture must not ask for."""


def render_pull_request(
    ledger: Ledger, diagnosis: Diagnosis, environment: Environment | None, diff: bytes
) -> str:
    """What was slow, what the diff changes, and what was measured. `ledger` keeps at least one fix that `diff` holds."""
    verdict = ledger.together
    assert verdict is not None
    kept = [fix for fix in ledger.fixes if fix.name in ledger.kept]
    edited = [fix for fix in kept if fix.patch == "edited"]
    names = " and ".join(f"`{fix.name}`" for fix in edited)
    parts = [
        BEGINS,
        f"Faster training: {names}, {ratio_words(verdict)}",
        _findings(diagnosis, edited),
        "\n".join(
            ["What this changes:", *(f"- `{fix.name}`: edits {fix.patch_text}" for fix in edited)]
        ),
        _measured(verdict),
        "\n".join(_conditions(ledger, verdict, kept, environment)),
        _fenced(diff.decode(errors="replace").rstrip()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _fenced(diff: str) -> str:
    """Within a fence that is longer than any that the source holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", diff)), default=0))
    return f"{fence}diff\n{diff}\n{fence}"


def _findings(diagnosis: Diagnosis, edited: list[TriedFix]) -> str:
    """What the fixes answer."""
    codes = {code for fix in edited for code in fix.answers}
    found = [each for each in diagnosis.findings if each.code in codes]
    lines = []
    for each in found:
        at = f" at `{each.site}`" if each.site else ""
        lines.append(f"- {each.code}: {each.title}{at}")
    return "What was slow:\n" + "\n".join(lines) if lines else ""


def _measured(verdict: Verdict) -> str:
    """Both arms in a table."""
    rows = [
        ("", f"seconds per {verdict.unit}"),
        ("---", "---:"),
        ("before", numbers.seconds(verdict.baseline_s_per_work)),
        ("with this patch", numbers.seconds(verdict.candidate_s_per_work)),
    ]
    return "\n".join(f"| {name} | {value} |" for name, value in rows)


def _conditions(
    ledger: Ledger, verdict: Verdict, kept: list[TriedFix], environment: Environment | None
) -> list[str]:
    edited = [fix for fix in kept if fix.patch == "edited"]
    others = " and ".join(f"`{fix.name}`" for fix in kept if fix.patch != "edited")
    steps = ledger.together_steps or ledger.steps
    lines = [
        f"- Speed: {ratio_words(verdict)}, {verdict.outcome}; interleaved fresh processes of the patched script and "
        f"of the unchanged one, {steps} steps of each counted.",
        f"- What it learns: {verdict.parity.reason}.",
    ]
    if others:
        lines.append(f"- Measured with {others} as well, which is not part of this change.")
    lines += [f"- `{fix.name}`: {cost}." for fix in edited if (cost := start_cost(fix))]
    if environment is not None:
        torch = f", torch {environment.torch}" if environment.torch else ""
        cpus = f"{environment.num_cpus} CPUs"
        lines.append(f"- On: {environment.device}, {cpus}{torch}, Python {environment.python}.")
    lines.append(f"- Measured by: `hotloop doctor -- {shlex.join(ledger.command)}`")
    return lines


def render_card(
    ledger: Ledger, diagnosis: Diagnosis, environment: Environment | None, answer: str
) -> str:
    """What held the run back, what was proven, and where. answer: the sentence on top of the terminal's page.

    `ledger` keeps at least one fix. An SVG of its own: no font, script or picture from elsewhere.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    command = textwrap.shorten(shlex.join(ledger.command), MOST_OF_COMMAND, placeholder=" ...")
    parts = [
        (f"$ hotloop doctor -- {command}\n", "bold"),
        (f"{answer}\n", ""),
        (f"{render_breakdown(diagnosis.breakdown)}\n" if diagnosis.breakdown else "", "cyan"),
        (ledger_answer(ledger), "bold green"),
        (sentence(losses(ledger.together.parity)) if ledger.together else "", ""),
        (f"\n{_where(environment)}" if environment is not None else "", "dim"),
    ]
    for text, style in parts:
        if text:
            console.print(Text(text, style=style))
    return picture_of(console)


def picture_of(console: Console) -> str:
    """What a recording console was sent, as an SVG that loads nothing."""
    return _FONT_FACES.sub("", console.export_svg(title="hotloop", unique_id="hotloop"))


def _where(environment: Environment) -> str:
    torch = f", torch {environment.torch}" if environment.torch is not None else ""
    return f"{environment.device}, {environment.cpu_quota:g} CPUs{torch}, hotloop {environment.hotloop}"
