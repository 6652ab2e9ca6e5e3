"""`hotloop verify-resume RUN|CONFIG`, and of somebody's own command"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.cli.output import json_option, tell_json
from hotloop.core.errors import ExitCode

if TYPE_CHECKING:
    from hotloop.resume.result import Resumed


class _WithCommand(click.Command):
    """What comes after `--` is somebody's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta["command"], args = tuple(args[place + 1 :]), args[:place]
        return super().parse_args(ctx, args)


@click.command("verify-resume", cls=_WithCommand)
@click.argument("run", metavar="[RUN|CONFIG]", required=False, type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]... | -- COMMAND...")
@click.option(
    "--resume-cmd", metavar="COMMAND", help="Continues it after a kill [default: COMMAND]."
)
@click.option("--kills", type=click.IntRange(min=1), help="[default: 20; of a COMMAND 3]")
@click.option(
    *("--steps", "steps"),
    type=click.IntRange(min=4),
    help="Of the short run. [default: up to 60; of a COMMAND until it has saved three times]",
)
@click.option("--seed", default=0, show_default=True, help="Of the moments of the kills.")
@click.option(
    *("--ranks", "ranks"),
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Also continue a killed run with N processes.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where it trains [default: in runs/].")
@click.option("--keep", is_flag=True, help="Keep what was trained and compared.")
@json_option("Write what was found; `-` for stdout.")
def verify_resume(
    run: Path | None,
    json_file: str | None,
    resume_cmd: str | None,
    kills: int | None,
    **options: Any,
) -> None:
    """Prove that a run resumes exactly: train it without interruption, and again with kills.

    Takes the settings of a CONFIG file, or of a run directory, which stays untouched; trains a short run of
    its own, kills it with SIGKILL at random moments, also in the middle of saves, and runs the same command
    again each time. Then samples, losses, gradient norms, weights, optimizer and random states are compared
    bit by bit. Exits 0 when all are the same, 1 when not, 3 when the training differs without any kill, too.

    After `--` comes the COMMAND of any training that saves and can resume, e.g. -- python train.py: run in copies of
    the working directory, killed, and continued by --resume-cmd, or by itself. Where a step differs, the answer says
    what was not restored, and the line of code that does.
    """
    from hotloop.cli.output import note
    from hotloop.cli.progress import progress_bar
    from hotloop.core.files import to_plain

    command = click.get_current_context().meta.get("command", ())
    own = {name: options.pop(name) for name in ("overrides", "ranks")}
    misplaced = own != {"overrides": (), "ranks": 1} if command else resume_cmd is not None
    if bool(command) == bool(run) or misplaced:
        do = "give a RUN or CONFIG of hotloop train with its KEY=VALUE and --ranks, or --resume-cmd and -- COMMAND"
        raise click.UsageError(do)
    found: Any
    with progress_bar() as progress:
        options |= {"progress": progress, "warn": note}
        if run is None:
            from hotloop.resume.foreign import verify_command

            found = verify_command(command, resume_cmd, kills=kills or 3, **options)
        else:
            from hotloop.resume import program

            found = program.verify_resume(run, kills=kills or 20, **own, **options)
    if tell_json(to_plain(found), json_file):
        click.echo("\n".join(_lines(found)))
    other = found.other_topology
    if found.reproducible is False:
        raise click.exceptions.Exit(ExitCode.INCONCLUSIVE)
    if found.differences or (other and not (other.samples_identical and other.close is not False)):
        raise click.exceptions.Exit(ExitCode.FOUND)


def _lines(found: Resumed) -> list[str]:
    """The verdict in words."""
    from hotloop.report.numbers import counted, listed

    names = {"save": "while saving", "step": "in a step", "start": "before a first step"}
    moments = [f"{count} {names[each]}" for each, count in found.kills_by_moment.items()]
    after = f"after {counted(found.kills, 'kill')} ({listed(moments or ['none'])})"
    said = []
    if found.bit_identical:
        said = [f"Resume is exact: {after} everything that was compared is the same to the bit."]
    elif found.reproducible is False:
        said = ["Resume cannot be judged: without any kill, too, it differs from itself."]
    for each in found.differences:
        where = "final state" if each.step is None else f"step {each.step}"
        where = "" if each.what in ("start", "steps", "continuing") else f"{where}: {each.what}: "
        said.append(("  " if said else "Resume is NOT exact: ") + where + each.detail)
        said += [f"    {each.do}"] if each.do else []
    amounts = listed([f"{count:,} {what}" for what, count in found.compared.items()])
    said += [
        *(f"note: {each}" for each in found.notes),
        f"compared {after}: {amounts}, those of steps made twice included",
        f"lost: {counted(found.steps_lost_max, 'step')} per kill at most, {found.steps_lost_mean:.1f} on "
        f"average; checkpoints are {found.every_steps} apart",
    ]
    if (other := found.other_topology) is not None:
        close = {True: "close", False: "NOT CLOSE", None: "apart, as dropout makes them"}
        order = "the same samples in the same order" if other.samples_identical else "OTHER SAMPLES"
        said.append(
            f"{other.ranks} processes from step {other.from_step} on: {order}; weights "
            f"{close[other.close]} ({other.weight_difference:.1e} of the largest)"
        )
    return said + ([f"kept in {found.kept}"] if found.kept else [])
