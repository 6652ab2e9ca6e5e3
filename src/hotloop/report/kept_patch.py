"""What goes with a kept patch: the description of a pull request in Markdown."""

from __future__ import annotations

import re
import shlex

from hotloop.core.judgement import Diagnosis, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Environment
from hotloop.report import numbers
from hotloop.report.ledger import ratio_words, start_cost, whole_epochs

BEGINS = "<!-- hotloop doctor -->"
"""First line of the text, so that it is known again."""


def render_pull_request(
    ledger: Ledger, diagnosis: Diagnosis, environment: Environment | None, diff: bytes
) -> str:
    """What was slow, what the diff changes, and what was measured. `ledger` keeps at least one fix that `diff` holds."""
    verdict = ledger.together
    assert verdict is not None
    kept = [fix for fix in ledger.fixes if fix.name in ledger.kept]
    edited = [fix for fix in kept if fix.patch == "edited"]
    names = " and ".join(f"`{fix.name}`" for fix in edited)
    source = diff.decode(errors="replace").rstrip()
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", source)), default=0))
    parts = [
        BEGINS,
        f"Faster training: {names}, {ratio_words(verdict)}",
        _findings(diagnosis, edited),
        "\n".join(
            ["What this changes:", *(f"- `{fix.name}`: edits {fix.patch_text}" for fix in edited)]
        ),
        _measured(verdict),
        "\n".join(_conditions(ledger, verdict, kept, environment)),
        f"{fence}diff\n{source}\n{fence}",  # the fence is longer than any that the source holds
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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
    how = f"interleaved fresh processes of the patched script and of the unchanged one, {steps} steps of each counted"
    if verdict.switched:
        how = "turned on and off within fresh processes, and then seen in pairs of the patched script and the unchanged one"
    lines = [
        f"- Speed: {ratio_words(verdict)}, {verdict.outcome}; {how}{whole_epochs(ledger)}.",
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
