"""Labelled texts out of a csv, tsv or jsonl file, and which of them are held out."""

from __future__ import annotations

import csv
import hashlib
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig
from hotloop.core.untrusted import parse_object, read_bytes

MAX_CLASSES = 10_000
NO_LABELS = frozenset({"", "nan", "null", "none", "n/a", "na"})


@dataclass(frozen=True, slots=True)
class Examples:
    """Texts and their labels, in the order of the file."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    num_empty: int = 0
    """Left out, since they have no text."""

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class Dataset:
    train: Examples
    held_out: Examples
    classes: tuple[str, ...]
    """Sorted. The number of a label is its place here."""
    fingerprint: str
    """Of the files and how they are read."""

    def numbers(self, examples: Examples) -> list[int]:
        known = {name: number for number, name in enumerate(self.classes)}
        return [known[label] for label in examples.labels]


def read_dataset(config: ExamplesConfig, *, per_step: int) -> Dataset:
    """Raises `UsageError` for what cannot be trained on."""
    path = Path(config.file).expanduser()
    examples, digest = read_examples(config, path)
    if isinstance(config.held_out, str):
        train = examples
        held_out, other = read_examples(config, Path(config.held_out).expanduser())
        digest += other
    else:
        train, held_out = split(examples, config.held_out, config.seed)
        digest += f" {config.held_out} {config.seed}"
    classes = tuple(sorted(set(train.labels)))
    if len(classes) < 2:
        raise UsageError(
            f"all examples have the label `{classes[0]}`: there is nothing to learn",
            where=f"{path}, column `{config.label}`",
            do="name the column of the labels with `data.label`",
        )
    if len(classes) > MAX_CLASSES or (len(classes) > 20 and 2 * len(classes) > len(train)):
        raise UsageError(
            f"{len(classes)} different labels on {len(train)} examples: that is no column of labels",
            where=f"{path}, column `{config.label}`",
            do="name the column of the labels with `data.label`",
        )
    if unknown := sorted(set(held_out.labels) - set(classes)):
        raise UsageError(
            f"the held-out examples have the label `{unknown[0]}`, which no training example has",
            where=str(config.held_out),
            do=f"the labels that are learned: {', '.join(classes[:10])}",
        )
    if len(train) < per_step:
        raise UsageError(
            f"one step takes {per_step} examples, and there are {len(train)} to train on",
            where=str(path),
            do=f"lower `train.microbatch` to {len(train)} or less, with `train.grad_accum_steps` 1",
        )
    name = f"{digest} {config.text} {config.label} {config.delimiter}"
    return Dataset(train, held_out, classes, hashlib.sha256(name.encode()).hexdigest())


def read_examples(config: ExamplesConfig, path: Path) -> tuple[Examples, str]:
    """With the checksum of the file."""
    try:
        content = read_bytes(path)
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError("no such file of examples", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"not UTF-8 text (byte {error.start})", where=str(path), do="convert it to UTF-8"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the examples: {error}", where=str(path)) from error
    rows = _json_rows if path.suffix in (".jsonl", ".ndjson") else _csv_rows
    texts, labels, num_empty = [], [], 0
    for line, row in rows(config, path, text):
        values = [row.get(config.text), row.get(config.label)]
        body, label = (str(each).strip() if each is not None else "" for each in values)
        if not body:
            num_empty += 1
            continue
        if label.lower() in NO_LABELS:
            raise UsageError(
                f"no label (`{label}`)" if label else "no label",
                where=f"{path}:{line}, column `{config.label}`",
                do="give that example one, or remove it",
            )
        texts.append(body)
        labels.append(label)
    if not texts:
        raise UsageError(
            "no example has a text" if num_empty else "no examples in this file",
            where=f"{path}, column `{config.text}`",
            do="name the column of the texts with `data.text`",
        )
    digest = hashlib.sha256(content).hexdigest()
    return Examples(tuple(texts), tuple(labels), num_empty), digest


def _csv_rows(
    config: ExamplesConfig, path: Path, text: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    delimiter = config.delimiter or ("\t" if path.suffix == ".tsv" else ",")
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = [str(name) for name in reader.fieldnames or ()]
        if len(names) == 1 and {config.text, config.label} - set(names):
            raise UsageError(
                f"only one column is found, `{names[0][:80]}`, with {delimiter!r} between columns",
                where=f"{path}:1",
                do="say what stands between them with `data.delimiter`, for example `data.delimiter=;`",
            )
        _check_columns(config, path, names)
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(
            f"damaged csv: {error}", where=f"{path}:{reader.line_num}", do="quote that field"
        ) from error


def _json_rows(
    config: ExamplesConfig, path: Path, text: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parse_object(line, finite=False)
        except ValueError as error:
            raise UsageError(f"damaged json: {error}", where=f"{path}:{number}") from error
        _check_columns(config, path, list(row))
        yield number, row


def _check_columns(config: ExamplesConfig, path: Path, names: list[str]) -> None:
    for key, name in (("data.text", config.text), ("data.label", config.label)):
        if name not in names:
            there = ", ".join(f"`{each[:80]}`" for each in names[:20]) or "none"
            raise UsageError(
                f"no column `{name}`",
                where=str(path),
                do=f"set `{key}` to one of those there: {there}",
            )


def split(examples: Examples, fraction: float, seed: int) -> tuple[Examples, Examples]:
    """Training and held-out examples; of each label the same part is held out, and at least one is trained on."""
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    by_label: dict[str, list[int]] = {}
    for index in order:
        by_label.setdefault(examples.labels[index], []).append(index)
    out = set[int]()
    for indices in by_label.values():
        out.update(indices[: min(round(fraction * len(indices)), len(indices) - 1)])
    kept = [index for index in range(len(examples)) if index not in out]
    return _chosen(examples, kept), _chosen(examples, sorted(out))


def _chosen(examples: Examples, indices: list[int]) -> Examples:
    texts = tuple(examples.texts[index] for index in indices)
    return Examples(texts, tuple(examples.labels[index] for index in indices), examples.num_empty)
