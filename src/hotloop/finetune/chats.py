"""What a decoder learns from: prompts with their completions, chats, or plain texts, and which are held out."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotloop.core.causal_config import CausalConfig
from hotloop.core.errors import UsageError
from hotloop.finetune.tables import (
    EMPTY,
    TABLES,
    Row,
    check_columns,
    read_text_file,
    table_rows,
)

Message = dict[str, Any]
PROMPTS_FILE = "prompts.json"


@dataclass(frozen=True, slots=True)
class Prompts:
    """How a run's model is asked: as its examples were, which need not be there any longer."""

    chats: bool
    """By the chat template."""
    schema: str = "hotloop.prompts/1"


@dataclass(frozen=True, slots=True)
class Source:
    """One example, before it is tokenized: a chat, or a prompt (which may be empty) and what follows it."""

    place: str
    """FILE:LINE."""
    prompt: str = ""
    completion: str = ""
    chat: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sources:
    train: tuple[Source, ...]
    held_out: tuple[Source, ...]
    num_empty: int
    """Rows left out, since nothing is there to be learned."""
    fingerprint: str
    """Of the files and how they are read."""


def read_sources(config: CausalConfig) -> Sources:
    """Raises `UsageError` for what cannot be learned from."""
    data = config.data
    path = Path(data.file).expanduser()
    train, num_empty, digest = _read(config, path)
    held_out: list[Source] = []
    if isinstance(data.held_out, str):
        held_out, _, other = _read(config, Path(data.held_out).expanduser())
        digest += other
    elif len(train) > 1:
        train, held_out = _split(train, data.held_out, data.seed)
    elif train[0].chat is None and not train[0].prompt:
        train, held_out = _split_text(train[0], data.held_out)
    columns = (data.messages, data.prompt, data.completion, data.text, data.delimiter)
    name = f"{config.task} {digest} {data.held_out} {data.seed} {columns}"
    return Sources(
        tuple(train), tuple(held_out), num_empty, hashlib.sha256(name.encode()).hexdigest()
    )


def _read(config: CausalConfig, path: Path) -> tuple[list[Source], int, str]:
    """Examples, how many rows had none, the checksum of the file."""
    data = config.data
    file = read_text_file(path)
    if not file.is_json and file.suffix not in TABLES:
        if config.task == "instructions":
            raise UsageError(
                "examples with prompts are read out of jsonl, csv or tsv",
                where=str(path),
                do="name such a file, or set `task: text` to learn all of this one",
            )
        found = [Source(str(path), completion=file.text)]
    else:
        columns = {"data.text": data.text} if config.task == "text" else {}
        rows = list(table_rows(file, delimiter=data.delimiter, columns=columns))
        if not rows:
            raise UsageError("no examples in this file", where=str(path), do=EMPTY)
        if config.task == "text":
            found = [Source(f"{path}:{line}", completion=_text(row[data.text], f"{path}:{line}", data.text)) for line, row in rows]  # fmt: skip
        elif data.messages in rows[0][1]:
            _check(path, rows, {"data.messages": data.messages})
            places = ((f"{path}:{line}", row[data.messages]) for line, row in rows)
            found = [Source(place, chat=_chat(value, place)) for place, value in places]
        else:
            found = _prompted(config, path, rows)
    kept = [each for each in found if each.chat is not None or each.completion.strip()]
    if not kept:
        column = data.text if config.task == "text" else data.completion
        raise UsageError("no example has a text to learn", where=f"{path}, column `{column}`")
    return kept, len(found) - len(kept), file.sha256


def _check(path: Path, rows: list[Row], columns: dict[str, str]) -> None:
    for line, row in rows:
        check_columns(f"{path}:{line}", row, columns)


def _prompted(config: CausalConfig, path: Path, rows: list[Row]) -> list[Source]:
    names = (config.data.prompt, config.data.completion)
    if set(names) - set(rows[0][1]):
        there = ", ".join(f"`{str(each)[:80]}`" for each in list(rows[0][1])[:20])
        raise UsageError(
            f"neither chats (`{config.data.messages}`) nor `{names[0]}` and `{names[1]}` are columns here",
            where=str(path),
            do=f"name them with `data.messages`, or `data.prompt` and `data.completion`; there: {there}",
        )
    _check(path, rows, {"data.prompt": names[0], "data.completion": names[1]})
    found = []
    for line, row in rows:
        place = f"{path}:{line}"
        prompt, completion = (_text(row[name], place, name) for name in names)
        found.append(Source(place, prompt, completion))
    return found


def _text(value: Any, place: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        what = f"`{column}` is {type(value).__name__}, not text"
        raise UsageError(what, where=place, do="chats go into a column `messages`")
    return value


def _chat(value: Any, place: str) -> tuple[Message, ...]:
    def wrong(what: str) -> UsageError:
        do = 'a chat is a list such as [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
        return UsageError(what, where=place, do=do)

    if not isinstance(value, list) or not value:
        raise wrong("no chat")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise wrong("a message of this chat has no role")
        if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
            raise wrong(f"the content of a message ({message['role']}) is no text")
    if not any(message["role"] == "assistant" for message in value):
        raise wrong("nobody is `assistant` in this chat: there is nothing to learn")
    return tuple(value)


def _split(sources: list[Source], fraction: float, seed: int) -> tuple[list[Source], list[Source]]:
    order = list(range(len(sources)))
    random.Random(seed).shuffle(order)
    out = set(order[: min(round(fraction * len(order)), len(order) - 1)])
    kept = [each for number, each in enumerate(sources) if number not in out]
    return kept, [sources[number] for number in sorted(out)]


def _split_text(source: Source, fraction: float) -> tuple[list[Source], list[Source]]:
    """A single text: its end is held out, from a line on."""
    text = source.completion
    cut = text.find("\n", round((1 - fraction) * len(text))) + 1 if fraction else 0
    if not cut or not text[cut:].strip() or not text[:cut].strip():
        return [source], []
    return [replace(source, completion=text[:cut])], [replace(source, completion=text[cut:])]
