"""`hotloop bench loader`, `hotloop bench effectiveness`"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotloop.cli.doctor import Budget, Options, network_option
from hotloop.cli.output import json_option, note, refuse_unwritable, show, write_object
from hotloop.cli.tune import AfterConfig, Asked, is_config
from hotloop.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from hotloop.bench.loader import LoaderBenchmark
    from hotloop.core.connections import Network


@click.group(epilog="`hotloop bench NAME --help` says what each one takes.")
def bench() -> None:
    """Measure what each optimization brings, and parts of hotloop against what people use today, side by side in one run."""


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


LOOKS = ("4", "6", "10")


class _OneOfBoth(AfterConfig):
    """Refuses a CONFIG before a COMMAND."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else []
        if config := next(filter(is_config, before), None):
            do = "leave out the config, or `--` and the command after it"
            raise UsageError(f"a config, {config}, and a command were given", do=do)
        return super().parse_args(ctx, args)


@bench.command(cls=_OneOfBoth)
@click.option("--only", multiple=True, metavar="NAME[=VALUE]", help="Measure this technique or setting; may be given again.")  # fmt: skip
@click.option("--pairs", type=click.Choice(LOOKS), help="Pairs of each at most; it ends earlier where fewer decide [default: 10].")  # fmt: skip
@click.option("--budget", type=Budget(), metavar="TIME", default="20m", show_default=True, help="For all of it.")  # fmt: skip
@network_option
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [default: runs/effectiveness-NAME, which goes on].")  # fmt: skip
@click.option("--markdown", metavar="FILE", help="Write the table, with machine, versions, command and date, to this file.")  # fmt: skip
@json_option("Write the same as JSON.")
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="CONFIG [KEY=VALUE]... | -- COMMAND..."
)
def effectiveness(
    command: tuple[str, ...],
    only: tuple[str, ...],
    pairs: str | None,
    budget: float,
    network: Network | None,
    out: Path | None,
    markdown: str | None,
    json_file: str | None,
) -> None:
    """Measure each optimization alone, and the whole, against the start: a table of what helps here, and what does not.

    CONFIG is one of `hotloop train`. Each single setting that `hotloop tune` tries is measured alone on it, and all that
    `auto` chooses as one; KEY=VALUE stays as it is. Of a COMMAND of your own, each fix that can be put into it is, alone,
    asked for by a finding or not, and then what the doctor keeps together.

    In interleaved pairs of fresh processes, or toggled within each, as `hotloop doctor` does. What the budget leaves out is
    named with the command that goes on with it; interrupted, the same command goes on.
    """
    began_at = time.monotonic()
    if not command:
        do = "name a config of `hotloop train`, or write a command after `--`: ... -- python train.py"
        raise UsageError("nothing to measure was given", do=do)
    for option, file in (("--json", json_file), ("--markdown", markdown)):
        if file == "-":
            do = "name a file"
            raise UsageError(f"`{option} -` would mix with what the command prints", do=do)
    refuse_unwritable(markdown, made=out, option="--markdown")
    asked = _of_config(command, only, out) if is_config(command[0]) else _of_command(command, only, out)  # fmt: skip
    from hotloop.bench import effectiveness as program
    from hotloop.cli.trial_view import trial_view
    from hotloop.core.connections import NO_NETWORK
    from hotloop.core.files import to_plain, write_atomically
    from hotloop.doctor.trial_costs import budget_text
    from hotloop.report.effectiveness import effectiveness_markdown, effectiveness_table

    examined, _ = asked.examined(budget, network)
    words = [word for name in only for word in ("--only", name)]
    words += Options(network=network).of_trials()
    words += ["--out", str(out)] if out is not None else []
    files = Options(json_file=json_file).of_trials()
    files += ["--markdown", markdown] if markdown is not None else []

    def again(budget: str, more: Sequence[str] = tuple(files)) -> str:
        return examined.run.again([*asked.begins, *words, *more, "--budget", budget, *asked.ends])

    budget_s = Options(budget=budget, began_at=began_at).trials_s()
    with trial_view(budget_s) as view:
        ledger, not_here = program.measured(
            *(examined, asked.rounds, only, again),
            work=asked.work,
            budget_s=budget_s,
            most_pairs=None if pairs is None else int(pairs),
            network=network or NO_NETWORK,
            show=view.show,
            warn=lambda text: view.say(f"hotloop: {text}"),
        )
    given = "none" if math.isinf(budget) else budget_text(budget)
    made_with = again(given, ["--pairs", pairs] if pairs else [])
    found = program.effectiveness(examined, ledger, not_here, made_with=made_with)
    show(f"\n{effectiveness_table(found)}", err=True)
    if markdown is not None:
        write_atomically(Path(markdown).resolve(), effectiveness_markdown(found).encode())
    if json_file is not None:
        write_object({"run": str(examined.directory), **to_plain(found)}, json_file)
    if not any(each.verdict or each.status == "failed" for each in ledger.fixes):
        raise click.exceptions.Exit(ExitCode.INCONCLUSIVE)


BEGINS = ("hotloop", "bench", "effectiveness")
KIND = "effectiveness"


def _of_command(command: tuple[str, ...], only: tuple[str, ...], out: Path | None) -> Asked:
    from hotloop.doctor.command import script_name
    from hotloop.doctor.fixes import asked_for
    from hotloop.tune.program import run_directory

    asked_for(only)
    directory = out or run_directory(command, script_name(command), note, KIND)
    return Asked(command, directory, [], directory, BEGINS, ends=["--", *command])


def _of_config(words: tuple[str, ...], only: tuple[str, ...], out: Path | None) -> Asked:
    from hotloop.bench.effectiveness import chosen_options
    from hotloop.cli.tune_config import prepare_data, prepare_examples, settings_of
    from hotloop.tune import settings as tuning
    from hotloop.tune.program import run_directory

    config, overrides = Path(words[0]), words[1:]
    settings = settings_of(config, overrides)
    whole, single = tuning.options_for(settings, [], only=only)
    rounds = chosen_options(whole, tuning.alone(single, config, overrides), only)
    written = Path("runs") / f".{KIND}-{settings.config.name}"
    command = tuning.command_of(config, overrides, written)
    directory = out or run_directory(command, settings.config.name, note, KIND)
    begins = [*BEGINS, *words]
    prepare_data(settings)
    prepare = partial(prepare_examples, settings, directory)
    return Asked(
        command, directory, rounds, directory, begins,
        work=partial(tuning.with_tokens, settings=settings), written=written, prepare=prepare,
    )  # fmt: skip
