"""Shapes near a model's own that suit the units that multiply: measured beside it, never kept unless they are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

UNIT = 64
"""Rows and columns of which the kernels for bf16 of CPUs and GPUs make their tiles, or a multiple of that."""
HEADS = (32, 64, 128)
"""Head widths that kernels of attention are made for."""
NEAR = 1.15
"""Times wider at most: beyond it is another model."""
LEAST_WIDTH = 4 * UNIT
"""Of smaller models the products are not what takes time."""


def nearby_shapes(config: Mapping[str, Any], vocabulary: int | None) -> dict[str, Any]:
    """Key -> a value that suits, of each part of a resolved flat config that does not. vocabulary: `None` where nobody knows it."""
    width, heads, kv_heads = (config[f"model.{name}"] for name in ("width", "heads", "kv_heads"))
    found: dict[str, Any] = {}
    if width < LEAST_WIDTH:
        return found
    suits = [
        width // each
        for each in sorted(HEADS, key=lambda each: abs(math.log(each * heads / width)))
        if width % each == 0 and width // each % (kv_heads or 1) == 0
    ]
    if (width // heads) % HEADS[0] and suits:
        found["model.heads"] = suits[0]
    wider = _up(width, math.lcm(UNIT, 2 * heads))
    if width % UNIT and wider <= NEAR * width:
        found["model.width"] = wider
    hidden = config["model.hidden"]
    if hidden and hidden % UNIT and _up(hidden, UNIT) <= NEAR * hidden:
        found["model.hidden"] = _up(hidden, UNIT)
    if vocabulary and _up(vocabulary, config["model.pad_vocabulary_to"]) % UNIT:
        found["model.pad_vocabulary_to"] = UNIT
    return found


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
