"""sentencepiece models, by sentencepiece's own library; the tokenizer.json holds the model whole."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.data.sentencepiece_bpe import engine_json

SENTENCEPIECE = "sentencepiece"
"""Type of the `model` in a tokenizer.json."""
MODEL_FILE = "tokenizer.model"


class SentencePiece:
    """Control symbols are never read out of text; symbols that the model's maker defined are text."""

    package = "sentencepiece"

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._proto = _proto_of(values, where)
        self._model = _processor(self._proto, where)
        self.ids = {
            self._model.id_to_piece(number): number for number in range(self._model.piece_size())
        }
        unknown = int(self._model.unk_id())
        self.unknown: int | None = unknown if unknown >= 0 else None

    def encode(self, text: str) -> list[int]:
        return list(self._model.encode(text, out_type=int))

    def encode_batch(self, texts: Sequence[str], *, threads: int) -> list[list[int]]:
        return list(self._model.encode(list(texts), out_type=int, num_threads=threads))

    def decode(self, ids: list[int]) -> str:
        # A model may have more ids than its tokenizer.
        known = [number for number in ids if 0 <= number < self._model.piece_size()]
        return str(self._model.decode(known))

    def for_engines(self) -> dict[str, Any] | None:
        return engine_json(self._proto)

    def is_text(self, token: int) -> bool:
        return not self._model.is_control(token)


def sentencepiece_file(path: Path) -> bytes:
    """The bytes of a model file. Raises `UsageError`."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(
            "no such tokenizer file",
            where=str(path),
            do="name a tokenizer.json, or a directory that holds one",
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read the tokenizer: {error.strerror}", where=str(path)) from error


def sentencepiece_json(proto: bytes, where: str) -> str:
    """The tokenizer.json that holds a model file. Raises `UsageError`."""
    model = _processor(proto, where)
    added = [
        {
            "id": number,
            "content": model.id_to_piece(number),
            "special": True,
            **({"end_of_text": True} if number == model.eos_id() else {}),
        }
        for number in range(model.piece_size())
        if model.is_control(number)
    ]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "model": {"type": SENTENCEPIECE, "proto": base64.b64encode(proto).decode()},
        },
        ensure_ascii=False,
    )


def _proto_of(values: dict[str, Any], where: str) -> bytes:
    """The model file in a parsed tokenizer.json. Raises `UsageError`."""
    try:
        return base64.b64decode(values["model"]["proto"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise UsageError(
            "not a tokenizer: its sentencepiece model is damaged", where=where
        ) from error


def _processor(proto: bytes, where: str) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise UsageError(
            "the package sentencepiece is not installed",
            where=where,
            do="pip install 'hotloop[sentencepiece]'",
        ) from error
    refused = UsageError(
        "not a sentencepiece model",
        where=where,
        do="if it is a list of tiktoken's ranks, give the model's tokenizer.json instead",
    )
    if not proto:  # which the library takes, to fail at every call
        raise refused
    try:
        model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except (RuntimeError, OSError, ValueError) as error:
        raise refused from error
    if not model.piece_size():
        raise refused
    return model
