"""Text to ids and back: one wrapper over the `tokenizers` library for every kind of tokenizer.

A text is never read as control: a document that contains `<|endoftext|>` literally is encoded as
those characters, and truncation and padding that a tokenizer.json may carry are turned off.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.files import write_atomically

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
MIN_TRAINED = 257
MAX_TRAINED = 1_000_000


class Tokenizer:
    """An immutable tokenizer. Ids are ints in `range(vocabulary_size)`."""

    def __init__(self, description: str, *, where: str, end_of_text: str | None = None) -> None:
        """From the text of a tokenizer.json; `where` names it in errors. Raises `UsageError`.

        `end_of_text` names the token that ends a document; `None`: the first of the usual names.
        """
        import tokenizers

        values = _parsed(description, where)
        values["truncation"] = values["padding"] = None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(values))
        except Exception as error:  # the library raises bare Exception
            raise UsageError(f"not a tokenizer: {error}", where=where) from error
        self._tokenizer.encode_special_tokens = True
        self._values = values
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise UsageError("the tokenizer has no vocabulary", where=where)
        found = _end_of_text(values, ids, end_of_text)
        if found is None:
            raise _no_end_of_text(values, ids, where, end_of_text)
        self.end_of_text: int = found
        """Id that ends every document."""
        self.vocabulary_size: int = max(ids.values()) + 1
        """One more than the highest id (ids may have gaps)."""
        self.special_tokens: tuple[str, ...] = tuple(
            str(token["content"])
            for token in values.get("added_tokens") or []
            if token.get("special")
        )
        self.fingerprint: str = _fingerprint(values)
        """sha256 of the canonical tokenizer.json; the same for the same file on every version."""

    @classmethod
    def load(cls, path: Path, *, end_of_text: str | None = None) -> Tokenizer:
        """From a tokenizer.json, or a directory that holds one. Raises `UsageError`."""
        path = path / "tokenizer.json" if path.is_dir() else path
        return cls(_read(path), where=str(path), end_of_text=end_of_text)

    def save(self, path: Path) -> None:
        """Write a tokenizer.json, atomically. Raises `EnvironmentFailed`."""
        write_atomically(path, self.to_json())

    def to_json(self) -> bytes:
        return (json.dumps(self._values, ensure_ascii=False, indent=1) + "\n").encode()

    def encode(self, text: str) -> list[int]:
        """Ids of one text, without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, over the library's own threads."""
        batch = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; special tokens give no text, broken characters give U+FFFD."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))


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
    if wanted is not None:
        return UsageError(
            f"the tokenizer has no token {wanted!r} to end a text with",
            where=where,
            do=f"choose another with --end-of-text; {have[:400]}",
        )
    return UsageError(
        "the tokenizer has no end-of-text token",
        where=where,
        do=f"choose one of its tokens with --end-of-text NAME ({have[:400]}), or add one to its "
        "`added_tokens`; these names are found by themselves: " + " ".join(END_OF_TEXT_NAMES),
    )


def fingerprint_of(path: Path) -> str:
    """Fingerprint of a tokenizer.json, without loading the tokenizer. Raises `UsageError`."""
    values = _parsed(_read(path), str(path))
    values["truncation"] = values["padding"] = None
    return _fingerprint(values)


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
    """The tokenizer of a spec that needs no training: `bytes`, a path, or a name on the hub."""
    if spec == "bytes":
        return byte_tokenizer()
    path = Path(spec).expanduser()
    if path.exists() or spec.endswith(".json") or spec.startswith(("/", "./", "../", "~")):
        return Tokenizer.load(path, end_of_text=end_of_text)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", spec):
        raise UsageError(
            f"no tokenizer {spec!r}",
            do="give train:N, bytes, a tokenizer.json, or a name on the Hugging Face hub",
        )
    return Tokenizer(_from_hub(spec), where=f"tokenizer {spec}", end_of_text=end_of_text)


def _from_hub(name: str) -> str:
    """The tokenizer.json of a name on the hub: the copy in the hub's own cache if there is one."""
    import socket
    import urllib.parse
    import urllib.request

    import huggingface_hub  # comes with tokenizers
    import tokenizers

    kept = huggingface_hub.try_to_load_from_cache(name, "tokenizer.json")
    if isinstance(kept, str):
        return _read(Path(kept))
    try:
        if not urllib.request.getproxies():
            # Without this the hub's client retries for half a minute on a machine without network.
            host = urllib.parse.urlsplit(huggingface_hub.constants.ENDPOINT).hostname
            socket.getaddrinfo(host, 443)
        return str(tokenizers.Tokenizer.from_pretrained(name).to_str())
    except Exception as error:  # network, authentication, missing file: one answer for all
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UsageError(
            f"cannot get the tokenizer from the Hugging Face hub: {reason}",
            where=f"tokenizer {name}",
            do="check the name and the network, or give train:N, bytes or a tokenizer.json",
        ) from error


def byte_tokenizer() -> Tokenizer:
    """Id of a byte = the byte; 256 ends a text."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    model = models.BPE(vocab={_BYTE_NAMES[byte]: byte for byte in range(256)}, merges=[])
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
        initial_alphabet=sorted(_BYTE_NAMES),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Tokenizer(tokenizer.to_str(), where=f"tokenizer train:{size}")


def _byte_names() -> list[str]:
    """GPT-2's printable stand-in for every byte, which byte-level vocabularies are written in."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_BYTE_NAMES = _byte_names()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError("no such tokenizer file", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError("the tokenizer file is not UTF-8 text", where=str(path)) from error
    except OSError as error:
        raise UsageError(f"cannot read the tokenizer: {error.strerror}", where=str(path)) from error


def _parsed(description: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(description)
    except ValueError as error:
        raise UsageError(f"not a tokenizer: not valid JSON: {error}", where=where) from error
    if not isinstance(values, dict) or "model" not in values:
        raise UsageError("not a tokenizer: no `model` in it", where=where)
    return values


def _fingerprint(values: dict[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
