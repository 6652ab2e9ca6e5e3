"""`hotloop report RUN`: read what a run left, let the judge say what it means, show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.cli.output import write_object
from hotloop.cli.run_directory import Found, read_run

if TYPE_CHECKING:
    from hotloop.core.settings import Settings
    from hotloop.report.html import Page


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "json_file", metavar="FILE", help="Write all that was found; `-`: stdout.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write a page.")
def report(run: Path, json_file: str | None, html_file: Path | None) -> None:
    """Say what the run or comparison in the directory RUN showed.

    Reads config.yaml, steps.jsonl, census.json, measurement.json, diagnosis.json, verdict.json:
    whatever is there, also of a run that was interrupted.
    """
    found = read_run(run)
    if html_file is not None:
        from hotloop.report.html import write_html

        write_html(html_file, page_of(found))
    if json_file is not None:
        write_object(object_of(found), json_file)
    if json_file != "-":
        click.echo(text_of(found))
        if html_file is not None:
            click.echo(f"\npage written to {html_file}")


def facts_of(found: Found) -> list[tuple[str, str]]:
    """The few numbers a reader looks for first, in words."""
    from hotloop.report import numbers

    facts: list[tuple[str, str]] = []
    records = found.measurement.records if found.measurement else ()
    if last := next((r for r in reversed(records) if r.loss is not None), None):
        facts.append(("loss", f"{numbers.loss(last.loss)} at step {last.step}"))
    if found.evals:
        last_eval = found.evals[-1]
        facts.append(
            ("held-out loss", f"{numbers.loss(last_eval['loss'])} at step {last_eval['step']}")
        )
    if found.diagnosis is not None and found.diagnosis.steps.tokens_per_s is not None:
        facts.append(("speed", numbers.rate(found.diagnosis.steps.tokens_per_s, "tokens")))
    if found.utilization is not None:
        from hotloop.report.machine import utilization_rows

        facts.extend(utilization_rows(found.utilization))
    census = found.measurement.census if found.measurement else None
    if census is not None and census.host_peak_bytes is not None:
        facts.append(("host memory, peak", numbers.size(census.host_peak_bytes)))
    trained = (found.quickstart or {}).get("trained")
    if isinstance(trained, dict) and isinstance(trained.get("run"), str):
        facts.append(("trained with it", f"`hotloop report {trained['run']}`"))
    if found.environment is not None:
        facts.append(("device", found.environment.device))
    return facts


def settings_rows(settings: Settings | None) -> list[tuple[str, str, str]]:
    """Every key with its value and where it came from."""
    if settings is None:
        return []
    flat = settings.config.flat()
    return [(key, json.dumps(flat[key]).strip('"'), settings.origin(key)) for key in flat]


def text_of(found: Found) -> str:
    """For a terminal: the verdict first where there is one."""
    from hotloop.report import terminal

    parts = [str(found.directory)]
    if found.verdict is not None:
        parts.append(terminal.render_verdict(found.verdict))
    # The diagnosis opens with the speed.
    facts = [fact for fact in facts_of(found) if fact[0] != "speed"]
    parts.append(terminal.render_rows("run", facts))
    parts.append("\n".join(found.notes))
    if found.diagnosis is not None:
        parts.append(terminal.render_diagnosis(found.diagnosis))
    rows = settings_rows(found.settings)
    chosen = [row for row in rows if row[2] != "default"]
    if rows:
        parts.append(terminal.render_settings(chosen, num_defaults=len(rows) - len(chosen)))
    return "\n\n".join(part for part in parts if part)


def page_of(found: Found) -> Page:
    """The same, as a `report.html.Page`."""
    from hotloop.report.html import Page
    from hotloop.report.words import answer

    records = found.measurement.records if found.measurement else ()
    curves = {"training loss": [(r.step, r.loss) for r in records if r.loss is not None]}
    if found.evals:
        curves["held-out loss"] = [(e["step"], e["loss"]) for e in found.evals]
    name = found.settings.config.name if found.settings else found.directory.name
    return Page(
        title=f"hotloop: {name}",
        answer=answer(found.verdict) if found.verdict else "",
        verdict=found.verdict,
        diagnosis=found.diagnosis,
        loss_curves=curves,
        facts=facts_of(found),
        settings=settings_rows(found.settings),
        environment=found.environment,
        notes=found.notes,
    )


def object_of(found: Found) -> dict[str, Any]:
    """Everything that was found, as one object."""
    from hotloop.core.files import to_plain

    def plain(value: Any) -> Any:
        return None if value is None else to_plain(value)

    return {
        "schema": "hotloop.report/1",
        "run": str(found.directory),
        "notes": list(found.notes),
        "verdict": plain(found.verdict),
        "diagnosis": plain(found.diagnosis),
        "utilization": plain(found.utilization),
        "quickstart": found.quickstart,
        "evals": list(found.evals),
        "settings": {
            key: {"value": found.settings.config.flat()[key], "origin": origin}
            for key, _, origin in settings_rows(found.settings)
        }
        if found.settings
        else None,
        "environment": plain(found.environment),
        "measurement": plain(found.measurement),
    }
