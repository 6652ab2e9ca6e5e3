"""Labelled examples out of a file, and which of them are held out."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig, Task
from hotloop.finetune.tables import EMPTY, TextFile, cell, read_text_file, table_rows
from hotloop.finetune.tagged import has_other_words, tagged_texts

MAX_CLASSES = 10_000
MAX_FP32 = (2 - 2**-23) * 2.0**127
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_LIST_BEGINS = ("[]", "['", '["', "[0", "[1")
"""Of a list that was written as text, as pandas does into a csv."""


@dataclass(frozen=True, slots=True)
class Examples:
    """In the order of the file."""

    texts: tuple[Any, ...]
    """A string each; of `tokens` its words."""
    labels: tuple[Any, ...]
    """The label of each; of `multilabel` several, of `regression` a number, of `tokens` a tag for each word, and with both a pair."""
    num_empty: int = 0
    """Left out, since they have no text."""
    file: str = ""
    lines: tuple[int, ...] = ()
    """Of `file`, one for each example."""

    def __len__(self) -> int:
        return len(self.texts)

    def place(self, number: int) -> str:
        """FILE:LINE of an example."""
        return f"{self.file}:{self.lines[number]}"


@dataclass(frozen=True, slots=True)
class Dataset:
    train: Examples
    held_out: Examples
    classes: tuple[str, ...]
    """As `in_order` has them. The number of a label is its place here. Of `regression` the column alone, of `tokens` none."""
    fingerprint: str
    """Of the files and how they are read."""
    kinds: tuple[str, ...] = ()
    """Of the entities of `tokens`, sorted."""


def read_dataset(config: ExamplesConfig, *, task: Task = "classification") -> Dataset:
    """Raises `UsageError` for what cannot be trained on."""
    path = Path(config.file).expanduser()
    examples, digest = read_examples(config, path, task)
    classes, kinds = _outputs(config, path, task, examples.labels)
    if isinstance(config.held_out, str):
        train = examples
        held_out, other = read_examples(config, Path(config.held_out).expanduser(), task)
        _refuse_unknown(task, held_out, classes, kinds)
        digest += other
    else:
        train, held_out, shared = split(examples, config.held_out, config.seed, _STRATA[task])
        # A run from before labels shared what is held out is not continued with another part.
        digest += f" {config.held_out} {config.seed}{' shared' if shared else ''}"
    train, held_out = (_limited(each, config) for each in (train, held_out))
    if not isinstance(config.label, list) and classes != tuple(sorted(classes)):
        digest += " by number"  # nor with outputs that are other labels'
    read = config.model_dump(exclude={"file", "held_out", "no_label"})  # which changes no label
    name = f"{digest} {task} {json.dumps(read)}"
    return Dataset(train, held_out, classes, hashlib.sha256(name.encode()).hexdigest(), kinds)


def read_examples(
    config: ExamplesConfig, path: Path, task: Task = "classification"
) -> tuple[Examples, str]:
    """With what names the file and how it is read."""
    file = read_text_file(path)
    texts, labels, lines, num_empty, digest = [], [], [], 0, file.sha256
    read = _read_tagged if task.endswith("tokens") else _read_labelled
    for line, text, label, other_words in read(file, config, task):
        if not text:
            num_empty += 1
            continue
        texts.append(text)
        labels.append(label())
        lines.append(line)
        if other_words:  # a run that has learned those is not continued with these
            digest = f"{file.sha256} characters"
    if not texts:
        name = config.text if task != "tokens" else config.words
        raise UsageError(
            "no example has a text" if num_empty else "no examples in this file",
            where=f"{path}, column `{name}`"
            if num_empty and (file.is_json or task != "tokens")
            else str(path),
            do="name the column of the texts with `data.text`" if num_empty else EMPTY,
        )
    return Examples(tuple(texts), tuple(labels), num_empty, str(path), tuple(lines)), digest


def _read_labelled(file: TextFile, config: ExamplesConfig, task: Task) -> Any:
    """Line, text, not to complain of an empty text a function for its label, and `has_other_words`."""
    columns = {"data.text": config.text}
    names = [config.label] if isinstance(config.label, str) else config.label
    columns |= {"data.label" if len(names) == 1 else f"data.label ({n})": n for n in names}
    for line, row in table_rows(file, delimiter=config.delimiter, columns=columns):
        where = f"{file.path}:{line}"
        text = cell(row, config.text)
        if isinstance(row[config.text], list | dict):
            what = f"a {type(row[config.text]).__name__} in place of a text"
            raise UsageError(what, where=f"{where}, column `{config.text}`", do="join it to one text")  # fmt: skip
        if text.lower() == "nan":  # what a table of pandas has where there is none
            raise UsageError(f"no text (`{text}`)", where=f"{where}, column `{config.text}`", do="leave it empty, or remove that example")  # fmt: skip
        yield line, text, partial(label_of, config, task, row, where), False


def _read_tagged(file: TextFile, config: ExamplesConfig, task: Task) -> Any:
    if task != "tokens" and not file.is_json:
        raise UsageError(
            f"`task: {task}` reads a label and entities of each text, which needs jsonl",
            where=str(file.path),
            do="give each line `label` beside `words` and `tags`, or beside `text` and `spans`",
        )

    def label(tags: Any, row: dict[str, Any], where: str) -> Any:
        return tags if task == "tokens" else (label_of(config, "classification", row, where), tags)

    for where, words, tags, row in tagged_texts(file, config):
        yield int(where.rpartition(":")[2]), words, partial(label, tags, row, where), has_other_words(row, config)  # fmt: skip


def label_of(config: ExamplesConfig, task: Task, row: Mapping[str, Any], where: str) -> Any:
    """Raises `UsageError`."""
    if isinstance(config.label, list):
        return tuple(name for name in config.label if _is_one(row, name, where))
    if config.label not in row:
        raise UsageError(f"no `{config.label}`", where=where, do="set `data.label` to its key")
    raw, value = row[config.label], cell(row, config.label)
    where = f"{where}, column `{config.label}`"
    is_missing = value.lower() in {"", *map(str.lower, config.no_label)}
    if task == "multilabel":
        return _labels(config, raw, value, where, is_missing=is_missing)
    if task == "regression":
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not abs(number) <= MAX_FP32:
            do = "give that example one, or remove it; a text is a label of `task: classification`"
            what = "no number that fp32 holds" if math.isfinite(number) else "no number"
            raise UsageError(f"{what} (`{value[:80]}`)", where=where, do=do)
        return number
    if isinstance(raw, list | dict):
        do = "give it a text or a number; `task: multilabel` takes lists of labels"
        raise UsageError(f"the label is a {type(raw).__name__}", where=where, do=do)
    if is_missing:
        do = "give that example one, or remove it"
        if value:
            do += f"; where `{value}` is a label like others, `'data.no_label=[]'`"
        raise UsageError(f"no label (`{value}`)" if value else "no label", where=where, do=do)
    return value


def _labels(
    config: ExamplesConfig, raw: Any, value: str, where: str, *, is_missing: bool
) -> tuple[str, ...]:
    """Of `multilabel`, out of one column."""
    if value.lower() == "nan" and is_missing:  # what a table of pandas has where there is none
        do = "leave it empty where a text has no label, or remove that example"
        raise UsageError(f"no labels (`{value}`)", where=where, do=do)
    if isinstance(raw, str) and value.endswith("]") and value[:2] in _LIST_BEGINS:
        do = "write x|y, or a list in jsonl"
        raise UsageError(f"a list as text (`{value[:80]}`)", where=where, do=do)
    parts = raw if isinstance(raw, list) else value.split(config.separator)
    if isinstance(raw, dict) or any(isinstance(each, list | dict) for each in parts):
        what = f"neither a label nor a list of labels (`{value[:80]}`)"
        do = "give a list of the labels that hold; or each label its own column, `data.label=[first,second]`"
        raise UsageError(what, where=where, do=do)
    names = [str(each).strip() for each in parts if each is not None]
    if len(names) > len({*names}) and {*names} <= {"0", "1", "0.0", "1.0", "True", "False"}:
        what = f"0 or 1 for each label (`{value[:80]}`), and no list of labels"
        do = "name the labels that hold; or give each its own column, `data.label=[first,second]`"
        raise UsageError(what, where=where, do=do)
    return tuple(sorted({*names} - {""}))


def _is_one(row: Mapping[str, Any], name: str, where: str) -> bool:
    found = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
    value = cell(row, name)
    if value.lower() not in found:
        raise UsageError(
            f"neither 0 nor 1 (`{value[:80]}`)",
            where=f"{where}, column `{name}`",
            do="each column of `data.label` has 1 where that label holds, else 0",
        )
    return found[value.lower()]


def in_order(labels: Collection[str]) -> tuple[str, ...]:
    """Whole numbers by number, so that output 10 of a model that learned 0 to 76 is label 10; all others by name."""
    are_numbers = all(WHOLE_NUMBER.fullmatch(each) for each in labels)
    return tuple(sorted(labels, key=int) if are_numbers else sorted(labels))


def _outputs(
    config: ExamplesConfig, path: Path, task: Task, labels: Sequence[Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Classes, and kinds of entities. Raises `UsageError` where there is nothing to learn."""
    do = "name the column of the labels with `data.label`"
    where = f"{path}, column `{config.label}`"
    kinds: tuple[str, ...] = ()
    if task.endswith("tokens"):
        every_tag = labels if task == "tokens" else [tags for _, tags in labels]
        kinds = tuple(sorted({tag[2:] for tags in every_tag for tag in set(tags) - {"O"}}))
        if not kinds:
            raise UsageError(
                "no text has an entity: there is nothing to learn",
                where=str(path),
                do="the tags are in the last column, or at the key that `data.tags` or `data.spans` names",
            )
        if task == "tokens":
            return (), kinds
        labels = [label for label, _ in labels]
    if task == "regression":
        if len(set(labels)) < 2:
            what = f"all examples have the number {labels[0]:g}: there is nothing to learn"
            raise UsageError(what, where=where, do=do)
        return (str(config.label),), ()
    if task == "multilabel":
        counts = Counter(name for own in labels for name in own)
        always = [name for name, number in counts.items() if number == len(labels)]
        if len(always) == len(counts):
            what = f"all examples have the labels {', '.join(always) or 'none'}: there is nothing to learn"
            raise UsageError(what, where=where, do=f"{do}, what stands between labels with `data.separator`")  # fmt: skip
        classes = tuple(config.label) if isinstance(config.label, list) else in_order(counts)
    else:
        classes = in_order({*labels})
        if len(classes) < 2:
            what = f"all examples have the label `{classes[0]}`: there is nothing to learn"
            raise UsageError(what, where=where, do=f"{do}, or add examples of another one")
    if len(classes) > MAX_CLASSES or (len(classes) > 20 and 2 * len(classes) > len(labels)):
        raise UsageError(
            f"{len(classes)} different labels on {len(labels)} examples: that is no column of labels",
            where=where,
            do=do,
        )
    return classes, kinds


def _refuse_unknown(
    task: Task, held_out: Examples, classes: Sequence[str], kinds: Sequence[str]
) -> None:
    """Raises `UsageError` for held-out labels that are not learned."""
    known, known_kinds = {*classes}, {*kinds, ""}
    for number, label in enumerate(held_out.labels if task != "regression" else ()):
        of_text, tags = label if task == "classification+tokens" else (label, label)
        names = () if task == "tokens" else of_text if task == "multilabel" else (of_text,)
        found = {tag[2:] for tag in tags} if task.endswith("tokens") else set[str]()
        if unknown := ({*names} - known) | (found - known_kinds):
            raise UsageError(
                f"the held-out examples have the label `{min(unknown)}`, which no training example has",
                where=held_out.place(number),
                do=f"the labels that are learned: {', '.join([*classes, *kinds][:10])}",
            )


_STRATA: dict[str, Callable[[Any], Any]] = {
    "classification": lambda label: label,
    "multilabel": lambda label: label[:1],
    "regression": lambda label: None,
    "tokens": lambda label: None,
    "classification+tokens": lambda label: label[0],
}
"""Of each of these groups the same part is held out."""


def split(
    examples: Examples,
    fraction: float,
    seed: int,
    stratum: Callable[[Any], Any] = _STRATA["classification"],
) -> tuple[Examples, Examples, bool]:
    """Training and held-out examples; of each label the same part is held out, and at least one is trained on.

    Where labels have so few examples that those parts, rounded, are more than a quarter off what was asked for in all (77 labels
    with 5 each would hold out nothing at 0.1), that many are held out: the whole ones of each label, the rest of the labels that
    lack most, drawn where they are alike. The third value says whether that changed anything.
    """
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    by_label: dict[Any, list[int]] = {}
    for index in order:
        by_label.setdefault(stratum(examples.labels[index]), []).append(index)
    groups = list(by_label.values())
    rounded = [min(round(fraction * len(own)), len(own) - 1) for own in groups]
    # a label with one example is trained on, and has no part in this
    parts = [fraction * len(own) * (len(own) > 1) for own in groups]
    wanted, nums = round(sum(parts)), rounded
    if wanted and (not any(rounded) or abs(sum(rounded) - wanted) > max(1, wanted / 4)):
        nums = [min(int(part), len(own) - 1) for part, own in zip(parts, groups, strict=True)]
        left = wanted - sum(nums)
        for at in sorted(range(len(groups)), key=lambda at: int(parts[at]) - parts[at]):
            if left > 0 and nums[at] < len(groups[at]) - 1:
                nums[at] += 1
                left -= 1
    out = {index for own, num in zip(groups, nums, strict=True) for index in own[:num]}
    kept = [index for index in range(len(examples)) if index not in out]
    return _chosen(examples, kept), _chosen(examples, sorted(out)), nums != rounded


def _limited(examples: Examples, config: ExamplesConfig) -> Examples:
    if config.limit is None or len(examples) <= config.limit:
        return examples
    drawn = random.Random(config.seed).sample(range(len(examples)), config.limit)
    return _chosen(examples, sorted(drawn))


def _chosen(examples: Examples, indices: list[int]) -> Examples:
    texts, labels, lines = (tuple(own[index] for index in indices) for own in (examples.texts, examples.labels, examples.lines))  # fmt: skip
    return replace(examples, texts=texts, labels=labels, lines=lines)
