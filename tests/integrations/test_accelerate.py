"""`AccelerateWatch` among the trackers of a real Accelerator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from planted_training import BATCH, Model, Rows, entries
from torch.utils.data import DataLoader

from hotloop.core.errors import UsageError

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate.tracking import GeneralTracker, on_main_process  # noqa: E402

from hotloop.integrations import AccelerateWatch  # noqa: E402


class Kept(GeneralTracker):  # type: ignore[misc]
    name = "kept"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, Any]] = []

    @property
    def tracker(self) -> None:
        return None

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **named: Any) -> None:
        self.logged.append(dict(values))


def train(accelerator: Any, steps: int = 40) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Rows(steps * BATCH), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if step % 10 == 9:
            accelerator.log({"loss": loss.item()}, step=step)


def accelerator_with(*trackers: Any) -> Any:
    made = accelerate.Accelerator(cpu=True, log_with=[*trackers])
    made.init_trackers("planted")
    return made


def test_it_finds_what_was_planted_and_the_trackers_after_it_log_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, kept, watch = entries(), Kept(), AccelerateWatch(steps=10)
    accelerator = accelerator_with(watch, kept)
    train(accelerator, steps=60)
    assert entries() == before  # it ended at its bound
    accelerator.end_training()
    assert "HL106" in [each.code for each in watch.findings]
    assert accelerator.get_tracker("hotloop", unwrap=True) is watch.seen
    assert capsys.readouterr().err.count("watching took") == 1
    logged = [each for each in kept.logged if "hotloop/step_s" in each]
    assert logged
    assert all(each["hotloop/data_wait_fraction"] > 0.3 for each in logged)
    assert sum("hotloop/watch_cost_fraction" in each for each in kept.logged) == 1


def test_trackers_that_begin_again_end_what_an_error_left(capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    before, watch = entries(), AccelerateWatch(steps=None, show=False)
    train(accelerator_with(watch), steps=30)  # and then an error: nobody calls `end_training`
    first = watch.seen
    accelerator = accelerator_with(watch)
    assert first is not None
    steps = first.diagnosis.steps
    # How many of them are its start is told by how they went.
    assert 20 < steps.warmup + steps.measured + steps.left_out <= 30
    with pytest.raises(UsageError, match=r"hotloop.watch inside hotloop.watch"):
        accelerator_with(AccelerateWatch())
    train(accelerator, steps=30)
    accelerator.end_training()
    assert watch.seen is not first
    assert entries() == before


def test_an_accelerator_whose_watch_another_one_has_now_neither_ends_it_nor_logs_of_it() -> None:
    before, kept, watch = entries(), Kept(), AccelerateWatch(steps=10, show=False)
    first = accelerator_with(watch, kept)
    train(first, steps=60)
    assert entries() == before  # it ended at its bound
    second = accelerator_with(watch)
    kept.logged.clear()
    train(first, steps=20)
    assert [each.keys() for each in kept.logged] == [{"loss"}] * 2
    first.end_training()
    assert entries() != before
    second.end_training()
    assert entries() == before


def test_an_accelerator_whose_trackers_begin_again_is_watched_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = AccelerateWatch(out=tmp_path / "seen")
    accelerator = accelerate.Accelerator(cpu=True, log_with=[watch])
    for _ in range(3):
        accelerator.init_trackers("planted")
        train(accelerator)
        accelerator.end_training()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen", "seen-2", "seen-3"]
    assert capsys.readouterr().err.count("watching took") == 3


@pytest.mark.slow
def test_a_process_that_ends_by_an_error_says_what_was_seen(tmp_path: Path) -> None:
    body = """
from test_accelerate import *
accelerator = accelerator_with(AccelerateWatch(steps=None))
train(accelerator)
raise SystemExit(3)
"""
    path = [str(Path(__file__).parent), *sys.path]
    body = f"import sys; sys.path[:] = {path!r}\n{body}"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("watching took") == 1
