"""`hotloop checkpoints list | verify | show | prune | export RUN`"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import click

from hotloop.cli.output import json_option, note, printable, tell_json
from hotloop.core.errors import EnvironmentFailed, ExitCode, UsageError

RUN = click.argument("run", type=click.Path(path_type=Path))


@click.group()
def checkpoints() -> None:
    """List, verify, show, delete and export the checkpoints of a run of `hotloop train`."""


@checkpoints.command("list")
@click.argument("run", metavar="RUN|URL")
@json_option("Write it as JSON; `-` for stdout.")
def list_them(run: str, json_file: str | None) -> None:
    """What there is, here and at `checkpoint.upload`; files are compared by size, and `verify` hashes them.

    RUN is a run directory, URL where a run uploads: `checkpoint.upload` and the run's `name`.
    """
    _tell(_rows(run, hashes=False), json_file)


@checkpoints.command()
@click.argument("run", metavar="RUN|URL")
@json_option("Write it as JSON; `-` for stdout.")
def verify(run: str, json_file: str | None) -> None:
    """Hash every file again, of a run directory or of what was uploaded to URL. Exit code 1: one is damaged."""
    rows = _rows(run, hashes=True)
    _tell(rows, json_file)
    if any(row["state"] == "damaged" for row in rows):
        raise click.exceptions.Exit(ExitCode.FOUND)


@checkpoints.command()
@RUN
@click.argument("step", type=click.IntRange(min=0))
@json_option("Write it as JSON; `-` for stdout.")
def show(run: Path, step: int, json_file: str | None) -> None:
    """What the checkpoint of STEP holds: tensors, random states, versions."""
    import safetensors

    from hotloop.checkpoint import store
    from hotloop.core.untrusted import parse_object, read_bytes

    found = store.of_step(_root(run), step)
    tensors = []
    for file in sorted(name for name in found.files if name.endswith(".safetensors")):
        try:
            with safetensors.safe_open(found.path / file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    part = opened.get_slice(name)
                    tensors.append({"file": file, "name": name, "dtype": part.get_dtype(), "shape": part.get_shape()})  # fmt: skip
        except safetensors.SafetensorError as error:
            raise store.foreign(found, f"{file}: {error}") from error
    state = parse_object(read_bytes(found.path / "state.json"), finite=False)
    manifest = store.entry(found.path).manifest
    assert manifest is not None
    answer = {
        "schema": "hotloop.checkpoints.show/1",
        "path": str(found.path),
        "step": step,
        "versions": manifest.versions,
        "files": {name: file.bytes for name, file in manifest.files.items()},
        "random_states": ["python", *(f"{t['file']}: {t['name']}" for t in tensors if t["file"].startswith("random"))],
        "processes": state.get("num_ranks", 1),
        "state": sorted(state),
        "tensors": tensors,
    }  # fmt: skip
    if tell_json(answer, json_file):
        versions = ", ".join(f"{k} {v}" for k, v in manifest.versions.items()) or "not known"
        by = f"step {step}, by {versions}, {answer['processes']} process(es)\n  at {found.path}"
        click.echo(printable(by))
        for name, size in answer["files"].items():
            click.echo(f"{name}  {size:,} bytes")
            for each in tensors:
                if each["file"] == name:
                    line = f"  {each['name']:44} {each['dtype']:5} {each['shape']}"
                    click.echo(printable(line))
        click.echo(printable(f"state.json has {', '.join(sorted(state))}"))


@checkpoints.command()
@RUN
@click.option(
    "--keep", type=click.IntRange(min=2), help="Newest kept. [default: as the run has it]"
)
@click.option("--yes", is_flag=True, help="Delete; without it, only say what would go.")
def prune(run: Path, keep: int | None, yes: bool) -> None:
    """Delete what the run's rules do not keep, what is half-written, and what was set aside.

    The newest one that verifies always stays. What was uploaded is left to the run itself.
    """
    import time

    from hotloop.checkpoint import store
    from hotloop.checkpoint.entries import held_out_losses, retired
    from hotloop.core.file_locks import locked
    from hotloop.core.settings import load_stored
    from hotloop.core.untrusted import parse_object, read_bytes

    root = _root(run)
    config = load_stored(run / "config.yaml").config
    rules, metric = config.checkpoint, getattr(config.eval, "metric", "loss")
    rules = rules.model_copy(update={"keep": keep}) if keep else rules
    with locked(run):
        there = store.entries(root, hashes=True)
        whole = [each for each in there if each.state == "whole"]
        if not whole:
            raise UsageError("no checkpoint here verifies: nothing is deleted", where=str(root))
        newest = whole[-1]
        state = parse_object(read_bytes(root / newest.name / "state.json"), finite=False)
        skipped = (state.get("stability") or {}).get("skipped_in_a_row")
        good_until = newest.step - skipped if isinstance(skipped, int) and skipped else None
        losses, now = held_out_losses(run / "evals.jsonl", metric), time.time()
        going = retired(whole, rules, newest=newest.name, now=now, losses=losses, good_until=good_until)  # fmt: skip
        going += [e for e in there if e.state != "whole" and (e.state != "damaged" or e.step < newest.step)]  # fmt: skip
        for each in going:
            click.echo(f"{'deleted' if yes else 'would delete'} {each.name} ({each.problem or 'older than what is kept'})")  # fmt: skip
            if yes:
                store.remove(root / each.name)
    if not yes:
        click.echo(f"{len(going)} to delete: --yes does it" if going else "nothing to delete")


@checkpoints.command()
@RUN
@click.argument("step", type=click.IntRange(min=0))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new directory, or a new file that ends in .safetensors.")  # fmt: skip
@click.option("--weights", type=click.Choice(["averaged", "last"]), help="As for `hotloop export`.")
@click.pass_context
def export(
    ctx: click.Context, run: Path, step: int, out: Path, weights: Literal["averaged", "last"] | None
) -> None:
    """Write the weights of STEP as one safetensors file, or as `hotloop export` does."""
    from hotloop.cli.export import export as export_model

    if out.suffix != ".safetensors":
        ctx.invoke(export_model, run=run, out=out, step=step, weights=weights, verify=None, json_file=None)  # fmt: skip
        return
    import safetensors.torch

    from hotloop.core.files import write_atomically
    from hotloop.train.trained import load_trained

    if out.exists():
        raise UsageError("it is there already", where=str(out), do="choose a new file")
    trained = load_trained(run, "cpu", weights=weights, step=step)
    tensors = {name: p.detach().contiguous() for name, p in trained.model.named_parameters()}
    write_atomically(out, safetensors.torch.save(tensors, {"format": "pt", "step": str(step)}))
    click.echo(f"wrote {len(tensors)} tensors of step {step} ({trained.weights} weights) to {out}")


def _root(run: Path) -> Path:
    if not (run / "checkpoints").is_dir():
        raise UsageError("no run directory: it has no checkpoints", where=str(run), do="give what `hotloop train --out` was given")  # fmt: skip
    return run / "checkpoints"


def _rows(run: str, *, hashes: bool) -> list[dict[str, Any]]:
    """A row per checkpoint, oldest first. What is here and there is one row."""
    from hotloop.checkpoint import store
    from hotloop.checkpoint.entries import held_out_losses
    from hotloop.checkpoint.remote import Remote
    from hotloop.core.settings import load_stored

    here, losses, url = [], {}, run
    if "://" not in run:
        here = store.entries(_root(Path(run)), hashes=hashes)
        losses = held_out_losses(Path(run) / "evals.jsonl")
        config = load_stored(Path(run) / "config.yaml").config
        base = None if hashes else config.checkpoint.upload  # to verify it is to download it
        url = f"{base.rstrip('/')}/{config.name}" if base else ""
    rows = [(each, ["local"], each.problem) for each in here]
    try:
        remote = Remote(url) if url else None
        for each in remote.entries() if remote is not None else ():
            same = [where for mine, where, _ in rows if mine.content == each.content and each.files]
            if each.state == "whole" and same:
                same[0].append("remote")
                continue
            bad = (
                remote.check(each) if hashes and remote and each.state == "whole" else each.problem
            )
            rows.append((each, ["remote"], bad))
    except EnvironmentFailed as error:
        if not here:
            raise
        note(f"what was uploaded is not listed: {error}")
    return [
        {
            "name": each.name,
            "step": each.step,
            "bytes": each.size_bytes,
            "saved_at": each.saved_at,
            "held_out_loss": losses.get(each.step),
            "where": where,
            "state": "damaged" if problem and each.state == "whole" else each.state,
            "problem": problem,
        }
        for each, where, problem in sorted(rows, key=lambda row: (row[0].step, row[0].name))
    ]


def _tell(rows: list[dict[str, Any]], json_file: str | None) -> None:
    if not tell_json({"schema": "hotloop.checkpoints/1", "checkpoints": rows}, json_file):
        return
    for row in rows:
        when = row["saved_at"] and datetime.fromtimestamp(row["saved_at"]).isoformat(" ", "seconds")
        loss = "" if row["held_out_loss"] is None else f"{row['held_out_loss']:.4f}"
        line = (
            f"{row['step']:>9}  {row['bytes'] / 1e6:>10,.1f} MB  {when or '':19}  {loss:>8}  "
            f"{' + '.join(row['where']):14}  {row['state']}" + (f": {row['problem']}" if row["problem"] else "")
        )  # fmt: skip
        click.echo(printable(line))
    if not rows:
        click.echo("no checkpoint yet")
