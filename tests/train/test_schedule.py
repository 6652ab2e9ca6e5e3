from __future__ import annotations

import importlib.util
from argparse import Namespace
from pathlib import Path

import pytest

from hotloop.core.config import RunConfig
from hotloop.train.schedule import learning_rate


def config(**schedule: object) -> RunConfig:
    return RunConfig.model_validate(
        {"data": {"source": "x"}, "train": {"steps": 100}, "schedule": schedule}
    )


def test_warmup_rises_to_the_highest_rate() -> None:
    rates = [learning_rate(config(warmup_steps=10), step) for step in range(11)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == rates[10] == pytest.approx(1e-3)
    assert rates == sorted(rates)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_decay_ends_at_the_final_fraction(name: str) -> None:
    chosen = config(name=name, warmup_steps=10, final_fraction=0.2)
    assert learning_rate(chosen, 100) == pytest.approx(2e-4)
    assert learning_rate(chosen, 55) == pytest.approx(6e-4)


def test_constant_stays() -> None:
    chosen = config(name="constant", warmup_steps=0)
    assert {learning_rate(chosen, step) for step in range(100)} == {1e-3}


def test_cosine_is_that_of_the_plain_script() -> None:
    path = Path(__file__).parents[2] / "examples/plain_gpt.py"
    spec = importlib.util.spec_from_file_location("plain_gpt", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    arguments = Namespace(lr=1e-3, warmup=10, schedule_steps=100)
    for step in range(100):
        assert learning_rate(config(warmup_steps=10), step) == pytest.approx(
            script.learning_rate(step, arguments), rel=1e-12
        )
