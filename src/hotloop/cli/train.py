"""`hotloop train CONFIG [key=value ...]`"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from hotloop.core.config import known_keys


def _list_keys(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        for key, description in known_keys().items():
            click.echo(f"{key:28} {description.splitlines()[0] if description else ''}".rstrip())
        ctx.exit()


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [default: runs/NAME].")
@click.option(
    "--stop-after",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only measure: end after N steps, without evaluating or saving.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the outcome here; `-` for stdout.")
@click.option(
    "--keys",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_keys,
    help="List every key.",
)
def train(
    config: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    stop_after: int | None,
    json_file: str | None,
) -> None:
    """Train a model from a CONFIG file; KEY=VALUE changes a setting.

    Ctrl-C saves. The same command again continues where it stopped.
    """
    from hotloop.cli.output import write_object
    from hotloop.cli.progress import progress_bar
    from hotloop.core.settings import load_settings
    from hotloop.report.numbers import rate
    from hotloop.train.start import start

    settings = load_settings(config, overrides)
    directory = out or Path("runs") / settings.config.name
    with progress_bar() as progress:
        outcome = start(settings, directory, stop_after=stop_after, progress=progress, warn=_warn)
    if json_file is not None:
        write_object(asdict(outcome), json_file)
    if json_file == "-":
        return
    click.echo(
        f"{outcome.steps} steps, loss {_loss(outcome.loss)}{_held_out(outcome.held_out_loss)}"
    )
    if outcome.tokens_per_s is not None:
        click.echo(f"{rate(outcome.tokens_per_s, 'tokens')} in steady state")
    click.echo(
        f"{directory}: `hotloop report {shlex.quote(str(directory))}` shows where the time went"
    )


def _warn(message: str) -> None:
    click.echo(f"note: {message}", err=True)


def _loss(loss: float | None) -> str:
    return "not known" if loss is None else f"{loss:.4f}"


def _held_out(loss: float | None) -> str:
    return "" if loss is None else f", on held-out text {loss:.4f}"
