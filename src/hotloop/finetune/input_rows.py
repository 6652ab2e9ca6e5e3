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
from hotloop.finetune.tables import TABLES, TextFile, check_columns, suffix_of, table_rows
from hotloop.finetune.tagged import tagged_columns, tags_of, word_spans


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


def config_of(model: Path) -> FinetuneConfig | None:
    """Of a run that learned labels or entities; `None` for any other directory. Raises `UsageError`."""
    path = model / "config.yaml"
    is_run = path.is_file() and not (model / "config.json").is_file()
    if not is_run or task_of(path) not in get_args(Task):
        return None
    return load_settings(path, kind=FinetuneConfig).config


def reading_of(model: Path, file: Path | None) -> tuple[ExamplesConfig, bool]:
    """How a run read its examples, and whether words come before a text there; the usual way for any other directory.

    The delimiter is that of a file with the ending of the run's, and `None` for any other. Raises `UsageError`.
    """
    if (config := config_of(model)) is None:
        return ExamplesConfig(file=""), False
    suffix, of_words = suffix_of(Path(config.data.file)), config.task.endswith("tokens")
    is_alike = file is not None and suffix_of(file) == suffix and not of_words
    delimiter = (config.data.delimiter or TABLES.get(suffix, ",")) if is_alike else None
    return config.data.model_copy(update={"delimiter": delimiter}), of_words


def input_rows(
    file: TextFile, config: ExamplesConfig, *, label: str | None, of_words: bool = False
) -> list[InputRow]:
    """config: names of the columns, and their delimiter where there is one. label: that of the true labels, where it must be there.

    of_words: a row that has words and a text is its words. Raises `UsageError`.
    """
    options = {} if label is None else {"--label": label}
    if not file.is_json and config.delimiter is None:
        sentences = _sentences(file)
        if sentences or file.suffix not in TABLES:
            check_columns(file.path, ["text"], options)
            return sentences or [InputRow({"text": line}, line) for line in file.lines]
    needed = options | ({} if file.is_json else {"--column": config.text})
    rows = table_rows(file, delimiter=config.delimiter, columns=needed)
    return [_of_row(row, config, f"{file.path}:{number}", of_words) for number, row in rows]


def _sentences(file: TextFile) -> list[InputRow]:
    """Of words with their tags; empty where the file has something else. Raises `UsageError` behind a sentence that is one."""
    found: list[InputRow] = []
    try:
        for _, words, tags, _ in tagged_columns(file):
            found.append(_of_words(words, tags))
    except UsageError:
        if found:
            raise
    return found


def _of_words(words: Sequence[str], tags: tuple[str, ...] | None, row: Any = None) -> InputRow:
    begins = accumulate((len(word) + 1 for word in words), initial=0)
    spans = tuple((begin, begin + len(word)) for begin, word in zip(begins, words, strict=False))
    text = " ".join(words)
    return InputRow(row or {"text": text, "tags": list(tags or ())}, text, spans, tags)


def _of_row(row: dict[str, Any], config: ExamplesConfig, where: str, of_words: bool) -> InputRow:
    """Of a table, or of jsonl: a text, or words where there is none or they come first."""
    words = row.get(config.words)
    if (of_words or config.text not in row) and isinstance(words, list) and all(isinstance(w, str) for w in words):  # fmt: skip
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
