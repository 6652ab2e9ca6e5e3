"""`hotloop explain NAME`: the page of a finding or an optimization."""

from __future__ import annotations

import difflib
import inspect
import json
import textwrap

import click

from hotloop.core.errors import UsageError
from hotloop.judge.findings import FINDINGS, title_of
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import Optimization

WIDTH = 88

MEANING = {
    "bitwise": "bitwise: the same losses, to the last bit",
    "reduction_order": "reduction_order: the same sums in another order; losses agree to rounding "
    "(with products of bf16, fp16 or tf32 to theirs: judged as reduced_precision)",
    "reduced_precision": "reduced_precision: fewer digits; losses agree within a calibrated band",
    "other_draws": "other_draws: the same samples in the same order, with other random numbers of the same distribution "
    "in augmentation or dropout; with these held fixed, or dropout off, it is held to the class above",
    "changes_training": "changes_training: another training; only the result can be compared",
}


@click.command()
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain a finding (HL101) or an optimization (precision); without NAME, list them all."""
    if name is None:
        click.echo(list_pages())
    elif name.upper() in FINDINGS:
        click.echo(inspect.cleandoc(FINDINGS[name.upper()].__doc__ or ""))
    elif name in CATALOGUE:
        click.echo(explain_optimization(CATALOGUE[name]))
    else:
        # 0.75: one letter of a code may be missing, not two be wrong.
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        close += difflib.get_close_matches(name.upper(), FINDINGS, n=1, cutoff=0.75)
        hint = f"did you mean `{close[0]}`?" if close else "`hotloop explain` lists every page"
        raise UsageError(f"nothing is called `{name}`", do=hint)


def explain_optimization(technique: Optimization) -> str:
    """What it does, how to turn it on here and in one's own source, and what can go wrong."""
    values = (*technique.settings, *technique.trainer_settings)
    on = ", ".join(f"{technique.key}={_shown(value)}" for value in values)
    rows = (
        ("parity", MEANING.get(technique.parity_class, technique.parity_class)),
        (
            "parity of random",
            MEANING["other_draws"] if technique.other_draws_in or technique.reshapes else "",
        ),
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


def list_pages() -> str:
    """Every name that can be explained: findings by code and title, then the catalogue."""
    lines = ["findings", *(f"  {code}  {title_of(code)}" for code in FINDINGS), "", "optimizations"]
    width = max(map(len, CATALOGUE))
    for technique in CATALOGUE.values():
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
