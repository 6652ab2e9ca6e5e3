"""Text to ids and back: one wrapper over the libraries that define them, for every kind of tokenizer.

A text is never read as control: a document that contains `<|endoftext|>` literally is encoded as
those characters, and truncation, padding and dropout that a tokenizer.json may carry are turned off.

"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError, first_line
from hotloop.core.files import write_atomically
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.data.sentencepiece_model import (
    MODEL_FILE,
    SENTENCEPIECE,
    SentencePiece,
    sentencepiece_json,
)
from hotloop.data.tiktoken_encoding import PREFIX, TIKTOKEN, Tiktoken, tiktoken_json
from hotloop.data.tokenizer_library import BYTE_NAMES, Tokenizers

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_NAMES = (
    END_OF_TEXT,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eot_id|>",
    "<|im_end|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[SEP]",
)
"""Names looked for, in this order, to end a document with."""


class Tokenizer:
    """An immutable tokenizer. Ids are ints in `range(vocabulary_size)`."""

    def __init__(self, description: str, *, where: str, end_of_text: str | None = None) -> None:
        """From the text of a tokenizer.json; `where` names it in errors. Raises `UsageError`.

        `end_of_text` names the token that ends a document; `None`: the first of the usual names.
        """
        values = _parsed(description, where)
        values["truncation"] = values["padding"] = None
        if isinstance(values["model"], dict) and values["model"].get("dropout"):
            values["model"]["dropout"] = None  # for training; it gives other ids at every call
        self.library = _library_of(values, where)
        """Defines the ids."""
        self._values = values
        ids = self.library.ids
        if not ids:
            raise UsageError("the tokenizer has no vocabulary", where=where)
        found = _end_of_text(values, ids, end_of_text)
        if end_of_text is None and found is not None and self.library.is_text(found):
            found = None  # what a document may hold must not end it
        if found is None:
            raise _no_end_of_text(values, ids, where, end_of_text)
        self.unknown: int | None = self.library.unknown
        """Id that stands for what the vocabulary cannot spell, where there is such a one."""
        self.end_of_text: int = found
        """Id that ends every document."""
        self.vocabulary_size: int = max(ids.values()) + 1
        """One more than the highest id (ids may have gaps)."""
        self.special_tokens: tuple[str, ...] = tuple(
            str(token["content"])
            for token in values.get("added_tokens") or []
            if token.get("special")
        )

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the canonical tokenizer.json; the same for the same file on every version."""
        return _fingerprint(self._values)

    @classmethod
    def load(cls, path: Path, *, end_of_text: str | None = None) -> Tokenizer:
        """From a tokenizer.json, or a directory that holds one. Raises `UsageError`."""
        path = path / "tokenizer.json" if path.is_dir() else path
        return cls(read_text(path), where=str(path), end_of_text=end_of_text)

    def save(self, path: Path) -> None:
        """Write a tokenizer.json, atomically. Raises `EnvironmentFailed`."""
        write_atomically(path, self.to_json())

    def to_json(self) -> bytes:
        return written_form(self._values)

    def for_engines(self) -> dict[str, Any]:
        """A tokenizer.json of the `tokenizers` library's kind, parsed. It is to be proven, not believed.

        Raises `ValueError` where there is none.
        """
        return {**(self.library.for_engines() or self._values)}

    def encode(self, text: str) -> list[int]:
        """Ids of one text, without special tokens."""
        return self.library.encode(text)

    def encode_batch(self, texts: Sequence[str], *, threads: int = 1) -> list[list[int]]:
        """Ids of each text. The `tokenizers` library uses the threads it has, whatever is asked."""
        return self.library.encode_batch(texts, threads=threads)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; special tokens give no text, broken characters give U+FFFD."""
        return self.library.decode([int(i) for i in ids])


def _library_of(values: dict[str, Any], where: str) -> Tokenizers | SentencePiece:
    model, decoder = values["model"], values.get("decoder")
    if isinstance(model, dict) and model.get("type") == SENTENCEPIECE:
        return SentencePiece(values, where)
    if isinstance(decoder, dict) and TIKTOKEN in decoder:
        return Tiktoken(values, where)
    return Tokenizers(values, where)


def _end_of_text(values: dict[str, Any], ids: dict[str, int], wanted: str | None) -> int | None:
    """Id of the token that ends a text. One that was asked for is marked in `values`, to be found again."""
    added = values.setdefault("added_tokens", [])
    marked = next((token["content"] for token in added if token.get("end_of_text")), None)
    usual = next((name for name in (marked, *END_OF_TEXT_NAMES) if name in ids), None)
    if wanted is None or wanted == usual or wanted not in ids:
        return ids.get(usual) if wanted in (None, usual) and usual is not None else None
    for token in added:
        token.pop("end_of_text", None)
    entry = next((token for token in added if token["content"] == wanted), None)
    if entry is None:
        entry = {"id": ids[wanted], "content": wanted, "special": True}
        entry |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added.append(entry)
    entry["end_of_text"] = True
    return ids[wanted]


def _no_end_of_text(
    values: dict[str, Any], ids: dict[str, int], where: str, wanted: str | None
) -> UsageError:
    added = " ".join(str(token["content"]) for token in values.get("added_tokens") or [])
    have = f"its special tokens: {added}" if added else "it has no special tokens"
    missing = "end-of-text token" if wanted is None else f"token {wanted!r} to end a text with"
    return UsageError(
        f"the tokenizer has no {missing}",
        where=where,
        do=f"choose one of its tokens with --end-of-text NAME ({have[:400]}), or add one to its "
        "`added_tokens`; these names are found by themselves: " + " ".join(END_OF_TEXT_NAMES),
    )


def written_form(values: dict[str, Any]) -> bytes:
    """The bytes of a tokenizer.json that hotloop writes."""
    return (json.dumps(values, ensure_ascii=False, indent=1) + "\n").encode()


def fingerprint_of(path: Path) -> str:
    """Fingerprint of a tokenizer.json, without loading the tokenizer. Raises `UsageError`."""
    values = _parsed(read_text(path), str(path))
    values["truncation"] = values["padding"] = None
    return _fingerprint(values)


def byte_tokenizer() -> Tokenizer:
    """Id of a byte = the byte; 256 ends a text."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    model = models.BPE(vocab={BYTE_NAMES[byte]: byte for byte in range(256)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return Tokenizer(tokenizer.to_str(), where="tokenizer bytes")


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Byte-level BPE with GPT-2's splitting; at most `size` ids, fewer where text is short.

    The same texts give the same tokenizer, byte for byte.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(BYTE_NAMES),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Tokenizer(tokenizer.to_str(), where=f"tokenizer train:{size}")


def read_tokenizer(path: Path) -> bytes:
    """The content of a tokenizer's file. Raises `UsageError`."""
    try:
        return read_bytes(path)
    except FileNotFoundError as error:
        do = "name a tokenizer.json, or a directory that holds one"
        raise UsageError("no such tokenizer file", where=str(path), do=do) from error
    except OSError as error:
        raise UsageError(f"cannot read the tokenizer: {error.strerror}", where=str(path)) from error


def read_text(path: Path) -> str:
    """The text of a tokenizer.json. Raises `UsageError`."""
    try:
        return read_tokenizer(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("the tokenizer file is not UTF-8 text", where=str(path)) from error


def _parsed(description: str, where: str) -> dict[str, Any]:
    try:
        values = parse_object(description)
    except ValueError as error:
        raise UsageError(f"not a tokenizer: not valid JSON: {error}", where=where) from error
    if "model" not in values:
        raise UsageError("not a tokenizer: no `model` in it", where=where)
    return values


def _fingerprint(values: dict[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


MIN_TRAINED = 257
MAX_TRAINED = 1_000_000
_KINDS = (
    "train:N, bytes, a tokenizer.json, tiktoken:NAME, a sentencepiece .model, or a name on the "
    "Hugging Face hub"
)


def trained_size(spec: str) -> int | None:
    """N of `train:N`, `None` for other specs. Raises `UsageError` for a bad N."""
    if not spec.startswith("train:"):
        return None
    number = spec.removeprefix("train:")
    if not re.fullmatch(r"[0-9]{1,9}", number) or not MIN_TRAINED <= int(number) <= MAX_TRAINED:
        raise UsageError(
            f"cannot train a tokenizer of {number!r} ids",
            where=f"tokenizer {spec}",
            do=f"give a number from {MIN_TRAINED} (256 bytes and the end of text) to {MAX_TRAINED}",
        )
    return int(number)


def load_tokenizer(spec: str, *, end_of_text: str | None = None) -> Tokenizer:
    """The tokenizer of a spec that needs no training. Raises `UsageError`."""
    if spec == "bytes":
        return byte_tokenizer()
    if spec.startswith(PREFIX):
        content = tiktoken_json(spec.removeprefix(PREFIX))
        return Tokenizer(content, where=f"tokenizer {spec}", end_of_text=end_of_text)
    path = Path(spec).expanduser()
    is_path = path.exists() or spec.endswith((".json", ".model"))
    if is_path or spec.startswith(("/", "./", "../", "~")):
        path = tokenizer_file(path)
        if path.suffix != ".model":
            return Tokenizer.load(path, end_of_text=end_of_text)
        content = sentencepiece_json(read_tokenizer(path), str(path))
        return Tokenizer(content, where=str(path), end_of_text=end_of_text)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", spec):
        raise UsageError(f"no tokenizer {spec!r}", do=f"give {_KINDS}")
    return Tokenizer(_from_hub(spec), where=f"tokenizer {spec}", end_of_text=end_of_text)


def tokenizer_file(path: Path) -> Path:
    """The file that a path names: of a directory its tokenizer.json, or else its tokenizer.model."""
    if not path.is_dir():
        return path
    own, model = path / "tokenizer.json", path / MODEL_FILE
    return model if model.exists() and not own.exists() else own


def _from_hub(name: str) -> str:
    """The tokenizer.json of a name on the hub: the copy in the hub's own cache if there is one."""
    import socket
    import urllib.parse
    import urllib.request

    import huggingface_hub  # comes with tokenizers
    import tokenizers

    kept = huggingface_hub.try_to_load_from_cache(name, "tokenizer.json")
    if isinstance(kept, str):
        return read_text(Path(kept))
    try:
        if not urllib.request.getproxies():
            # Without this the hub's client retries for half a minute on a machine without network.
            host = urllib.parse.urlsplit(huggingface_hub.constants.ENDPOINT).hostname
            socket.getaddrinfo(host, 443)
        return str(tokenizers.Tokenizer.from_pretrained(name).to_str())
    except Exception as error:  # network, authentication, missing file: one answer for all
        reason = first_line(error)[:200]
        raise UsageError(
            f"cannot get the tokenizer from the Hugging Face hub: {reason}",
            where=f"tokenizer {name}",
            do=f"check the name and the network, or give {_KINDS}",
        ) from error
