"""tiktoken's encodings: tiktoken defines the ids, and a tokenizer.json with the same ids is made of it.

The tokenizer.json holds all that the encoding is made of, so that tiktoken can be asked again from
it alone. Without tiktoken the `tokenizers` library reads the same file.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import UsageError, first_line, importing
from hotloop.data.tokenizer_library import BYTE_NAMES, Tokenizers, bpe_json, merges_of

if TYPE_CHECKING:
    import tiktoken

TIKTOKEN = "tiktoken"
"""Key of the encoding in a tokenizer.json's `decoder`: there every reader passes over it."""
PREFIX = "tiktoken:"
MOST_UNUSED = 4096
DOWNLOAD_S = 60.0
"""For the file of an encoding, after which its server is given up."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SAME = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": _GPT2,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": _GPT2,
}
"""tiktoken writes patterns for speed; engines know GPT-2's as it was published first.

cl100k_base's is not here: tiktoken 0.14 takes white space at the end of a text whole, line ends
included, which the published one does not.
"""
_ATOM = r"\\[pP]\{\^?\w+\}|\\.|\[(?:\\.|[^\]\\])*\]"


class Tiktoken(Tokenizers):
    """tiktoken where it is installed; `converted` is what everyone else makes of the tokenizer.json."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        super().__init__(values, where)
        kept = values["decoder"][TIKTOKEN]
        try:
            special = {str(name): int(number) for name, number in kept["special_tokens"].items()}
            self.name, pattern = str(kept["name"]), str(kept["pattern"])
            others = {*special, *kept["unused"]}
            ranks = {
                bytes(map(_BYTES.__getitem__, name)): int(number)
                for name, number in values["model"]["vocab"].items()
                if name not in others
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"not a tokenizer: its `decoder.{TIKTOKEN}` is damaged", where=where
            ) from error
        self._where = where
        self._encoding: tiktoken.Encoding | None = None
        try:
            import tiktoken
        except ImportError:
            return
        try:
            self._encoding = tiktoken.Encoding(
                self.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
            )
        except Exception as error:
            raise UsageError(
                f"tiktoken does not take it: {first_line(error)}", where=where
            ) from error
        self.package = "tiktoken"

    @property
    def is_installed(self) -> bool:
        return self._encoding is not None

    def encode(self, text: str) -> list[int]:
        if self._encoding is None:
            return super().encode(text)
        try:
            return list(self._encoding.encode_ordinary(text))
        except BaseException as error:  # its panics are no Exception
            raise self._failed(error) from error

    def encode_batch(self, texts: Sequence[str], *, threads: int) -> list[list[int]]:
        if self._encoding is None:
            return super().encode_batch(texts, threads=threads)
        if threads == 1 or len(texts) == 1:
            return [self.encode(text) for text in texts]
        try:
            return list(self._encoding.encode_ordinary_batch(list(texts), num_threads=threads))
        except BaseException as error:
            raise self._failed(error) from error

    def converted(self, text: str) -> list[int]:
        """Ids of the `tokenizers` library."""
        return super().encode(text)

    def _failed(self, error: BaseException) -> BaseException:
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            return error
        return UsageError(
            f"tiktoken cannot encode a text: {first_line(error)[:200]}",
            where=self._where,
            do="it fails on very long runs of white space: leave such documents out, or cut them",
        )


def tiktoken_json(name: str) -> str:
    """The tokenizer.json of an encoding by its name. Raises `UsageError`."""
    return json.dumps(description_of(_encoding(name)), ensure_ascii=False)


def _encoding(name: str) -> tiktoken.Encoding:
    where = f"tokenizer {PREFIX}{name}"
    with importing("tiktoken", "the package tiktoken is not installed", where=where):
        import tiktoken
    try:
        known = tiktoken.list_encoding_names()
    except Exception as error:  # whatever a plugin does
        raise UsageError(f"tiktoken cannot list its encodings: {error}", where=where) from error
    if name not in known:
        do = f"choose one of {', '.join(sorted(known))}"
        raise UsageError(f"tiktoken has no encoding {name!r}", where=where, do=do)
    found: list[tiktoken.Encoding | BaseException] = []

    def get() -> None:
        try:
            found.append(tiktoken.get_encoding(name))
        except BaseException as error:  # noqa: BLE001 - said below
            found.append(error)

    # It downloads without a time limit: waited for in a thread that may be left behind.
    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    thread.join(DOWNLOAD_S)
    if found and not isinstance(found[0], BaseException):
        return found[0]
    reason = first_line(found[0]) if found else f"no answer within {DOWNLOAD_S:.0f} s"
    raise UsageError(
        f"tiktoken cannot load the encoding: {reason[:300]}",
        where=where,
        do="check the network, or set TIKTOKEN_CACHE_DIR to a directory that holds the file from a "
        "machine that has one; a tokenizer.json of the same encoding works without",
    )


def description_of(encoding: tiktoken.Encoding) -> dict[str, Any]:
    ranks: dict[bytes, int] = encoding._mergeable_ranks
    special: dict[str, int] = encoding._special_tokens
    pattern: str = encoding._pat_str
    vocabulary = {_name_of(token): rank for token, rank in ranks.items()}
    both = sorted(vocabulary.keys() & special.keys())
    missing = 256 - sum(bytes([byte]) in ranks for byte in range(256))
    if both or missing:
        why = f"{both[0]!r} is text and a special token" if both else f"{missing} bytes have no id"
        raise UsageError(
            f"the encoding cannot be written as a tokenizer.json: {why}",
            where=f"tokenizer {PREFIX}{encoding.name}",
        )
    unused = _unused({*ranks.values(), *special.values()})
    control = sorted({**special, **unused}.items(), key=lambda item: item[1])
    # With the special ones: elsewhere their ids would have to follow those of the text without a gap.
    everything = sorted([*vocabulary.items(), *control], key=lambda item: item[1])
    kept = {
        "name": encoding.name,
        "pattern": pattern,
        "special_tokens": special,
        "unused": list(unused),
    }
    return bpe_json(
        dict(everything),
        ((_name_of(left), _name_of(right)) for left, right in merges_of(ranks)),
        special=control,
        normalizer=None,
        pre_tokenizer=_pre_tokenizer(pattern),
        decoder={**_byte_level(use_regex=True), TIKTOKEN: kept},
        ignore_merges=True,  # tiktoken looks a piece up whole before it merges anything
    )


def _unused(taken: set[int]) -> dict[str, int]:
    """Names for the ids that are missing between others: fast engines take no gaps."""
    missing = [number for number in range(max(taken)) if number not in taken]
    if len(missing) > MOST_UNUSED:
        return {}
    return {f"<|hotloop unused {number}|>": number for number in missing}


def _pre_tokenizer(pattern: str) -> dict[str, Any]:
    same = _SAME.get(pattern, pattern)
    if same == _GPT2:
        return _byte_level(use_regex=True)
    split = {
        "type": "Split",
        "pattern": {"Regex": _other_dialect(same)},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _other_dialect(pattern: str) -> str:
    """A pattern of tiktoken's as the `tokenizers` library reads it.

    There `$` is the end of a line, and `{1,3}+` repeats instead of being possessive.
    """
    pattern = re.sub(rf"({_ATOM})|\$", lambda match: match[1] or r"\z", pattern)
    return re.sub(rf"({_ATOM}|[^\\()|])(\{{\d+(?:,\d*)?\}})\+", r"(?>\1\2)", pattern)


def _name_of(token: bytes) -> str:
    return "".join(BYTE_NAMES[byte] for byte in token)


_BYTES = {name: byte for byte, name in enumerate(BYTE_NAMES)}
