from __future__ import annotations

import pytest
from pydantic import ValidationError

from hotloop.core.config import RunConfig
from hotloop.core.idle_settings import without_effect
from hotloop.core.model_config import ModelConfig, Parts


def test_a_family_is_a_preset_and_every_part_can_be_another() -> None:
    assert ModelConfig().parts == Parts("layernorm", "learned", "gelu", True, True)
    assert ModelConfig(family="llama").parts == Parts("rmsnorm", "rotary", "swiglu", False, False)
    mixed = ModelConfig(family="llama", mlp="relu2", tied=True, bias=True)
    assert mixed.parts == Parts("rmsnorm", "rotary", "relu2", True, True)


def test_feed_forward_has_about_as_many_weights_with_a_gate_as_without() -> None:
    assert ModelConfig(width=384).inner_width == 4 * 384
    assert ModelConfig(width=384, family="llama").inner_width == 1024
    assert ModelConfig(width=64, heads=4, family="llama").inner_width == 192
    assert ModelConfig(hidden=100, family="llama").inner_width == 100


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"kv_heads": 4}, "`kv_heads` 4"),
        ({"kv_heads": 12}, "`kv_heads` 12"),
        ({"positions": "rotary", "width": 30, "heads": 6}, "even head width"),
        ({"width": 100}, "not a multiple"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, object], word: str
) -> None:
    with pytest.raises(ValidationError, match=word):
        ModelConfig.model_validate(settings)


def test_base_of_rotary_positions_needs_rotary_positions() -> None:
    config = RunConfig.model_validate({"data": {"source": "x"}})
    assert without_effect(config, {"model.rotary_theta"}) == (
        "model.rotary_theta",
        "set `model.positions: rotary`, or remove it",
    )
    llama = config.replaced({"model.family": "llama"})
    assert without_effect(llama, {"model.rotary_theta"}) is None


@pytest.mark.parametrize(
    ("given", "key", "idle_for"),
    [
        ({"name": "none"}, "averaging.decay", True),
        ({"name": "tail"}, "averaging.decay", True),
        ({"name": "ema"}, "averaging.decay", False),
        ({"name": "none"}, "averaging.start_fraction", True),
        ({"name": "none"}, "averaging.every_steps", True),
        ({"name": "tail"}, "averaging.every_steps", False),
    ],
)
def test_settings_of_averaging_need_averaging(
    given: dict[str, str], key: str, idle_for: bool
) -> None:
    config = RunConfig.model_validate({"data": {"source": "x"}, "averaging": given})
    found = without_effect(config, {key})
    assert (found is not None) == idle_for
    assert found is None or found[0] == key
