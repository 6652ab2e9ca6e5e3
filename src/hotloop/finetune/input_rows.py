"""What `hotloop predict` reads: texts, with all that stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig, FinetuneConfig, Task
from hotloop.core.settings import load_settings, task_of
from hotloop.finetune.tables import TABLES, TextFile, check_columns, table_rows
from hotloop.finetune.tagged import is_tagged, tagged_columns, tags_of, word_spans


@dataclass(frozen=True, slots=True)
class InputRow:
    row: dict[str, Any]
    """All that the file has of it, by column."""
    text: str
    words: tuple[tuple[int, int], ...] | None = None
    """Where they begin and end in the text, where the file names them."""
    tags: tuple[str, ...] | None = None
    """True ones, of its words; `None` where the file has none that can be read."""

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """Where its words and signs stand in the text."""
        return word_spans(self.text) if self.words is None else self.words


def columns_of(model: Path) -> ExamplesConfig:
    """The names of columns that a run was given; the usual ones for any other directory. Raises `UsageError`."""
    config = model / "config.yaml"
    if (model / "config.json").is_file() or not config.is_file():
        return ExamplesConfig(file="")
    is_run = task_of(config) in get_args(Task)
    return load_settings(config, kind=FinetuneConfig).config.data if is_run else ExamplesConfig(file="")  # fmt: skip


def input_rows(
    file: TextFile, config: ExamplesConfig, *, delimiter: str | None, label: str | None
) -> list[InputRow]:
    """config: names of the columns. label: that of the true labels, where it must be there. Raises `UsageError`."""
    options = {} if label is None else {"--label": label}
    if not file.is_json and file.path.suffix not in TABLES:
        check_columns(file.path, ["text"], options)
        if is_tagged(file):
            return [_of_words(words, tags) for _, words, tags, _ in tagged_columns(file)]
        return [InputRow({"text": line}, line) for line in file.text.splitlines()]
    needed = options | ({} if file.is_json else {"--column": config.text})
    rows = table_rows(file, delimiter=delimiter, columns=needed)
    # a csv row of too many columns has them under None
    named = ((n, {name: row[name] for name in row if name is not None}) for n, row in rows)
    return [_of_row(row, config, f"{file.path}:{number}") for number, row in named]


def _of_words(words: Sequence[str], tags: tuple[str, ...] | None, row: Any = None) -> InputRow:
    begins = accumulate((len(word) + 1 for word in words), initial=0)
    spans = tuple((begin, begin + len(word)) for begin, word in zip(begins, words, strict=False))
    text = " ".join(words)
    return InputRow(row or {"text": text, "tags": list(tags or ())}, text, spans, tags)


def _of_row(row: dict[str, Any], config: ExamplesConfig, where: str) -> InputRow:
    """Of a table, or of jsonl: a text, or words where there is none."""
    words = row.get(config.words)
    if config.text not in row and isinstance(words, list) and all(isinstance(w, str) for w in words):  # fmt: skip
        return _of_words(words, _tags(row, config, where), row)
    check_columns(where, row, {"--column": config.text})
    text = "" if row[config.text] is None else str(row[config.text])
    spans = {config.spans: row[config.spans]} if config.spans in row else {}
    return InputRow(row, text, None, _tags({config.text: text} | spans, config, where))


def _tags(row: dict[str, Any], config: ExamplesConfig, where: str) -> tuple[str, ...] | None:
    try:
        return tags_of(row, config, where)[1]
    except UsageError:  # it is predicted all the same, and not scored
        return None
