"""gigatoken: byte-level and byte-fallback BPE, the fastest of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop.data.engines.engine import EngineRefused
from hotloop.data.engines.fast_tokens import first_line
from hotloop.data.tokenizer import Tokenizer


class GigaToken:
    name = "gigatoken"
    # A call costs a millisecond, in Python, before it begins.
    batch_bytes = 8 << 20

    def __init__(self, encoder: Any, *, parallel: bool) -> None:
        self._encoder = encoder
        self._parallel = parallel

    def encode(
        self, texts: Sequence[str], contents: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        layout = self._encoder.encode_batch(list(contents), parallel=self._parallel).layout
        offsets = np.asarray(layout.offsets.data)
        # A list array need not begin at the start of its content.
        return np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets)


def values_for(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json as it has to read it. Raises `ValueError` where there is none.

    It takes every added token as control; without the special ones it reads them as text.
    """
    values = tokenizer.for_engines()
    values["added_tokens"] = [
        token for token in values.get("added_tokens") or [] if not token.get("special")
    ]
    return values


def load(tokenizer: Tokenizer, threads: int) -> GigaToken:
    try:
        import awkward  # noqa: F401 - what gigatoken's arrays are
        import gigatoken
    except ImportError as error:
        raise EngineRefused("not installed (pip install 'hotloop[fast]')") from error
    try:
        description = json.dumps(values_for(tokenizer), ensure_ascii=False)
        encoder = gigatoken.Tokenizer.from_json(description).backend
    except Exception as error:
        raise EngineRefused(f"does not take this tokenizer: {first_line(error)}") from error
    return GigaToken(encoder, parallel=threads > 1)
