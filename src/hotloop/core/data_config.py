"""The `data` section of a run's settings: which text, how it is read, and in which order it comes."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hotloop.core.errors import UsageError
from hotloop.core.model_config import Natural, Positive, PositiveNumber, Section, Seed

SMALLEST_SHARE = 1e-9
"""Smallest share of a corpus in a mix: one sequence in a billion is none."""

Source = str | Annotated[list[str], Field(min_length=1)]


class ReadingConfig(Section):
    """What is read out of a source: the options of `hotloop prepare`, under the same names."""

    text_field: Annotated[str, Field(min_length=1)] = "text"
    """Field or column that holds the text; `a.b` for a field within a field."""
    format: Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow"] | None = None
    """Read every file as this; else its suffix says what it is, and standard input is text."""
    separator: str | None = None
    """What stands between two documents of plain text (`\\n`, `\\t` and `\\x1e` are understood; overlapping ones,
    as `----` for `---`, are one), `blank-line`, or `file`: each file is one. Without it files of a directory are
    documents, and a file given by itself is cut into pieces."""
    delimiter: str | None = None
    """What stands between the columns of csv and tsv, as `;` or `\\t`; else a comma, or a tab."""
    min_chars: Natural = 0
    """Leave out documents with fewer characters."""
    max_chars: Positive | None = None
    """Leave out documents with more characters."""
    skip_bad: bool = False
    """Leave out malformed records, the rest of damaged compressed files and tables, and damaged Arrow and parquet
    files, counted and listed, instead of ending with an error."""
    encoding_errors: Literal["error", "replace", "skip"] = "error"
    """For bytes that are not UTF-8: end with an error, put U+FFFD, or leave the document out."""
    include: list[str] = Field(default_factory=list)
    """Read only such files of a directory: `*.py`, or `docs/**/*.md`. Can be repeated."""
    exclude: list[str] = Field(default_factory=list)
    """Do not read such files of a directory; a name such as `vendor` leaves out what is below."""

    @field_validator("delimiter", "separator")
    @classmethod
    def _can_be_read(cls, typed: str | None, info: ValidationInfo) -> str | None:
        if typed is not None:
            try:
                (delimiter_of if info.field_name == "delimiter" else unescape)(typed)
            except UsageError as error:
                raise ValueError(f"{error.what}; {error.do}") from error
        return typed  # as typed: it is read again from the run's own config.yaml

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise ValueError(
                f"`max_chars` {self.max_chars} is less than `min_chars` {self.min_chars}: every document "
                "would be left out"
            )
        return self


def _not_empty(source: object) -> object:
    if source == []:
        raise ValueError("the list is empty; name at least one file, directory or `python-stdlib`")
    return source


class CorpusConfig(Section):
    """One corpus of a mix."""

    source: Source | None = None
    prepared: str | None = None
    weight: PositiveNumber = 1.0
    reading: ReadingConfig = ReadingConfig()

    _source_not_empty = field_validator("source", mode="before")(_not_empty)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source is None) == (self.prepared is None):
            raise ValueError("give each corpus exactly one of `source` and `prepared`")
        if self.prepared is not None and self.reading != ReadingConfig():
            raise ValueError(
                f"`reading` has no effect on the prepared {self.prepared}: it was read already; remove it"
            )
        return self


class DataConfig(Section):
    source: Source | None = None
    """Text to train on: what `hotloop prepare` takes, except `-`, or a list of it. Prepared into the cache on
    first use."""
    prepared: str | None = None
    """A directory written by `hotloop prepare`, instead of `source`."""
    mix: Annotated[list[CorpusConfig], Field(min_length=1)] | None = None
    """Several corpora instead of one, each with `source` or `prepared` and a `weight`: its share of the
    sequences, exact to one sequence in every block of 1024 or more. Each `source` may have a `reading` of its
    own. All are of one tokenizer, the first one's."""
    reading: ReadingConfig = ReadingConfig()
    tokenizer: str | None = "train:8192"
    """`train:N`, `bytes`, a `tokenizer.json`, or what else `hotloop prepare` takes; used when `source` is
    prepared. null means `bytes`."""
    end_of_text: Annotated[str, Field(min_length=1)] | None = None
    """Token that ends every document. null takes the first of the usual names that the tokenizer has."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    """Order of the training sequences: a seeded permutation per epoch, or as they stand in the shards."""
    seed: Seed = 0
    """Seed of the order."""
    layout: Literal["concatenate", "pack", "bucket"] = "concatenate"
    """How documents become rows. `concatenate` cuts their sequence every `model.context` tokens; `pack` puts
    whole documents side by side; `bucket` gives each a row, with others of its length, in batches of at most
    `train.microbatch` x `model.context` tokens."""
    document_mask: bool | None = None
    """Attention and positions stay inside a document. null takes true with `pack`. No effect with `bucket`,
    where a row is one document."""
    stream: bool = False
    """Train on `source` while it is being prepared; the first step waits for a few megabytes of it alone."""
    shuffle_buffer: Positive = 1024
    """With `stream`, sequences of the first epoch that are shuffled among each other; later epochs are
    shuffled whole. The first step waits for as many."""
    prefetch: Annotated[int, Field(ge=0, le=64)] | None = None
    """Steps whose batches a thread reads ahead. null takes 2 on a GPU, in pinned memory, and 0 on a CPU,
    where reading a batch takes less time than handing it over."""
    verify: Literal["checksum", "size"] = "checksum"
    """What is checked of every shard before training."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = (self.source, self.prepared, self.mix)
        if sum(value is not None for value in given) != 1:
            raise ValueError("set exactly one of `source`, `prepared` and `mix`")
        return self

    _source_not_empty = field_validator("source", mode="before")(_not_empty)

    @field_validator("mix")
    @classmethod
    def _shares_that_count(cls, mix: list[CorpusConfig] | None) -> list[CorpusConfig] | None:
        whole = sum(corpus.weight for corpus in mix or ())
        if math.isinf(whole):
            raise ValueError("the weights are too large to be added up; only their ratio counts")
        for corpus in mix or ():
            share = corpus.weight / whole
            if share < SMALLEST_SHARE:
                raise ValueError(
                    f"the weight {corpus.weight:g} of {corpus.source or corpus.prepared} is less than "
                    f"{SMALLEST_SHARE:g} of all weights together; raise it, or leave that corpus out"
                )
        return mix

    @model_validator(mode="after")
    def _only_shuffled(self) -> Self:
        if self.order == "sequential" and self.mix is not None:
            raise ValueError("a `mix` has no text of its own to follow; set `order: shuffled`")
        if self.order == "sequential" and self.layout == "bucket":
            raise ValueError(
                "`layout: bucket` in sequence is short ones first; set `order: shuffled`"
            )
        if self.mix is not None and self.layout == "bucket":
            raise ValueError(
                "`layout: bucket` cannot be mixed; set `layout` to pack or concatenate"
            )
        return self

    @model_validator(mode="after")
    def _only_streamed(self) -> Self:
        if self.stream and self.mix is not None:
            raise ValueError("`stream` cannot be mixed: prepare first, and leave out `stream`")
        if self.stream and self.source is None:
            raise ValueError("`stream` needs a `source`: what is prepared need not be waited for")
        if self.stream and self.layout != "concatenate":
            raise ValueError(f"`layout: {self.layout}` needs all documents; leave out `stream`")
        return self

    @property
    def masks_documents(self) -> bool:
        return self.layout == "pack" if self.document_mask is None else self.document_mask

    @property
    def makes_tokenizer(self) -> bool:
        """True if the tokenizer is hotloop's own, trained or `bytes`."""
        return self.tokenizer in (None, "bytes") or str(self.tokenizer).startswith("train:")

    @property
    def corpora(self) -> list[CorpusConfig]:
        """The mix, or the one corpus as a mix of one."""
        if self.mix is not None:
            return self.mix
        reading = self.reading if self.prepared is None else ReadingConfig()
        return [CorpusConfig(source=self.source, prepared=self.prepared, reading=reading)]


def idle_data_settings(data: DataConfig) -> tuple[tuple[str, bool, str], ...]:
    """Keys of `data.*`, whether they change nothing here, and the fix."""
    is_prepared = data.corpora[0].prepared is not None
    has_its_own = "remove it: a prepared directory holds its own tokenizer"
    return (
        ("data.tokenizer data.end_of_text", is_prepared, has_its_own),
        (
            "data.end_of_text",
            data.makes_tokenizer,
            f"remove it: the tokenizer {data.tokenizer or 'bytes'} has one of its own",
        ),
        (
            " ".join(f"data.reading.{name}" for name in ReadingConfig.model_fields),
            data.source is None,
            "remove it: what is prepared was read already"
            if data.mix is None
            else "give it to the corpora: `data: [{source: ..., reading: {...}}, ...]`",
        ),
        (
            "data.shuffle_buffer",
            not data.stream or data.order == "sequential",
            "set `data.stream: true` and `data.order: shuffled`, or remove it",
        ),
        (
            "data.document_mask",
            data.layout == "bucket",
            "remove it: with `layout: bucket` a row is one document",
        ),
    )


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.?))", re.DOTALL)


def unescape(typed: str) -> str:
    """A string as typed, with `\\n`, `\\t`, `\\r`, `\\0`, `\\x1e` and `\\\\` understood. Raises `UsageError`."""

    def meant(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] not in _ESCAPES:
            raise UsageError(
                f"cannot read the separator {typed!r}",
                do="after a backslash comes n, t, r, 0, x and two digits of a hexadecimal number, or "
                "another backslash",
            )
        return _ESCAPES[match[2]]

    text = _ESCAPED.sub(meant, typed)
    if not text:
        raise UsageError("the separator is empty", do="give a string, blank-line or file")
    return text


def delimiter_of(typed: str) -> str:
    """The one character between columns. Raises `UsageError`."""
    text = unescape(typed) if typed else ""
    if len(text) != 1 or text in '"\r\n\0':
        do = "give one character, as ; or \\t, and neither a quote nor a line end"
        raise UsageError(f"cannot read the delimiter {typed!r}", do=do)
    return text
