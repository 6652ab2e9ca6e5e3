"""`hotloop prepare`: text into checksummed token shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from hotloop.cli.output import json_option, tell_json, write_object
from hotloop.cli.progress import progress_bar
from hotloop.core.data_config import ReadingConfig
from hotloop.core.errors import UsageError
from hotloop.core.files import to_plain
from hotloop.data.cluster import parse_request
from hotloop.data.execute import EncodingSummary
from hotloop.data.manifest import Manifest
from hotloop.data.piece_index import layout_lines
from hotloop.data.prepare import Preparation, prepare_text
from hotloop.data.prepared import open_prepared, verify_prepared
from hotloop.data.sources import ReadOptions
from hotloop.data.spec import Spec

F = TypeVar("F", bound=Callable[..., Any])

_METAVARS = {
    "text_field": "NAME",
    "separator": "STRING",
    "delimiter": "CHARACTER",
    "include": "PATTERN",
    "exclude": "PATTERN",
}
_RANGES = {"min_chars": click.IntRange(min=0), "max_chars": click.IntRange(min=1)}


def read_options(command: F) -> F:
    """Add the options; the command passes them on to `options_of`."""
    for name, field in reversed(ReadingConfig.model_fields.items()):
        command = _option(name, field)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[F], F]:
    default = field.get_default(call_default_factory=True)
    hints = (field.annotation, *get_args(field.annotation))
    choices = [each for hint in hints if get_origin(hint) is Literal for each in get_args(hint)]
    return click.option(
        f"--{name.replace('_', '-')}",
        type=click.Choice(choices) if choices else _RANGES.get(name),
        default=default or None,
        show_default=isinstance(default, str),
        is_flag=isinstance(default, bool),
        multiple=isinstance(default, list),
        metavar=_METAVARS.get(name),
        help=" ".join((field.description or "").replace("`", "").split()),
    )


def options_of(values: dict[str, Any]) -> ReadOptions:
    """`ReadOptions` from the keywords that a decorated command gets. Raises `UsageError`."""
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None
    }
    try:
        return ReadOptions.of(ReadingConfig.model_validate(given))
    except ValidationError as error:
        first = error.errors()[0]
        option = "".join(f"--{part}: ".replace("_", "-") for part in first["loc"][:1])
        raise UsageError(option + first["msg"].removeprefix("Value error, ")) from error


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@click.option("--out", type=click.Path(path_type=Path), help="Directory to write.")
@click.option(
    "--tokenizer",
    metavar="SPEC",
    help="train:N (a new one of N ids), bytes, a tokenizer.json, a name on the Hugging Face hub, "
    "tiktoken:NAME, or a sentencepiece model (a .model file).",
)
@click.option(
    "--end-of-text",
    metavar="NAME",
    help="Token that ends every document, where the tokenizer has none of the usual names.",
)
@click.option(
    "--validation-fraction",
    type=float,
    default=0.01,
    show_default=True,
    help="Fraction of the documents held out for evaluation.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the split and of the text a tokenizer is trained on.",
)
@read_options
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="CPUs to use. The result does not depend on it. [default: all]",
)
@click.option(
    "--engine",
    metavar="NAME",
    default="auto",
    show_default=True,
    help="reference, gigatoken, or auto: the faster of them. The ids do not depend on it.",
)
@click.option(
    "--on",
    metavar="KIND:RANKS",
    help="local:N, ray:N or slurm:N: share the work by datatrove's executors, over all machines that "
    "share the storage. The result does not depend on it.",
)
@click.option(
    "--on-option",
    "on_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of that executor, as partition=cpu, time=4:00:00 or cpus_per_task=8.",
)
@click.option("--force", is_flag=True, help="Replace another preparation in the directory.")
@click.option(
    "--verify",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Read every byte of a prepared directory and say whether it is what was written.",
)
@json_option("Write it as JSON; `-` for stdout.")
def prepare(
    sources: tuple[str, ...],
    out: Path | None,
    tokenizer: str | None,
    end_of_text: str | None,
    validation_fraction: float,
    seed: int,
    workers: int | None,
    engine: str,
    on: str | None,
    on_options: tuple[str, ...],
    force: bool,
    verify: Path | None,
    json_file: str | None,
    **reading: Any,
) -> None:
    """Turn text into checksummed token shards that training reads.

    SOURCE is a file or a directory (text, JSON lines, csv, parquet, Arrow, compressed or not), a quoted
    glob, - for standard input, a URL, hf:NAME:CONFIG:SPLIT for a data set on the Hugging Face hub, or
    python-stdlib, the sources of the running interpreter's standard library. Killed or interrupted,
    the same command goes on where it was; where sources have changed, only they are read again.
    """
    if verify is not None:
        if sources or out is not None:
            raise UsageError("--verify reads a directory and writes none", do="give only the DIR")
        _verify(verify, json_file)
        return
    for name, value in (("SOURCE", sources), ("--out", out), ("--tokenizer", tokenizer)):
        if not value:
            raise UsageError(f"no {name} given", do="`hotloop prepare --help` says what it takes")
    assert out is not None
    assert tokenizer is not None
    if on_options and on is None:
        raise UsageError("--on-option has no effect without --on", do="give --on KIND:RANKS")
    spec = Spec(sources, tokenizer, end_of_text, options_of(reading), validation_fraction, seed)
    with progress_bar() as progress:
        done = prepare_text(
            spec,
            out,
            workers=workers,
            engine=engine,
            on=None if on is None else parse_request(on, on_options),
            force=force,
            progress=progress,
        )
    manifest = done.manifest
    if json_file is not None:
        encoding = done.encoding
        found = {
            "out": str(out),
            "outcome": done.outcome,
            "wall_s": done.wall_s,
            "encoding": to_plain(encoding),
            "bytes_per_s": None if encoding is None else encoding.bytes / encoding.wall_s,
            "manifest": to_plain(manifest),
        }
        write_object(found, json_file)
    if json_file != "-":
        _say(done, out, on)


def _verify(directory: Path, json_file: str | None) -> None:
    with progress_bar() as progress:
        found = verify_prepared(directory, progress=progress)
    if tell_json({"out": str(directory), **to_plain(found)}, json_file):
        click.echo(
            f"{'damaged' if found.damaged else 'whole'}: {found.files} files, "
            f"{found.bytes / 1e6:,.1f} MB, {found.tokens:,} tokens of {found.documents:,} documents"
        )
        for line in found.damaged:
            click.echo(f"  damaged    {line}")
        click.echo("  not looked at: the sources (running the same prepare again does)")
    if found.damaged:
        raise UsageError(
            f"{len(found.damaged)} of {found.files} files are damaged",
            where=str(directory),
            do="write it again with `hotloop prepare ... --force`",
        )


def _say(done: Preparation, out: Path, on: str | None) -> None:
    manifest = done.manifest
    if done.outcome == "up_to_date":
        click.echo(
            f"up to date: {manifest.tokens:,} tokens of {manifest.documents:,} documents "
            "already there, nothing written"
        )
    else:
        click.echo(
            f"{manifest.tokens:,} tokens of {manifest.documents:,} documents in {done.wall_s:.1f} s "
            f"({manifest.source_bytes / manifest.tokens:.2f} bytes per token)"
        )
    if done.encoding is not None:
        _say_encoding(done.encoding, len(manifest.jobs))
        if on is not None and done.encoding.on is None:
            click.echo(f"  ranks      none were started for {on}: too little to share")
    click.echo(f"  at         {out}")
    click.echo(f"  training   {manifest.train.tokens:,} tokens")
    click.echo(
        f"  held out   {manifest.validation.tokens:,} tokens, "
        f"{manifest.validation.documents:,} documents"
    )
    click.echo(
        f"  tokenizer  {manifest.tokenizer}, {manifest.vocabulary_size:,} ids, "
        f"fingerprint {manifest.tokenizer_fingerprint[:12]}"
    )
    _say_left_out(manifest)
    for number, line in enumerate(layout_lines(open_prepared(out, verify="size").train)):
        click.echo(f"  {'' if number else 'rows':<10} {line}")


def _say_encoding(encoding: EncodingSummary, num_jobs: int) -> None:
    kept = num_jobs - encoding.jobs
    of = (
        "processes x threads"
        if encoding.on is None
        else f"ranks x CPUs, {encoding.on}, with their start"
    )
    click.echo(
        f"  encoded    {encoding.bytes / 1e6:,.1f} MB at "
        f"{encoding.bytes / 1e6 / encoding.wall_s:.1f} MB/s"
        f" by {encoding.processes} x {encoding.threads} ({of})"
        + (f"; {kept} of {num_jobs} jobs were there already" if kept > 0 else "")
    )
    routing = encoding.routing
    if routing is None:
        click.echo(f"  engine     {encoding.engine}")
        return
    click.echo(
        f"  engine     {routing.engine}: {routing.why} "
        f"({routing.sample_bytes / 1e6:.1f} MB of the text compared)"
    )
    for tried in routing.tried:
        measured = tried.bytes_per_cpu_s
        speed = f"{measured / 1e6:.1f} MB per CPU second" if measured is not None else ""
        said = ", ".join(
            part for part in ("same ids" if tried.identical else tried.why, speed) if part
        )
        click.echo(f"             {tried.engine:<10} {said}")


def _say_left_out(manifest: Manifest) -> None:
    for source in manifest.sources:
        for reason, count in source.skipped.items():
            click.echo(f"  skipped    {count} of {source.source}: {reason}")
            for example in source.skipped_examples.get(reason, ())[:3]:
                click.echo(f"               {example}")
        for reason, count in source.altered.items():
            click.echo(f"  altered    {count} of {source.source}: {reason}")
