"""sentencepiece's BPE models as engines read them: a tokenizer.json with byte fallback.

Only models whose text goes into the merges as it is (but for spaces) are converted: Llama 2's and
Mistral's kind. A conversion is never what defines the ids: it has to agree with sentencepiece.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hotloop.data.merges import merges_of

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


def engine_json(proto: bytes) -> dict[str, Any]:
    """A tokenizer.json that should give the model's ids. Raises `ValueError` where none does."""
    pieces, trainer, normalizer = _parsed(proto)
    reason = _not_converted(pieces, trainer, normalizer)
    if reason:
        raise ValueError(f"of sentencepiece's models, those {reason} are not converted")
    ranked = sorted((p for p in pieces if p.kind == _NORMAL), key=lambda piece: -piece.score)
    ranks = {piece.name: rank for rank, piece in enumerate(ranked)}
    unknown = next((piece.name for piece in pieces if piece.kind == _UNKNOWN), None)
    spaces = [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    prefix = [{"type": "Prepend", "prepend": "\u2581"}] if normalizer.get(_DUMMY_PREFIX, 1) else []
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": piece.name, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for number, piece in enumerate(pieces)
            if piece.kind in (_UNKNOWN, _CONTROL)
        ],
        "normalizer": {"type": "Sequence", "normalizers": prefix + spaces},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece.name: number for number, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in merges_of(ranks)],
        },
    }


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
