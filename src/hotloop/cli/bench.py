"""`hotloop bench loader`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotloop.cli.output import json_option, write_object

if TYPE_CHECKING:
    from hotloop.bench.loader import LoaderBenchmark


@click.group(epilog="`hotloop bench NAME --help` says what each one takes.")
def bench() -> None:
    """Measure parts of hotloop against what people use today, side by side in one run."""


@bench.command()
@click.argument("data", default="python-stdlib", metavar="[DATA]")
@click.option("--tokenizer", help="Where DATA is a source. [default: bytes]")
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--context", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option("--rounds", type=click.IntRange(min=3), default=10, show_default=True)
@json_option("Write it as JSON; `-` for stdout.")
def loader(
    data: str, tokenizer: str | None, batch: int, context: int, rounds: int, json_file: str | None
) -> None:
    """Read batches of the same ids with hotloop's loader and with torch's DataLoader, in turns.

    DATA is a prepared directory, or a source that is prepared into the cache first.
    """
    import torch

    from hotloop.bench.loader import bench_loader
    from hotloop.cli.progress import progress_bar
    from hotloop.core.errors import UsageError
    from hotloop.core.files import to_plain
    from hotloop.data.prepare import ensure_prepared
    from hotloop.data.prepared import open_prepared
    from hotloop.data.spec import Spec
    from hotloop.hardware.device import read_environment

    torch.set_num_threads(1)  # copies of this size are one core's work
    with progress_bar() as progress:
        path = Path(data)
        if not (path / "manifest.json").exists():
            path = ensure_prepared(Spec((data,), tokenizer or "bytes"), progress=progress)
        elif tokenizer is not None:
            raise UsageError(
                "--tokenizer has no effect: DATA is prepared already", where=data, do="leave it out"
            )
        # The whole corpus is read once: what follows is measured from a warm map.
        found = bench_loader(
            open_prepared(path, verify="checksum"),
            batch=batch,
            context=context,
            rounds=rounds,
            progress=progress,
        )
    if json_file is not None:
        write_object(
            {**to_plain(found), "environment": to_plain(read_environment("cpu"))}, json_file
        )
    if json_file != "-":
        _say_loader(found)


def _say_loader(found: LoaderBenchmark) -> None:
    tokens = found.batch * found.context
    ours = found.tokens_per_s["hotloop"]
    rows = [("", "M tokens/s", "slowest to fastest round", "first batch", "ours is")]
    for each in found.contestants:
        speeds = [each.batches_per_round * tokens / s / 1e6 for s in each.seconds]
        median = found.tokens_per_s[each.name]
        rows.append(
            (
                each.name,
                f"{median / 1e6:.1f}",
                f"{min(speeds):.1f} to {max(speeds):.1f}",
                f"{each.first_batch_s * 1e3:.0f} ms",
                "" if each.name == "hotloop" else f"{ours / median:.1f}x",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    click.echo(
        f"batches of {found.batch} x {found.context} from {found.tokens_in_corpus:,} tokens, "
        f"{found.rounds} rounds in turns"
    )
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]
        click.echo("  ".join(cells).rstrip())
    if not found.same_ids:
        click.echo("the two read DIFFERENT ids")
