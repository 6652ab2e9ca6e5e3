"""Texts with entities: columns as CoNLL has them, or jsonl with a tag for each word or spans of characters.

Tags come out as IOB2, whichever of IOB1, IOB2, IOBES and BILOU the file has.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig
from hotloop.finetune.tables import TextFile, table_rows
from hotloop.report.numbers import counted

ALONE = r"\u0e01-\u0e46\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
"""Characters that are words of their own: Thai, kana and ideographs, which are written without spaces."""
MARK, JOINERS = "\u0300", "\u200c\u200d"
WORD = re.compile(rf"[{ALONE}]{MARK}*|(?:[^\W{ALONE}]{MARK}*)+|[^\w\s]{MARK}*")
TAG = re.compile(r"([BIESLU])-(\S+)")
Tagged = tuple[str, tuple[str, ...], tuple[str, ...], dict[str, Any]]
"""Place, words, tags, and the row that they are from."""


def tagged_texts(file: TextFile, config: ExamplesConfig) -> Iterator[Tagged]:
    """Raises `UsageError`."""
    if not file.is_json:
        yield from tagged_columns(file)
        return
    for number, row in table_rows(file, delimiter=None, columns={}):
        where = f"{file.path}:{number}"
        yield where, *tags_of(row, config, where), row


def tags_of(
    row: dict[str, Any], config: ExamplesConfig, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of a line of jsonl, and a tag for each. Raises `UsageError`."""
    if config.words in row:
        words, tags = row[config.words], row.get(config.tags, ())
        for key, name, value in (("words", config.words, words), ("tags", config.tags, tags)):
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise UsageError(
                    f"`{name}` is not a list of words" if name in row else f"no `{name}`",
                    where=where,
                    do=f"each line has a list of texts there, or set `data.{key}` to another key",
                )
        if len(words) != len(tags):
            raise UsageError(
                f"{counted(len(words), 'word')} and {counted(len(tags), 'tag')}",
                where=where,
                do="give every word one tag, O outside of entities",
            )
        return tuple(words), iob2(tags, where)
    if config.text in row and config.spans in row:
        text = row[config.text]
        return _of_spans(text if isinstance(text, str) else "", row[config.spans], where)
    there = ", ".join(f"`{each[:80]}`" for each in list(row)[:20])
    raise UsageError(
        f"neither `{config.words}` with `{config.tags}` nor `{config.text}` with `{config.spans}`",
        where=where,
        do=f"name them with `data.words` and `data.tags`, or `data.text` and `data.spans`; there: {there}",
    )


def tagged_columns(file: TextFile) -> Iterator[Tagged]:
    """A word a line, its tag in the last column; an empty line ends a sentence, between which a line may be a comment: `# ...`."""
    words: list[str] = []
    tags: list[str] = []
    width = begin = 0
    for number, line in enumerate([*file.lines, ""], 1):
        # a space that does not break is part of a word
        parts = line.split("\t") if "\t" in line else filter(None, line.split(" "))
        columns = [each.strip(" ") for each in parts]
        if not line.strip() or columns[0] == "-DOCSTART-":
            if words:
                where = f"{file.path}:{begin}"
                yield where, tuple(words), iob2(tags, where, file.path), {}
            words, tags = [], []
            continue
        tag = columns[-1]
        if not words and line.startswith("#") and tag != "O" and not TAG.fullmatch(tag):
            continue  # a comment
        if len(columns) < 2 or (width and len(columns) != width):
            before = f", and {width} in the lines before" if width else ""
            raise UsageError(
                f"{counted(len(columns), 'column')} here{before}",
                where=f"{file.path}:{number}",
                do="each line is a word, then its tag in the last column; an empty line ends a sentence",
            )
        width = len(columns)
        if not words:
            begin = number
        words.append(columns[0])
        tags.append(tag)


def iob2(tags: Sequence[str], where: str, file: Any = None) -> tuple[str, ...]:
    """The same entities with B- at the first word of each and I- at the others. Raises `UsageError`.

    file: the words of a text are on lines of their own there, from the one that `where` names.
    """
    found: list[str] = []
    open_kind: str | None = None
    for number, tag in enumerate(tags):
        read = TAG.fullmatch(tag)
        if tag != "O" and read is None:
            place = where if file is None else f"{file}:{int(where.rpartition(':')[2]) + number}"
            do = "tags are O, B-KIND at the first word of an entity and I-KIND at its others"
            raise UsageError(f"`{tag[:80]}` is no tag", where=place, do=do)
        if read is None:
            found.append("O")
            open_kind = None
            continue
        mark, kind = read.groups()
        goes_on = mark in "IEL" and kind == open_kind
        found.append(f"{'I' if goes_on else 'B'}-{kind}")
        open_kind = None if mark in "ESLU" else kind
    return tuple(found)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where words and signs stand in a text, each with the marks on it."""
    if not text.isascii():  # one mark in place of all, for which `re` has no class
        text = "".join(
            MARK if c in JOINERS or unicodedata.category(c)[0] == "M" else c for c in text
        )
    return [each.span() for each in WORD.finditer(text)]


def has_other_words(row: Mapping[str, Any], config: ExamplesConfig) -> bool:
    """True for a text with spans whose words were other ones as long as marks, and no character of `ALONE`, were words."""
    text = row.get(config.text)
    if config.words in row or not isinstance(text, str) or text.isascii():
        return False
    return word_spans(text) != [each.span() for each in re.finditer(r"\w+|[^\w\s]", text)]


def _of_spans(text: str, spans: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words, and a tag for each."""
    do = "each is {start, end, label} in characters of the text, the end not included"
    if not isinstance(spans, list):
        raise UsageError("the spans are not a list", where=where, do=do)
    words = word_spans(text)
    begins = {begin: number for number, (begin, _) in enumerate(words)}
    ends = {end: number for number, (_, end) in enumerate(words)}
    tags = ["O"] * len(words)
    read: list[tuple[int, int, str]] = []
    for each in spans:
        begin, end, kind = (
            (each.get("start"), each.get("end"), each.get("label"))
            if isinstance(each, dict)
            else (None,) * 3
        )
        if type(begin) is not int or type(end) is not int or not isinstance(kind, str) or not kind:
            raise UsageError("a span without start, end or label", where=where, do=do)
        if not 0 <= begin < end <= len(text):
            what = f"the span {begin} to {end} is not within its text of {len(text)} characters"
            raise UsageError(what, where=where, do=do)
        read.append((begin, end, "-".join(kind.split())))
    for (_, end, kind), (begin, _, other) in pairwise(sorted(read)):
        if begin < end:
            what = f"the spans of `{kind}` and `{other}` overlap at character {begin}"
            raise UsageError(what, where=where, do="keep one of them: a word has one tag")
    for begin, end, kind in read:
        shown = text[begin:end]
        begin += len(shown) - len(shown.lstrip())
        end -= len(shown) - len(shown.rstrip())
        if begin not in begins or end not in ends:
            raise UsageError(
                f"the span {begin} to {end}, `{shown[:80]}`, does not begin and end where words do",
                where=where,
                do="let it cover whole words: letters and digits stay together, each other sign is a word",
            )
        first, last = begins[begin], ends[end]
        tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return tuple(text[begin:end] for begin, end in words), tuple(tags)
