"""A trained model from its run directory: of a run that diverged, and with the run's threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hotloop.checkpoint import store
from hotloop.cli.main import run
from hotloop.core.settings import load_settings
from hotloop.hardware.limits import default_threads
from hotloop.train.start import start
from hotloop.train.trained import load_trained


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_run_that_diverged_is_told_so_and_exits_2(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(load_settings(tiny_config), tmp_path / "run")
    found, _ = store.latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    tensors, state = store.load(found, ("model", "optimizer", "random"))
    tensors["model"] = {name: weight * 1e30 for name, weight in tensors["model"].items()}
    store.save(
        tmp_path / "run" / "checkpoints", found.step + 1, tensors=tensors, state=state, keep=2
    )
    capsys.readouterr()
    out = tmp_path / "exported"
    for command in (["generate"], ["export", "--no-verify", "--out", str(out)]):
        assert run([*command, str(tmp_path / "run")]) == 2
        said = capsys.readouterr()
        assert said.err.startswith(
            "error: this model computes no numbers: its training diverged\n  at "
        )
        assert said.out == ""
    assert not out.exists()


def test_model_is_used_with_the_threads_of_its_run(
    tiny_config: Path, tmp_path: Path, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(load_settings(tiny_config, ["train.num_threads=3"]), tmp_path / "chosen")
    start(load_settings(tiny_config, ["train.num_threads=auto"]), tmp_path / "detected")
    torch.set_num_threads(2)
    load_trained(tmp_path / "chosen", "cpu")
    assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # as another machine would have it
    load_trained(tmp_path / "detected", "cpu")
    assert torch.get_num_threads() == default_threads() == 5


def test_model_that_no_memory_holds_is_refused_before_it_is_built(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("model.width=100000", "model.heads=100000", "model.layers=1000")
    assert run(["train", str(tiny_config), *sizes, "--out", str(tmp_path / "run")]) == 4
    err = capsys.readouterr().err
    assert "billion weights and takes" in err
    assert "this process may use" in err
