"""Going back from a spike: what is undone, what is passed over, and that a kill changes none of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from trainings import losses, records, saved, scalars

from hotloop.checkpoint import store
from hotloop.core.settings import load_settings
from hotloop.data.loader import Loader
from hotloop.train.stability import TrainingDiverged
from hotloop.train.start import Finished, start

Plant = Callable[..., None]
Dies = Callable[[int], AbstractContextManager[None]]

ROLLBACK = ("stability.spikes=rollback", "stability.window_steps=4", "stability.spike_factor=20")
SPIKE = 1000.0


def train(config: Path, directory: Path, *overrides: str, **options: Any) -> Finished:
    return start(load_settings(config, (*ROLLBACK, *overrides)), directory, **options)


def rollbacks(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "rollbacks.jsonl").read_text().splitlines()]


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In steps of 4 sequences, what training was given, in order."""
    given = []
    real = Loader.batch

    def batch(self: Loader, position: int, num_sequences: int):  # type: ignore[no-untyped-def]
        if num_sequences == 4 and self.items._order == "shuffled":
            given.append(position // 4)
        return real(self, position, num_sequences)

    monkeypatch.setattr(Loader, "batch", batch)
    return given


def test_spike_sends_the_run_back_and_over_the_data_since(
    tiny_config: Path, tmp_path: Path, plant: Plant, positions: list[int]
) -> None:
    plant({7 * 4: SPIKE})
    run = tmp_path / "run"
    said: list[str] = []
    finished = train(tiny_config, run, warn=said.append)
    assert positions == [*range(8), *range(8, 16)]
    assert (finished.steps, finished.num_rollbacks, finished.num_spikes) == (12, 1, 0)
    made = records(run)
    assert [record.step for record in made] == list(range(12))
    assert [record.step for record in made if "rolled_back" in record.tags] == [4]
    assert not any("spike" in record.tags for record in made)
    (entry,) = rollbacks(run)
    assert entry.pop("lost_s") > 0
    assert entry.pop("why").startswith("gradient norm ")
    assert entry == {"step": 7, "back_to": 4, "lost_steps": 4, "steps_passed_over": 4}
    (words,) = (text for text in said if "spike" in text)
    assert "step 7 is a spike (gradient norm " in words
    assert "back to step 4, and over the data since; rollback 1 of 3" in words
    evaluations = (run / "evals.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in evaluations] == [6, 12]
    assert json.loads((run / "census.json").read_text())["num_rollbacks"] == 1


def test_what_follows_is_as_if_those_data_had_never_been_there(
    tiny_config: Path, tmp_path: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant({7 * 4: SPIKE})
    train(tiny_config, tmp_path / "run", "model.dropout=0.1")
    real = Loader.batch

    def without(self: Loader, position: int, num_sequences: int):  # type: ignore[no-untyped-def]
        gone = num_sequences == 4 and self.items._order == "shuffled" and position >= 4 * 4
        return real(self, position + 4 * 4 * gone, num_sequences)

    monkeypatch.setattr(Loader, "batch", without)
    train(tiny_config, tmp_path / "other", "model.dropout=0.1")
    assert not (tmp_path / "other/rollbacks.jsonl").exists()
    assert losses(tmp_path / "run") == losses(tmp_path / "other")


def test_spike_before_the_first_save_goes_back_to_the_start(
    tiny_config: Path, tmp_path: Path, plant: Plant, positions: list[int]
) -> None:
    plant({3 * 4: SPIKE})
    train(tiny_config, tmp_path / "run")
    assert positions == [*range(4), *range(4, 16)]
    assert [entry["back_to"] for entry in rollbacks(tmp_path / "run")] == [0]
    back = [each.step for each in records(tmp_path / "run") if "rolled_back" in each.tags]
    assert back == [0]


@pytest.mark.at_once(3)
@pytest.mark.parametrize(
    ("killed_after", "settings"),
    [
        *((after, ()) for after in (2, 8, 9, 12, 14)),
        (6, ("optimizer.name=muon",)),
        (11, ("averaging.name=ema",)),
        (18, ("optimizer.name=sgd",)),
    ],
)
def test_killed_run_goes_back_to_the_same_place_and_the_same_losses(
    tiny_config: Path,
    tmp_path: Path,
    plant: Plant,
    dies_after: Dies,
    settings: tuple[str, ...],
    killed_after: int,
) -> None:
    settings = ("model.dropout=0.1", *settings)
    plant({7 * 4: SPIKE, 10 * 4: SPIKE})
    train(tiny_config, tmp_path / "whole", *settings)
    with dies_after(killed_after):
        train(tiny_config, tmp_path / "killed", *settings)
    train(tiny_config, tmp_path / "killed", *settings)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert losses(killed) == losses(whole)
    keys = ("step", "back_to", "why", "lost_steps", "steps_passed_over")
    found, expected = (
        [[entry[key] for key in keys] for entry in rollbacks(run)] for run in (killed, whole)
    )
    assert found == expected
    assert len(found) == 2
    states = [saved(run)[1]["stability"] for run in (killed, whole)]
    assert states[0] == states[1]
    assert states[0]["num_rollbacks"] == 2


def test_run_stopped_between_saves_goes_back_to_the_same_place_and_the_same_losses(
    tiny_config: Path, tmp_path: Path, plant: Plant, stops_after: Dies
) -> None:
    plant({7 * 4: SPIKE})
    train(tiny_config, tmp_path / "whole", "model.dropout=0.1")
    for updates in (5, 1):
        with stops_after(updates):
            train(tiny_config, tmp_path / "stopped", "model.dropout=0.1")
    assert store.steps(tmp_path / "stopped/checkpoints")[-2:] == (4, 6)
    train(tiny_config, tmp_path / "stopped", "model.dropout=0.1")
    (entry,) = rollbacks(tmp_path / "stopped")
    assert (entry["step"], entry["back_to"], entry["steps_passed_over"]) == (7, 4, 4)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")


def test_more_rollbacks_than_allowed_end_the_run(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    plant({7 * 4: SPIKE, 10 * 4: SPIKE})
    with pytest.raises(TrainingDiverged, match="another spike, at step 6") as caught:
        train(tiny_config, tmp_path / "run", "stability.max_rollbacks=1")
    assert "stability.max_rollbacks" in (caught.value.do or "")
    assert len(rollbacks(tmp_path / "run")) == 1
    finished = train(tiny_config, tmp_path / "run", "stability.max_rollbacks=2")
    assert (finished.steps, finished.num_rollbacks) == (12, 2)


def test_measured_process_does_not_go_back(tiny_config: Path, tmp_path: Path, plant: Plant) -> None:
    plant({7 * 4: SPIKE})
    assert train(tiny_config, tmp_path / "run", stop_after=10).num_spikes == 1
    assert not (tmp_path / "run/rollbacks.jsonl").exists()
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize("spike", [7, 3])
def test_tensorboard_shows_each_step_once_after_a_rollback(
    tiny_config: Path, tmp_path: Path, plant: Plant, spike: int
) -> None:
    plant({spike * 4: SPIKE})  # back to step 4, and to the start
    train(tiny_config, tmp_path / "run", "logging.tensorboard=true")
    steps, values = zip(*scalars(tmp_path / "run", "loss"), strict=True)
    assert steps == tuple(range(12))
    assert list(values) == pytest.approx(losses(tmp_path / "run"))
    assert [step for step, _ in scalars(tmp_path / "run", "held_out/loss")] == [6, 12]
