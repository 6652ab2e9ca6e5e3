"""`hotloop explain NAME`: the page of a finding or an optimization."""

from __future__ import annotations

import difflib

import click

from hotloop.core.errors import UsageError


@click.command()
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain a finding (HL101) or an optimization (precision); without NAME, list them all."""
    from hotloop.judge.findings import FINDINGS
    from hotloop.optimizations.catalogue import CATALOGUE
    from hotloop.report.explain import explain_finding, explain_optimization, list_pages

    if name is None:
        titles = {code: module.TITLE for code, module in FINDINGS.items()}
        click.echo(list_pages(titles, list(CATALOGUE.values())))
    elif name.upper() in FINDINGS:
        click.echo(explain_finding(FINDINGS[name.upper()].__doc__))
    elif name in CATALOGUE:
        click.echo(explain_optimization(CATALOGUE[name]))
    else:
        # 0.75: one letter of a code may be missing, not two be wrong.
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        close += difflib.get_close_matches(name.upper(), FINDINGS, n=1, cutoff=0.75)
        hint = f"did you mean `{close[0]}`?" if close else "`hotloop explain` lists every page"
        raise UsageError(f"nothing is called `{name}`", do=hint)
