"""`hotloop predict MODEL FILE`"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from hotloop.cli.output import note
from hotloop.core.errors import Interrupted, UsageError

CSV = {".csv": ",", ".tsv": "\t"}
Rows = list[dict[str, Any]]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--text", "texts", multiple=True, help="A text in place of FILE; may be given several times.")  # fmt: skip
@click.option("--column", default="text", show_default=True, help="Column (or key) of the texts.")
@click.option("--delimiter", help="What stands between the columns of FILE; else a comma, or a tab in .tsv.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, allow_dash=True), help="Write here, as csv or tsv by its name, else as jsonl. [default: stdout]")  # fmt: skip
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
def predict(
    model: Path,
    file: Path | None,
    texts: tuple[str, ...],
    column: str,
    delimiter: str | None,
    out: Path | None,
    device: str,
) -> None:
    """Label the texts of FILE (csv, tsv, jsonl, or a text a line; `-`: stdin) with a fine-tuned MODEL, a directory or a run.

    A row of FILE gives a row with all it has, and a label with probabilities, labels, a number, or entities with their place.
    """
    if (file is None) == (not texts):
        raise UsageError("the texts come from FILE or from --text", do="give one of them")
    if out is not None and str(out) != "-" and not out.absolute().parent.is_dir():
        raise UsageError("no such directory", where=str(out.parent), do="make it, or choose another file for --out")  # fmt: skip
    if texts:
        rows: Rows = [{"text": each} for each in texts]
        column = "text"
    else:
        assert file is not None
        rows, column = _read(file, column, delimiter)
    if not rows:
        raise UsageError("no texts", where=str(file))
    from hotloop.cli.progress import progress_bar
    from hotloop.finetune.predict import answer_columns, load_predictors
    from hotloop.finetune.predict import predict as answers_of
    from hotloop.hardware.device import pick_device

    predictors = load_predictors(model.expanduser(), pick_device(device, asked_by="--device"), note)
    own = [_as_text(row.get(column)) for row in rows]
    if num_empty := sum(not each.strip() for each in own):
        note(f"{num_empty} rows have no text, and get no answer")
    done = 0
    try:
        with _opened(out) as stream, progress_bar() as progress:
            names = list(dict.fromkeys([*rows[0], *answer_columns(predictors)]))
            write = _writer(stream, out, names)
            for answers in answers_of(predictors, own, progress=progress, warn=note):
                write([row | each for row, each in zip(rows[done:], answers, strict=False)])
                done += len(answers)
        if out is not None and str(out) != "-":
            note(f"{done} {'row' if done == 1 else 'rows'} in {out}")
    except KeyboardInterrupt:
        where = None if out is None or str(out) == "-" else str(_partial(out))
        raise Interrupted(
            f"interrupted: {done} of {len(rows)} rows are written",
            where=where,
            do="the same command starts over",
        ) from None


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def _read(file: Path, column: str, delimiter: str | None) -> tuple[Rows, str]:
    """Rows, and the column of the texts."""
    from hotloop.finetune.tables import TextFile, read_text_file, table_rows
    from hotloop.finetune.tagged import is_tagged, tagged_columns

    if str(file) == "-":
        found = TextFile(Path("stdin.txt"), sys.stdin.read(), "")
    else:
        found = read_text_file(file)
    if found.path.suffix not in CSV and is_tagged(found):
        texts = [(" ".join(words), tags) for _, words, tags, _ in tagged_columns(found)]
        return [{"text": text, "tags": list(tags)} for text, tags in texts], "text"
    if not found.is_json and found.path.suffix not in CSV:
        return [{"text": line} for line in found.text.splitlines()], "text"
    columns = {"--column": column}
    rows = table_rows(found, delimiter=delimiter, columns=columns)
    # a csv row of too many columns has them under None
    return [{name: row[name] for name in row if name is not None} for _, row in rows], column


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")


@contextmanager
def _opened(out: Path | None) -> Iterator[IO[str]]:
    """A file gets its name when it is whole."""
    if out is None or str(out) == "-":
        yield sys.stdout
        return
    with _partial(out).open("w", newline="", encoding="utf-8") as stream:
        yield stream
    os.replace(_partial(out), out)


def _writer(stream: IO[str], out: Path | None, names: list[str]) -> Callable[[Rows], None]:
    delimiter = CSV.get(out.suffix) if out is not None else None
    table: csv.DictWriter[str] | None = None
    if delimiter is not None:
        table = csv.DictWriter(stream, names, delimiter=delimiter, extrasaction="ignore")
        table.writeheader()

    def write(rows: Rows) -> None:
        if table is not None:
            table.writerows(map(_in_columns, rows))
        for row in rows if table is None else ():
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        stream.flush()

    return write


def _in_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Labels with `|` between them, and entities as JSON."""
    own = dict(row)
    for name, value in row.items():
        if name == "predicted" and isinstance(value, list):
            own[name] = "|".join(value)
        elif isinstance(value, list | dict):
            own[name] = json.dumps(value, ensure_ascii=False)
    return own
