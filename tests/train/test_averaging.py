from __future__ import annotations

import dataclasses
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trainings import losses, weights

import warm_python
from hotloop.checkpoint import store
from hotloop.checkpoint.state import FILES
from hotloop.cli import main
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.train import loop
from hotloop.train.averaging import Average, first_update, load_average, updates_until
from hotloop.train.start import start
from hotloop.train.trained import load_trained

EMA = ("averaging.name=ema", "averaging.decay=0.9", "averaging.every_steps=1")
TAIL = ("averaging.name=tail", "averaging.start_fraction=0.5", "averaging.every_steps=2")


def config(steps: int = 10, **averaging: object) -> RunConfig:
    sections = {"train": {"steps": steps}, "schedule": {"warmup_steps": 0}}
    mean = {"every_steps": 1, **averaging}
    return RunConfig.model_validate({"data": {"source": "x"}, **sections, "averaging": mean})


def averaged(settings: RunConfig, history: list[torch.Tensor]) -> torch.Tensor:
    """The mean after a training whose weights were these after each step."""
    layer = nn.Linear(3, 2, bias=False)
    average = Average(settings, layer)
    for done, weight in enumerate(history, 1):
        with torch.no_grad():
            layer.weight.copy_(weight)
        average.update(done)
    return average.files()["average"]["weight"]


def walk(steps: int = 10) -> list[torch.Tensor]:
    return list(torch.randn(steps, 2, 3, generator=torch.Generator().manual_seed(0)))


def test_tail_is_the_plain_mean_of_the_end() -> None:
    history = walk()
    found = averaged(config(name="tail", start_fraction=0.6), history)
    assert torch.allclose(found, torch.stack(history[5:]).mean(0), atol=1e-6)
    every = averaged(config(name="tail", start_fraction=0.0, every_steps=3), history)
    # 10, 7, 4, 1 steps done: counted from the end, so that the last weights are among them
    assert torch.allclose(every, torch.stack(history[0::3]).mean(0), atol=1e-6)


@pytest.mark.parametrize("every", [1, 3])
def test_ema_weighs_by_age_and_forgets_where_it_started(every: int) -> None:
    history = walk()
    found = averaged(config(name="ema", decay=0.7, every_steps=every), history)
    ages = range(0, 10, every)
    shares = torch.tensor([0.7**age for age in ages])
    wanted = sum(
        share * history[9 - age] for age, share in zip(ages, shares / shares.sum(), strict=True)
    )
    assert torch.allclose(found, wanted, atol=1e-6)  # type: ignore[arg-type]


def test_where_it_begins_and_how_often_it_was_updated_follow_from_the_step() -> None:
    assert first_update(config(1000, name="tail")) == 800
    assert first_update(config(1000, name="ema")) == 1
    assert first_update(config(1000, name="tail", every_steps=7)) == 804
    assert first_update(config(10, name="tail", start_fraction=0.99)) == 10
    settings = config(20, name="tail", start_fraction=0.5, every_steps=4)
    assert [updates_until(settings, done) for done in (0, 11, 12, 15, 16, 20)] == [0, 0, 1, 1, 2, 3]
    assert first_update(config(5, name="ema", every_steps=100)) == 5  # the last step always is one


def test_model_computes_with_the_mean_and_then_with_its_own_weights_again() -> None:
    layer = nn.Linear(2, 2, bias=False)
    average = Average(config(name="tail", start_fraction=0.0), layer)
    x = torch.ones(1, 2)
    for done, value in enumerate((1.0, 3.0), 1):
        nn.init.constant_(layer.weight, value)
        average.update(done)
    pointer = layer.weight.data_ptr()
    with suppress(KeyError), average.in_place():
        assert layer(x)[0, 0] == 4.0
        raise KeyError
    assert layer(x)[0, 0] == 6.0
    assert layer.weight.data_ptr() == pointer
    assert average.files()["average"]["weight"][0, 0] == 2.0


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("settings", [EMA, TAIL], ids=["ema", "tail"])
def test_training_is_the_same_to_the_last_bit_with_averaging(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    with_dropout = ("model.dropout=0.1", "model.family=llama")
    start(load_settings(tiny_config, with_dropout), tmp_path / "without")
    start(load_settings(tiny_config, (*with_dropout, *settings)), tmp_path / "with")
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    on, off = weights(tmp_path / "with", "average"), weights(tmp_path / "without")
    found, _ = store.latest(tmp_path / "without/checkpoints")
    assert found is not None
    assert load_average(found) is None
    for file in FILES:
        assert same(on[file], off[file])
    assert not same(on["average"], on["model"])
    evals, plain = (
        [json.loads(line) for line in (tmp_path / name / "evals.jsonl").read_text().splitlines()]
        for name in ("with", "without")
    )
    assert [e["loss"] for e in evals] == [e["loss"] for e in plain]
    assert all("averaged_loss" not in e for e in plain)
    assert "averaged_loss" in evals[-1]


def test_averaged_loss_is_that_of_the_averaged_weights(tiny_config: Path, tmp_path: Path) -> None:
    finished = start(load_settings(tiny_config, EMA), tmp_path / "run")
    averaged, last = finished.averaged_held_out_loss, finished.held_out_loss
    assert averaged is not None
    assert last is not None
    assert averaged != last
    # A run that starts and stays (at a rate of next to nothing) where the mean is has its loss.
    again = load_settings(tiny_config, ("optimizer.learning_rate=1e-12", "train.steps=5"))
    found, _ = store.latest(tmp_path / "run/checkpoints")
    assert found is not None
    real = loop.update
    mean = load_average(found)
    assert mean is not None

    def placed(run: loop.Run, *rest: Any) -> Any:
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                parameter.copy_(mean[name])
        return real(run, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "update", placed)
        other = start(again, tmp_path / "again")
    assert other.held_out_loss == pytest.approx(averaged, rel=1e-5)


KILLER = """
import os, signal, sys
from hotloop.train import loop
from hotloop.train.start import start
from hotloop.core.settings import load_settings
from pathlib import Path

real, steps = loop.update, 0

def dies(*given):
    global steps
    steps += 1
    if steps > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given)

loop.update = dies
start(load_settings(Path(sys.argv[1]), sys.argv[4:]), Path(sys.argv[2]))
"""


@pytest.mark.at_once(1)
@pytest.mark.parametrize(("settings", "killed_after"), [(EMA, 7), (TAIL, 5), (TAIL, 10)])
def test_killed_with_minus_9_it_continues_to_the_same_mean_bit_by_bit(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...], killed_after: int
) -> None:
    start(load_settings(tiny_config, settings), tmp_path / "whole")
    script = tmp_path / "killer.py"
    script.write_text(KILLER)
    arguments = [script, tiny_config, tmp_path / "killed", killed_after, *settings]
    ended = warm_python.run(
        [*map(str, arguments)], env=os.environ, cwd=tmp_path, timeout=120, trainer=True
    )
    assert ended.returncode == -signal.SIGKILL
    start(load_settings(tiny_config, settings), tmp_path / "killed")
    whole, killed = (weights(tmp_path / name, "average") for name in ("whole", "killed"))
    for file in (*FILES[:2], "average"):
        assert same(whole[file], killed[file])
    assert (tmp_path / "killed/evals.jsonl").read_text() == (
        tmp_path / "whole/evals.jsonl"
    ).read_text()


def test_checkpoint_without_its_mean_is_one_clear_error(tiny_config: Path, tmp_path: Path) -> None:
    start(load_settings(tiny_config, (*EMA, "train.steps=8")), tmp_path / "run")
    with pytest.raises(UsageError, match=r"averaging\.name: ema"):
        start(load_settings(tiny_config, ("train.steps=8",)), tmp_path / "run")
    average = Average(config(name="ema"), nn.Linear(3, 2, bias=False))
    found, _ = store.latest(tmp_path / "run/checkpoints")
    assert found is not None
    with pytest.raises(UsageError, match=r"mean of `.*` is missing in the model"):
        average.restore(found)
    without = dataclasses.replace(found, files=found.files - {"average.safetensors"})
    with pytest.raises(UsageError, match="does not hold the mean"):
        average.restore(without)


def test_the_mean_is_what_generate_and_export_take_and_the_last_where_asked(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    start(load_settings(tiny_config, EMA), run)
    stored = weights(run, "average")
    for which, file in ((None, "average"), ("averaged", "average"), ("last", "model")):
        trained = load_trained(run, "cpu", weights=which)  # type: ignore[arg-type]
        assert trained.weights == ("last" if file == "model" else "averaged")
        assert same({n: p.detach() for n, p in trained.model.named_parameters()}, stored[file])

    found = tmp_path / "found.json"
    common = ["generate", str(run), "--tokens", "3", "--json", str(found)]
    assert main.run(common) == 0
    assert "with the averaged weights" in capsys.readouterr().err
    assert json.loads(found.read_text())["weights"] == "averaged"
    assert main.run([*common, "--weights", "last"]) == 0
    assert "averaged" not in capsys.readouterr().err
    assert json.loads(found.read_text())["weights"] == "last"

    for which, said in (("averaged", "fp32, averaged"), ("last", "fp32, of the last step")):
        out = tmp_path / which
        asked = ["export", str(run), "--out", str(out), "--weights", which, "--no-verify"]
        assert main.run([*asked, "--json", str(found)]) == 0
        assert said in capsys.readouterr().out
        assert json.loads(found.read_text())["weights"] == which
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("averaged", "last")]
    assert files[0] != files[1]
    assert main.run(["report", str(run)]) == 0
    assert "with averaged weights" in capsys.readouterr().out


def test_asking_for_a_mean_that_is_not_there_says_why(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(load_settings(tiny_config), tmp_path / "none")
    assert load_trained(tmp_path / "none", "cpu").weights == "last"
    with pytest.raises(UsageError, match="keeps no averaged weights"):
        load_trained(tmp_path / "none", "cpu", weights="averaged")

    early = ("averaging.name=tail", "averaging.start_fraction=0.9", "averaging.every_steps=1")
    real = loop.learning_rate

    def stops(settings: RunConfig, step: int) -> float:
        if step == 6:
            raise RuntimeError("killed")
        return real(settings, step)

    monkeypatch.setattr(loop, "learning_rate", stops)
    with pytest.raises(RuntimeError, match="killed"):
        start(load_settings(tiny_config, early), tmp_path / "early")
    assert load_trained(tmp_path / "early", "cpu").weights == "last"
    with pytest.raises(UsageError, match="begin after step 11"):
        load_trained(tmp_path / "early", "cpu", weights="averaged")
