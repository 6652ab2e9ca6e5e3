"""sentencepiece models, by sentencepiece's own library; the tokenizer.json holds the model whole."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from hotloop.core.errors import UsageError, importing
from hotloop.data.tokenizer_library import bpe_json, merges_of

SENTENCEPIECE = "sentencepiece"
"""Type of the `model` in a tokenizer.json."""
MODEL_FILE = "tokenizer.model"


_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Types of pieces in sentencepiece_model.proto."""
_BPE = 2


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
    with importing("sentencepiece", "the package sentencepiece is not installed", where=where):
        import sentencepiece
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
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(proto)
    pieces, prefix = model.pieces, model.normalizer_spec.add_dummy_prefix
    reason = _reason_not_converted(model)
    if reason:
        raise ValueError(f"of sentencepiece's models, those {reason} are not converted")
    ranked = sorted((p for p in pieces if p.type == _NORMAL), key=lambda piece: -piece.score)
    ids = {piece.piece: number for number, piece in enumerate(pieces)}
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
        merges_of({piece.piece: rank for rank, piece in enumerate(ranked)}),
        special=[(p.piece, ids[p.piece]) for p in pieces if p.type in (_UNKNOWN, _CONTROL)],
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        unk_token=next((piece.piece for piece in pieces if piece.type == _UNKNOWN), None),
        fuse_unk=True,
        byte_fallback=True,
    )


def _reason_not_converted(model: Any) -> str | None:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    kinds = [piece.type for piece in model.pieces]
    merged = [p.score for p in model.pieces if p.type == _NORMAL and len(p.piece) > 1]
    if trainer.model_type != _BPE:
        return "that are no BPE"
    if kinds.count(_BYTE) != 256:
        return "without byte fallback"
    if normalizer.precompiled_charsmap or normalizer.remove_extra_whitespaces:
        return "that change text (normalization, white space)"
    if not normalizer.escape_whitespaces or trainer.treat_whitespace_as_suffix:
        return "with spaces of their own kind"
    if {*kinds} - {_NORMAL, _UNKNOWN, _CONTROL, _BYTE}:
        return "with user defined or unused pieces"
    if len(set(merged)) < len(merged):
        return "with merges of the same score"
    return None
