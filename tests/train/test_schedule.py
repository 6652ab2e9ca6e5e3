from __future__ import annotations

import importlib.util
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from hotloop.core.config import RunConfig
from hotloop.core.idle_settings import without_effect
from hotloop.train.update import learning_rate


def config(**schedule: object) -> RunConfig:
    return RunConfig.model_validate(
        {"data": {"source": "x"}, "train": {"steps": 100}, "schedule": schedule}
    )


def test_warmup_rises_to_the_highest_rate() -> None:
    rates = [learning_rate(config(warmup_steps=10), step) for step in range(11)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == rates[10] == pytest.approx(1e-3)
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("asked", "rate"),
    [
        ({}, 1e-3),
        ({"rate_for_batch": 8}, 4e-3),
        ({"rate_for_batch": 8, "rate_scaling": "sqrt"}, 2e-3),
        ({"rate_for_batch": 64}, 5e-4),
    ],
)
def test_rate_follows_the_batch_only_where_it_is_asked_to(
    asked: dict[str, object], rate: float
) -> None:
    sections = {"train": {"microbatch": 16, "grad_accum_steps": 2}, "optimizer": asked}
    chosen = RunConfig.model_validate({"data": {"source": "x"}, **sections})
    assert learning_rate(chosen, chosen.schedule.warmup_steps) == pytest.approx(rate)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_decay_ends_at_the_final_fraction(name: str) -> None:
    chosen = config(name=name, warmup_steps=10, final_fraction=0.2)
    assert learning_rate(chosen, 10) == pytest.approx(1e-3)
    assert learning_rate(chosen, 99) == pytest.approx(2e-4)
    middle = (learning_rate(chosen, 54) + learning_rate(chosen, 55)) / 2
    assert middle == pytest.approx(6e-4)


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


def test_wsd_stays_until_the_decay_and_falls_by_the_square_root() -> None:
    chosen = config(name="wsd", warmup_steps=10, decay_fraction=0.4, final_fraction=0.0)
    assert {learning_rate(chosen, step) for step in range(9, 60)} == {1e-3}
    assert learning_rate(chosen, 60) < 1e-3
    assert learning_rate(chosen, 69) == pytest.approx(1e-3 * (1 - 0.5))  # a quarter of the decay
    assert learning_rate(chosen, 99) == pytest.approx(0.0)
    assert learning_rate(config(name="wsd", warmup_steps=0), 99) == pytest.approx(1e-4)


@pytest.mark.parametrize("steps", [2, 3, 7, 20, 40, 1000])
@pytest.mark.parametrize("name", ["cosine", "linear", "wsd", "onecycle"])
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_the_last_step_has_the_final_rate(name: str, steps: int, final: float) -> None:
    for warmup in {0, 1, steps // 2, steps - 1}:
        values = {"name": name, "warmup_steps": warmup, "final_fraction": final}
        if name == "wsd":
            values["decay_fraction"] = min(0.5, 1 - warmup / steps) or 1
        chosen = RunConfig.model_validate(
            {"data": {"source": "x"}, "train": {"steps": steps}, "schedule": values}
        )
        assert learning_rate(chosen, steps - 1) == pytest.approx(1e-3 * final, abs=1e-15)
        rates = [learning_rate(chosen, step) for step in range(steps)]
        assert max(rates) <= 1e-3 * (1 + 1e-12)
        if warmup > 1 or (warmup == 1 and steps > 2):
            assert max(rates[:-1], default=1e-3) == pytest.approx(1e-3)


def test_a_decay_without_a_step_is_refused() -> None:
    with pytest.raises(ValidationError, match="is no step"):
        config(name="wsd", warmup_steps=10, decay_fraction=0.004)
    config(name="wsd", warmup_steps=10, decay_fraction=0.01)


@pytest.mark.parametrize("steps", [10, 37, 100, 1000])
@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.9])
def test_onecycle_is_that_of_torch_point_by_point(steps: int, part: float) -> None:
    warmup = max(2, round(part * steps))
    chosen = RunConfig.model_validate(
        {
            "data": {"source": "x"},
            "train": {"steps": steps},
            "schedule": {
                "name": "onecycle",
                "warmup_steps": warmup,
                "initial_fraction": 0.04,
                "final_fraction": 4e-6,
            },
        }
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-3, total_steps=steps, pct_start=warmup / steps, cycle_momentum=False
    )
    for step in range(steps):
        assert learning_rate(chosen, step) == pytest.approx(
            optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15
        ), step
        optimizer.step()
        if step < steps - 1:
            theirs.step()


@pytest.mark.parametrize("name", ["cosine", "linear", "constant", "wsd", "onecycle"])
def test_no_schedule_exceeds_the_highest_rate_or_falls_below_the_final(name: str) -> None:
    chosen = config(name=name, warmup_steps=20)
    rates = [learning_rate(chosen, step) for step in range(100)]
    assert max(rates) == pytest.approx(1e-3)
    assert min(rates[20:]) >= 1e-4 * (1 - 1e-9)
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_warmup_that_reaches_into_the_decay_is_refused() -> None:
    with pytest.raises(ValidationError, match="reaches into the decay"):
        config(name="wsd", warmup_steps=81)
    config(name="wsd", warmup_steps=80)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "schedule.decay_fraction"),
        ({"schedule.name": "wsd"}, "schedule.initial_fraction"),
        (
            {"schedule.name": "onecycle", "schedule.warmup_steps": 0},
            "schedule.initial_fraction",
        ),
        ({"schedule.name": "constant"}, "schedule.final_fraction"),
        ({}, "optimizer.momentum"),
        ({}, "optimizer.nesterov"),
        ({"optimizer.name": "sgd"}, "optimizer.beta2"),
    ],
)
def test_a_setting_that_does_nothing_is_named(changes: dict[str, object], key: str) -> None:
    found = without_effect(config(warmup_steps=10).replaced(changes), {key})
    assert found is not None
    assert found[0] == key


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"schedule.name": "wsd"}, "schedule.decay_fraction"),
        ({"schedule.name": "onecycle"}, "schedule.initial_fraction"),
        ({"optimizer.name": "muon"}, "optimizer.momentum"),
        ({"optimizer.name": "muon"}, "optimizer.beta1"),
        ({"optimizer.name": "sgd"}, "optimizer.nesterov"),
    ],
)
def test_a_setting_that_does_something_is_not(changes: dict[str, object], key: str) -> None:
    assert without_effect(config(warmup_steps=10).replaced(changes), {key}) is None
