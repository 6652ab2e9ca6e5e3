"""`hotloop prepare`: text into checksummed token shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hotloop.data.prepare import Preparation


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory to write.")
@click.option(
    "--tokenizer",
    required=True,
    metavar="SPEC",
    help="train:N (a new one of N ids), a tokenizer.json, a name on the Hugging Face hub, or bytes.",
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
@click.option(
    "--text-field", default="text", show_default=True, help="Field of .jsonl lines to read."
)
@click.option("--force", is_flag=True, help="Replace another preparation in the directory.")
@click.option("--json", "json_file", metavar="FILE", help="Write it as JSON; `-` for stdout.")
def prepare(
    sources: tuple[str, ...],
    out: Path,
    tokenizer: str,
    validation_fraction: float,
    seed: int,
    text_field: str,
    force: bool,
    json_file: str | None,
) -> None:
    """Turn text into checksummed token shards that training reads.

    SOURCE is a text file, a directory, a .jsonl file, or python-stdlib, the sources of the running
    interpreter's standard library. Text must be UTF-8.
    """
    from hotloop.cli.output import write_object
    from hotloop.cli.progress import progress_bar
    from hotloop.core.files import to_plain
    from hotloop.data.prepare import prepare_text

    with progress_bar() as progress:
        done = prepare_text(
            sources,
            out,
            tokenizer=tokenizer,
            validation_fraction=validation_fraction,
            seed=seed,
            text_field=text_field,
            force=force,
            progress=progress,
        )
    manifest = done.manifest
    if json_file is not None:
        found = {
            "out": str(out),
            "outcome": done.outcome,
            "wall_s": done.wall_s,
            "bytes_per_s": manifest.source_bytes / done.wall_s,
            "manifest": to_plain(manifest),
        }
        write_object(found, json_file)
    if json_file != "-":
        _say(done, out)


def _say(done: Preparation, out: Path) -> None:
    manifest = done.manifest
    if done.outcome == "up_to_date":
        click.echo(
            f"up to date: {manifest.tokens:,} tokens of {manifest.documents:,} documents "
            "already there, nothing written"
        )
    else:
        click.echo(
            f"{manifest.tokens:,} tokens of {manifest.documents:,} documents in {done.wall_s:.1f} s "
            f"({manifest.source_bytes / 1e6 / done.wall_s:.1f} MB/s, "
            f"{manifest.source_bytes / manifest.tokens:.2f} bytes per token)"
        )
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
    for source in manifest.sources:
        for reason, count in source.skipped.items():
            click.echo(f"  skipped    {count} of {source.source}: {reason}")
