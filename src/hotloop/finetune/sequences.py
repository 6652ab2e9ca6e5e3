"""Examples as token ids, with a mark on each token that is learned."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.causal_config import CausalConfig
from hotloop.core.errors import UsageError
from hotloop.core.untrusted import read_bytes
from hotloop.finetune.chats import Message, Source
from hotloop.finetune.tokens import Tokens, beside_json, cached
from hotloop.report.numbers import counted

Span = tuple[int, int]
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""What some chat templates have around that which an assistant says."""
JOINED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Ends with the last token that is learned: what is behind it teaches nothing."""

    ids: np.ndarray
    """int32."""
    learned: np.ndarray
    """bool, of each token; never of the first, which nothing comes before."""

    @property
    def num_targets(self) -> int:
        return int(self.learned.sum())

    @property
    def num_read(self) -> int:
        """All but the last."""
        return len(self.ids) - 1


@dataclass(frozen=True, slots=True)
class Marked:
    """The text of an example and the parts of it that are learned."""

    text: str
    spans: tuple[Span, ...]


@dataclass(slots=True)
class Counts:
    """What of the examples is not learned as it stands in the file."""

    cut: int = 0
    """Examples longer than `model.max_tokens`."""
    without_target: int = 0
    """Examples left out, since their prompt fills `model.max_tokens`."""
    turns: int = 0
    """Turns of an assistant that the template writes in another way once the chat goes on."""
    joined: int = 0
    """Examples of which a token begins in what is read, and ends in what is learned."""
    endless: int = 0
    """Completions that no token ends."""

    def notes(self, max_tokens: int) -> list[str]:
        told = (
            (f"longer than `model.max_tokens` {max_tokens} and cut", self.cut, "example"),
            ("left out, since `model.max_tokens` ends before what is learned", self.without_target, "example"),
            ("learned with a token that begins in the prompt, as a space at its end does: `hotloop generate` asks with other tokens; have the completion begin with it", self.joined, "example"),
            ("that nothing ends, since this tokenizer has no end-of-text token", self.endless, "completion"),
            ("only read, since the chat template writes them otherwise once the chat goes on", self.turns, "assistant turn"),
        )  # fmt: skip
        return [f"{what}: {counted(number, each)}" for what, number, each in told if number]


def examples_of(
    config: CausalConfig, tokenizer: Any, identity: str, sources: Sequence[Source], counts: Counts
) -> list[Example]:
    """`identity` names the tokenizer's contents. Raises `UsageError`."""
    found: list[Example] = []
    longest, is_text = config.model.max_tokens, config.task == "text"
    assert isinstance(longest, int), "auto is resolved before"
    if not sources:
        return found
    is_chat = sources[0].chat is not None  # a file has chats, or none
    if is_chat and tokenizer.chat_template is None:
        raise UsageError(
            "this model's tokenizer has no chat template, which says how chats are written out",
            where=config.model.path,
            do="give one with `data.chat_template=FILE` (jinja), or columns `prompt` and `completion`",
        )
    spans_of = _span_reader(tokenizer)
    marked = [_written(each, spans_of, counts) if is_chat else _joined(each) for each in sources]
    if not (is_chat or is_text) and tokenizer.eos_token_id is None:
        counts.endless += len(marked)
    for ids, marks in _tokenized(tokenizer, identity, marked, is_chat=is_chat):
        learned = marks > 0
        counts.joined += bool((marks == JOINED).any())
        starts = range(0, max(1, len(ids) - 1), longest - 1) if is_text else (0,)
        num_before = len(found)
        for start in starts:  # of a long text each begins with the last token of the one before
            part = learned[start : start + longest].copy()
            part[:1] = False
            if not part.any():
                counts.without_target += not is_text
                continue
            end = len(part) - int(part[::-1].argmax())
            found.append(Example(ids[start : start + end], part[:end]))
        whole = is_text or not learned[longest:].any()
        counts.cut += not whole and len(found) > num_before
    return found


def use_template(tokenizer: Any, file: str | None) -> None:
    """Raises `UsageError` for a file that cannot be read."""
    if file is None:
        return
    try:
        tokenizer.chat_template = read_bytes(Path(file).expanduser()).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the chat template: {error}", where=file) from error


def _joined(source: Source) -> Marked:
    text = source.prompt + source.completion
    return Marked(text, ((len(source.prompt), len(text)),))


def _written(
    source: Source, spans_of: Callable[[tuple[Message, ...]], tuple[Marked, int]], counts: Counts
) -> Marked:
    import jinja2

    assert source.chat is not None
    try:
        marked, unlearned = spans_of(source.chat)
    except jinja2.TemplateSyntaxError as error:
        what = f"the chat template is damaged: {error.message}"
        raise UsageError(what, where=f"its line {error.lineno}") from error
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"the chat template does not take this chat: {str(error)[:200]}", where=source.place
        ) from error
    counts.turns += unlearned
    return marked


def _span_reader(tokenizer: Any) -> Callable[[tuple[Message, ...]], tuple[Marked, int]]:
    """Writes a chat out; also says how many turns of the assistant are not learned."""

    def written(chat: Sequence[Message], *, asks: bool = False) -> str:
        text = tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=asks)
        assert isinstance(text, str)
        return text

    def by_prefix(chat: tuple[Message, ...]) -> tuple[Marked, int]:
        """A turn is what comes between the text up to its header and the text up to its end."""
        text, spans, unlearned = written(chat), [], 0
        for number, message in enumerate(chat):
            if message["role"] != "assistant":
                continue
            until = text if number == len(chat) - 1 else written(chat[: number + 1])
            if number:
                before = written(chat[:number], asks=True)
            elif (said := str(message.get("content") or "").strip()) and said in until:
                before = until.rpartition(said)[0]  # nothing asks for the first turn
            else:
                before = until
            pairs = enumerate(zip(text, before, strict=False))
            begin = next((at for at, (a, b) in pairs if a != b), min(len(text), len(before)))
            # The header that asks for an answer may have more than is kept of it, but no less.
            follows = begin == len(before) or begin >= len(written(chat[:number]))
            if follows and begin < len(until) and text.startswith(until):
                spans.append((begin, len(until)))
            else:
                unlearned += 1
        return Marked(text, tuple(spans)), unlearned

    template = tokenizer.chat_template
    if not isinstance(template, str) or not GENERATION.search(template):
        return by_prefix
    from transformers.utils.chat_template_utils import render_jinja_template

    def by_marks(chat: tuple[Message, ...]) -> tuple[Marked, int]:
        texts, spans = render_jinja_template(
            conversations=[list(chat)],
            chat_template=template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        return Marked(texts[0], tuple((begin, end) for begin, end in spans[0])), 0

    return by_marks


def _tokenized(
    tokenizer: Any, identity: str, marked: Sequence[Marked], *, is_chat: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """ids and marks (int32; 0: only read) of each. From the cache where the same was tokenized before.

    A prompt and its completion are tokenized as one text; the token that begins in the one and ends in the other is learned, and marked `JOINED`.
    """
    ends_with = None if is_chat else tokenizer.eos_token_id
    digest = hashlib.sha256(f"marked by place, joined {identity} {is_chat} {ends_with}{beside_json(tokenizer)}".encode())  # fmt: skip
    for each in marked:
        digest.update(hashlib.sha256(each.text.encode("utf-8", "surrogatepass")).digest())
        digest.update(repr(each.spans).encode())

    def make() -> Tokens:
        made = tokenizer(
            [each.text for each in marked],
            add_special_tokens=not is_chat,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_special_tokens_mask=True,
            return_offsets_mapping=True,
        )
        ids: Tokens = []
        marks: Tokens = []
        columns = (made[name] for name in ("input_ids", "offset_mapping", "special_tokens_mask"))
        for own, places, special, each in zip(*columns, marked, strict=True):
            at = np.asarray(places, dtype=np.int64).reshape(-1, 2)
            inside = np.asarray(special) == 0
            for number in np.flatnonzero(inside & (at[:, 0] == at[:, 1])):
                # spaces, which some tokenizers leave out of a token's place
                at[number, 0] = at[number - 1, 1] if number else 0
            learned = np.zeros(len(own), dtype=np.int32)
            for begin, end in each.spans:
                learned[inside & (at[:, 1] > begin) & (at[:, 0] < end)] = 1
                learned[inside & (at[:, 1] > begin) & (at[:, 0] < begin)] = JOINED
            if not is_chat and learned.any():  # what the tokenizer itself puts at the end
                learned[len(own) - int(inside[::-1].argmax()) :] = 1
            if ends_with is not None and (not own or own[-1] != ends_with):
                own, learned = [*own, ends_with], np.append(learned, 1)
            ids.append(np.asarray(own, dtype=np.int32))
            marks.append(learned.astype(np.int32))
        return [*ids, *marks]

    found = cached(digest.hexdigest()[:32], 2 * len(marked), make)
    return [*zip(found[: len(marked)], found[len(marked) :], strict=True)]
