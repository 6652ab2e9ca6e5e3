"""`hotloop bench tokenize` and `hotloop bench loader`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotloop.cli.main import LazyGroup
from hotloop.cli.output import json_option, write_object

if TYPE_CHECKING:
    from hotloop.bench.loader import LoaderBenchmark
    from hotloop.bench.tokenize import TokenizeBenchmark

bench = LazyGroup(
    "bench",
    module=__name__,
    commands={
        "tokenize": "Text to shards: ours against datasets.map with the reference tokenizer.",
        "loader": "Batches per second: ours against torch's DataLoader.",
    },
    help="Measure parts of hotloop against what people use today, side by side in one run.",
    epilog="`hotloop bench NAME --help` says what each one takes.",
)


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@click.option("--tokenizer", default="train:8192", show_default=True, help="As for prepare.")
@click.option("--engine", default="auto", show_default=True, help="As for prepare.")
@click.option("--cores", type=click.IntRange(min=1), help="For every contestant. [default: all]")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--map-megabytes",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="Text that datasets.map is given: the first of the corpus.",
)
@click.option(
    "--check", is_flag=True, help="Compare the ids of the whole corpus with the reference's."
)
@click.option(
    "--scratch", type=click.Path(path_type=Path, exists=True), help="Directory for what is written."
)
@json_option("Write it as JSON; `-` for stdout.")
def tokenize(
    sources: tuple[str, ...],
    tokenizer: str,
    engine: str,
    cores: int | None,
    rounds: int,
    map_megabytes: int,
    check: bool,
    scratch: Path | None,
    json_file: str | None,
) -> None:
    """Text to verified shards by hotloop, by datasets.map with the reference tokenizer, and ids by
    the engine alone, in turns.

    SOURCE as for prepare; python-stdlib if none is given.
    """
    from hotloop.bench.tokenize import bench_tokenize
    from hotloop.cli.progress import progress_bar
    from hotloop.core.files import to_plain
    from hotloop.hardware.device import read_environment

    with progress_bar() as progress:
        found = bench_tokenize(
            sources or ("python-stdlib",),
            tokenizer=tokenizer,
            engine=engine,
            cores=cores,
            rounds=rounds,
            map_megabytes=map_megabytes,
            check=check,
            scratch=scratch,
            progress=progress,
        )
    if json_file is not None:
        speeds = {each.name: each.bytes_per_s for each in found.contestants}
        environment = to_plain(read_environment("cpu"))
        write_object(
            {**to_plain(found), "bytes_per_s": speeds, "environment": environment}, json_file
        )
    if json_file != "-":
        _say_tokenize(found)


def _say_tokenize(found: TokenizeBenchmark) -> None:
    click.echo(
        f"{found.bytes / 1e6:,.1f} MB to {found.tokens:,} tokens on {found.cores} cores, "
        f"engine {found.engine}"
    )
    ours = found.contestants[0].bytes_per_s
    width = max(len(each.name) for each in found.contestants)
    click.echo(f"  {'':<{width}}      MB/s   slowest to fastest    text MB   ours is")
    for each in found.contestants:
        speeds = sorted(each.bytes / seconds / 1e6 for seconds in each.seconds)
        click.echo(
            f"  {each.name:<{width}}  {each.bytes_per_s / 1e6:8.1f}   "
            f"{speeds[0]:7.1f} to {speeds[-1]:7.1f}  {each.bytes / 1e6:9,.1f}   "
            f"{'' if each is found.contestants[0] else f'{ours / each.bytes_per_s:.2f}x'}".rstrip()
        )
    if found.identical_to_reference is None:
        click.echo("  ids against the reference: on the sample only (--check compares all)")
    else:
        same = "identical" if found.identical_to_reference else "DIFFERENT"
        assert found.reference_bytes_per_s is not None
        click.echo(
            f"  ids against the reference: {same} in every shard; ours with the reference engine: "
            f"{found.reference_bytes_per_s / 1e6:.1f} MB/s"
        )


@click.command()
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
