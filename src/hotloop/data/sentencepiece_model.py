"""sentencepiece models, by sentencepiece's own library; the tokenizer.json holds the model whole."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.data.tokenizer_library import bpe_json, merges_of

SENTENCEPIECE = "sentencepiece"
"""Type of the `model` in a tokenizer.json."""
MODEL_FILE = "tokenizer.model"


# Numbers of fields and values in sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_BPE = 2
_MODEL_TYPE, _WHITESPACE_AS_SUFFIX = 3, 24
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVE_WHITESPACES, _ESCAPE_WHITESPACES = 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class _Piece:
    name: str
    score: float
    kind: int


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


def engine_json(proto: bytes) -> dict[str, Any]:
    """A model as engines read it: a tokenizer.json with byte fallback. Raises `ValueError` where none does.

    Only models whose text goes into the merges as it is (but for spaces) are converted: Llama 2's and
    Mistral's kind. A conversion never defines the ids: it has to agree with sentencepiece.
    """
    pieces, trainer, normalizer = _parsed(proto)
    reason = _not_converted(pieces, trainer, normalizer)
    if reason:
        raise ValueError(f"of sentencepiece's models, those {reason} are not converted")
    ranked = sorted((p for p in pieces if p.kind == _NORMAL), key=lambda piece: -piece.score)
    ids = {piece.name: number for number, piece in enumerate(pieces)}
    prefix = bool(normalizer.get(_DUMMY_PREFIX, 1))
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
    ]
    normalizers = [
        *([{"type": "Prepend", "prepend": "\u2581"}] if prefix else []),
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    return bpe_json(
        ids,
        merges_of({piece.name: rank for rank, piece in enumerate(ranked)}),
        special=[(p.name, ids[p.name]) for p in pieces if p.kind in (_UNKNOWN, _CONTROL)],
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        unk_token=next((piece.name for piece in pieces if piece.kind == _UNKNOWN), None),
        fuse_unk=True,
        byte_fallback=True,
    )


def _not_converted(
    pieces: list[_Piece], trainer: dict[int, Any], normalizer: dict[int, Any]
) -> str | None:
    merged = [piece.score for piece in pieces if piece.kind == _NORMAL and len(piece.name) > 1]
    if trainer.get(_MODEL_TYPE, 1) != _BPE:
        return "that are no BPE"
    if sum(piece.kind == _BYTE for piece in pieces) != 256:
        return "without byte fallback"
    if normalizer.get(_CHARACTER_MAP) or normalizer.get(_REMOVE_WHITESPACES, 1):
        return "that change text (normalization, white space)"
    if not normalizer.get(_ESCAPE_WHITESPACES, 1) or trainer.get(_WHITESPACE_AS_SUFFIX, 0):
        return "with spaces of their own kind"
    if any(piece.kind not in (_NORMAL, _UNKNOWN, _CONTROL, _BYTE) for piece in pieces):
        return "with user defined or unused pieces"
    if len(set(merged)) < len(merged):
        return "with merges of the same score"
    return None


def _parsed(proto: bytes) -> tuple[list[_Piece], dict[int, Any], dict[int, Any]]:
    pieces: list[_Piece] = []
    others: dict[int, dict[int, Any]] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in fields_of(proto):
        if number == _PIECES:
            piece = dict(fields_of(value))
            score = struct.unpack("<f", piece.get(2, bytes(4)))[0]
            pieces.append(_Piece(piece[1].decode(), score, piece.get(3, _NORMAL)))
        elif number in others:
            others[number] |= dict(fields_of(value))
    return pieces, others[_TRAINER], others[_NORMALIZER]


def fields_of(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of every field on the wire: an int, or bytes as they are. Raises `ValueError`."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(message):
            raise ValueError("a field is cut short")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise ValueError("a number is cut short")
