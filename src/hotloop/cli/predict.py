"""`hotloop predict MODEL FILE`"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from hotloop.cli.output import note, refuse_unwritable
from hotloop.core.errors import Interrupted, UsageError
from hotloop.finetune.tables import TABLES, TextFile, read_text_file, suffix_of
from hotloop.report.numbers import counted

if TYPE_CHECKING:
    from hotloop.core.finetune_config import ExamplesConfig
    from hotloop.finetune.input_rows import InputRow
    from hotloop.finetune.predict import Predictor
    from hotloop.finetune.scored import Scored


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--text", "texts", multiple=True, help="A text in place of FILE; may be given several times.")  # fmt: skip
@click.option("--column", help="Column (or key) of the texts. [default: the run's `data.text`, else text]")  # fmt: skip
@click.option("--label", help="Column of the true labels, to score the answers by. [default: the run's `data.label`, else label, where it is there]")  # fmt: skip
@click.option("--delimiter", help="What stands between the columns of FILE. [default: the run's `data.delimiter`, for a file with the ending of the run's; else a comma, or a tab in .tsv]")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, allow_dash=True), help="Write here, as csv or tsv by its name, else as jsonl. [default: stdout]")  # fmt: skip
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that MODEL brings with it; it can do here whatever you can.")  # fmt: skip
def predict(
    model: Path,
    file: Path | None,
    texts: tuple[str, ...],
    column: str | None,
    label: str | None,
    delimiter: str | None,
    out: Path | None,
    device: str,
    trust_remote_code: bool,
) -> None:
    """Label the texts of FILE (csv, tsv, jsonl, or a text a line; `-`: stdin) with a fine-tuned MODEL, a directory or a run.

    A row of FILE gives a row with all it has, and a label with probabilities, labels, a number, or entities with their place.
    Where FILE has the true labels (or tags), accuracy and F1 are reported as well. Interrupted, the same command continues in --out.
    """
    if (file is None) == (not texts):
        raise UsageError("the texts come from FILE or from --text", do="give one of them")
    out = None if str(out) == "-" else out
    if out is not None and out.suffix.lower() in (".gz", ".parquet"):
        raise UsageError(f"predictions are not written as {out.suffix}", where="--out", do="name it .csv, .tsv or .jsonl")  # fmt: skip
    refuse_unwritable(None if out is None else str(out), made=None, option="--out")
    answers: list[dict[str, Any]] = []
    rows: list[InputRow] = []
    part: _Part | None = None
    try:
        options = {"text": column, "label": label, "delimiter": delimiter}
        columns, rows = _rows(model.expanduser(), file, texts, options)
        from hotloop.finetune.predict import load_predictors
        from hotloop.finetune.scored import Scored
        from hotloop.hardware.device import pick_device

        place = pick_device(device, asked_by="--device")
        predictors = load_predictors(model.expanduser(), place, note, trusted=trust_remote_code)
        if out is not None:
            models = [own.identity for own in predictors]
            part = _Part(out, [columns.text, models, [each.row for each in rows]])
        _answer(predictors, rows, answers, out, part)
    except KeyboardInterrupt:
        written = " before the first answers of this call"
        if answers:
            written = f": {len(answers):,} of {counted(len(rows), 'row')} are written"
        raise Interrupted(
            f"interrupted{written}",
            where=None if part is None else str(part.path),
            do="the same command " + ("starts over" if out is None else "continues"),
        ) from None
    if part is not None:
        part.finish()
        note(f"{counted(len(rows), 'row')} in {out}")
    for own in predictors:
        scored = Scored(own, columns)
        for given, answer in zip(rows, answers, strict=True):
            scored.add(given, answer)
        _tell(scored, err=part is None)


def _rows(
    model: Path, file: Path | None, texts: tuple[str, ...], options: dict[str, str | None]
) -> tuple[ExamplesConfig, list[InputRow]]:
    """What each column is, by the options and the run, and the texts."""
    from hotloop.finetune.input_rows import reading_of

    read, of_words = reading_of(model, file)
    given = {name: value for name, value in options.items() if value is not None}
    columns = read.model_copy(update=given)
    of_words = of_words and options["text"] is None
    rows = _read(file, texts, columns, options["label"], of_words=of_words)
    if not rows:
        raise UsageError("no texts", where=str(file), do="name a file that has some")
    if num_empty := sum(not each.text.strip() for each in rows):
        note(f"without a text, and so without an answer: {counted(num_empty, 'row')}")
    return columns, rows


def _answer(predictors: list[Predictor], rows: list[InputRow], answers: list[dict[str, Any]], out: Path | None, part: _Part | None) -> None:  # fmt: skip
    """Write an answer to each row, and add it to `answers`; what `part` has of them already comes first."""
    from hotloop.cli.progress import progress_bar
    from hotloop.finetune.predict import answer_columns
    from hotloop.finetune.predict import predict as answers_of

    given_columns = (name for each in rows for name in each.row)
    names = list(dict.fromkeys([*given_columns, *answer_columns(predictors)]))
    answers += part.rows if part is not None else []
    if begin := len(answers):
        note(f"continues after {begin:,} of {counted(len(rows), 'row')}")
    opened: AbstractContextManager[IO[str]] = nullcontext(sys.stdout) if part is None else part.opened()  # fmt: skip
    with opened as stream, progress_bar() as progress:
        write = _writer(stream, out, names, is_begun=begin > 0)
        for found in answers_of(predictors, rows, begin=begin, progress=progress, warn=note):
            chunk = rows[len(answers) : len(answers) + len(found)]
            write([given.row | each for given, each in zip(chunk, found, strict=True)])
            stream.flush()
            answers += found
            if part is not None:
                part.keep(stream, len(answers))


def _read(
    file: Path | None,
    texts: tuple[str, ...],
    columns: ExamplesConfig,
    label: str | None,
    *,
    of_words: bool,
) -> list[InputRow]:
    from hotloop.finetune.input_rows import InputRow, input_rows

    if file is None:
        if label is not None:
            raise UsageError("--label is a column of FILE", do="leave it out")
        if any("\ud800" <= c <= "\udfff" for c in "".join(texts)):
            raise UsageError("not UTF-8 text", where="--text")
        return [InputRow({"text": each}, each) for each in texts]
    is_stdin = str(file) == "-"
    try:
        found = read_text_file(file) if not is_stdin else TextFile(Path("stdin.txt"), sys.stdin.buffer.read().decode("utf-8-sig"), "")  # fmt: skip
    except UnicodeDecodeError as error:
        raise UsageError("not UTF-8 text", where="stdin", do="convert it to UTF-8") from error
    return input_rows(found, columns, label=label, of_words=of_words)


def _tell(scored: Scored, *, err: bool) -> None:
    from hotloop.report.held_out import scores_in_lines

    if scored.num:
        first, *others = scores_in_lines(scored.scores())
        for line in (f"{first} on {counted(scored.num, 'labelled row')}", *others):
            click.echo(line, err=err)
    for name, number in scored.unknown.most_common(3):
        note(f"not scored, since the model does not know `{name[:80]}`: {counted(number, 'row')}")


class _Part:
    """`NAME.part`, which gets its name when it is whole. Until then `NAME.part.json` says how much of it is to be kept."""

    def __init__(self, out: Path, of: object) -> None:
        """of: what the answers depend on, JSON-ready."""
        from hotloop.core.untrusted import parse_object, read_bytes

        self._out = out
        self.path, self._state = (out.with_name(f"{out.name}.part{end}") for end in ("", ".json"))
        self._key = hashlib.sha256(json.dumps(of).encode("utf-8", "surrogatepass")).hexdigest()
        self.rows: list[dict[str, Any]] = []
        """What is kept of it."""
        try:
            found = parse_object(read_bytes(self._state))
            if found["of"] != self._key:
                note(f"{self.path} is of other texts or of another model, and is written over")
                return
            rows = self._read(self.path.read_bytes()[: found["bytes"]].decode())
            if len(rows) == found["rows"]:
                os.truncate(self.path, found["bytes"])
                self.rows = rows
        except (OSError, ValueError, TypeError, KeyError, csv.Error):
            pass  # nothing to continue

    def _read(self, text: str) -> list[dict[str, Any]]:
        if (delimiter := TABLES.get(suffix_of(self._out))) is None:
            return [json.loads(line) for line in text.split("\n") if line]
        csv.field_size_limit(sys.maxsize)
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))

    def opened(self) -> IO[str]:
        from hotloop.core.files import storing

        with storing(self._out, "write the answers"):
            return self.path.open("a" if self.rows else "w", newline="", encoding="utf-8")

    def keep(self, stream: IO[str], num_rows: int) -> None:
        from hotloop.core.files import write_json

        size = os.fstat(stream.fileno()).st_size
        write_json(self._state, {"of": self._key, "rows": num_rows, "bytes": size})

    def finish(self) -> None:
        os.replace(self.path, self._out)
        self._state.unlink(missing_ok=True)


def _writer(
    stream: IO[str], out: Path | None, names: list[str], *, is_begun: bool
) -> Callable[[list[dict[str, Any]]], None]:
    if out is None or (delimiter := TABLES.get(suffix_of(out))) is None:
        return lambda rows: stream.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)  # fmt: skip
    table = csv.DictWriter(stream, names, delimiter=delimiter, extrasaction="ignore")
    if not is_begun:
        table.writeheader()
    return lambda rows: table.writerows(map(_in_columns, rows))


def _in_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Labels with `|` between them (those that have one in them, and entities, as JSON)."""
    own = dict(row)
    for name, value in row.items():
        if name == "predicted" and isinstance(value, list) and "|" not in "".join(value):
            own[name] = "|".join(value)
        elif isinstance(value, list | dict):
            own[name] = json.dumps(value, ensure_ascii=False)
    return own
