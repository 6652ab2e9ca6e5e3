from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.config import RunConfig
from hotloop.tune.shapes import nearby_shapes


@pytest.mark.parametrize(
    ("model", "vocabulary", "near"),
    [
        ({"width": 384, "heads": 6}, 8192, {}),
        ({"width": 384, "heads": 8}, 8192, {"model.heads": 6}),  # 48 a head
        ({"width": 384, "heads": 24}, 8192, {"model.heads": 12}),  # 16
        ({"width": 384, "heads": 24, "kv_heads": 8}, 8192, {}),  # 12 heads do not share 8
        ({"width": 1000, "heads": 8}, None, {"model.width": 1024}),
        ({"width": 300, "heads": 6}, None, {}),  # 384 would be another model
        ({"width": 128, "heads": 8}, 50257, {}),  # it is small
        ({"width": 256, "heads": 4, "hidden": 1000}, 64, {"model.hidden": 1024}),
        ({"width": 256, "heads": 4}, 50257, {"model.pad_vocabulary_to": 64}),
        ({"width": 256, "heads": 4, "pad_vocabulary_to": 128}, 50257, {}),
    ],
)
def test_only_what_does_not_suit_has_a_neighbour_that_does(
    model: dict[str, Any], vocabulary: int | None, near: dict[str, int]
) -> None:
    config = RunConfig.model_validate({"data": {"source": "x"}, "model": model})
    assert nearby_shapes(config.flat(), vocabulary) == near
    config.replaced(near)  # can be had
