"""A tracker that is slow, offline or broken never stops or slows training, and what it missed is said."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from trainings import killed_after, train

from hotloop.core.errors import Interrupted, UsageError
from hotloop.core.step import StepRecord, read_steps
from hotloop.train import trackers
from hotloop.train.evaluate import Evaluation
from hotloop.train.trackers import Point, Sender

Dies = Callable[[int], AbstractContextManager[None]]


class Kept:
    """A tracker that keeps what it is sent; `fails` says how many calls of each method raise first."""

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.points: list[Point] = []
        self.exit_code: int | None = None
        self.opened = 0
        self.thread: threading.Thread | None = None

    def _maybe_fail(self, name: str) -> None:
        if self.fails.get(name, 0) > 0:
            self.fails[name] -= 1
            raise ConnectionError(f"cannot {name}: no route to host\nwith a long tail")

    def open(self) -> None:
        self._maybe_fail("open")
        self.opened += 1
        self.thread = threading.current_thread()

    def send(self, points: list[Point]) -> None:
        self._maybe_fail("send")
        self.points.extend(points)

    def close(self, exit_code: int) -> None:
        self.exit_code = exit_code


class NoEvaluations:
    def told_by(self, record: StepRecord) -> list[Evaluation]:
        return []

    def left(self) -> list[Evaluation]:
        return []


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "GATHER_S", 0.01)
    monkeypatch.setattr(trackers, "RETRY_S", 0.01)
    # A busy machine takes long to make a new store of MLflow.
    monkeypatch.setitem(Sender.__init__.__kwdefaults__, "close_s", 600.0)


def sender(tracker: trackers.Tracker, said: list[str], **options: float) -> Sender:
    return Sender("Tracker", tracker, NoEvaluations(), said.append, **options)  # type: ignore[arg-type]


def record(step: int) -> StepRecord:
    return StepRecord(step=step, wall_s=0.5, host={"forward": 0.5}, tokens=100, loss=3.0 - step)


def test_everything_arrives_in_order_from_a_thread_of_its_own() -> None:
    kept, said = Kept(), []
    observer = sender(kept, said)
    for step in range(500):
        observer(record(step))
    observer.finish(0)
    assert [point.step for point in kept.points] == list(range(500))
    assert kept.points[3].values == {
        "loss": 0.0, "seconds/step": 0.5, "seconds/forward": 0.5, "tokens_per_s": 200.0,
    }  # fmt: skip
    assert (kept.exit_code, kept.opened, said) == (0, 1, [])
    assert kept.thread is not threading.current_thread()


def test_tracker_that_fails_for_a_while_is_tried_again_and_loses_nothing() -> None:
    kept, said = Kept(open=2, send=3), []
    observer = sender(kept, said)
    for step in range(20):
        observer(record(step))
    deadline = time.monotonic() + 120
    while len(kept.points) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    observer.finish(0)
    assert [point.step for point in kept.points] == list(range(20))
    assert said == [
        "Tracker failed (cannot open: no route to host); training goes on, and it is tried again"
    ]


def test_tracker_that_never_works_is_counted_at_the_end() -> None:
    kept, said = Kept(send=10**9), []
    observer = sender(kept, said)
    for step in range(7):
        observer(record(step))
    observer.finish(0)
    assert kept.points == []
    assert said[-1] == ("Tracker: 7 of 7 points were not sent; the run directory holds all of them")


def test_tracker_that_hangs_neither_blocks_a_step_nor_the_end() -> None:
    let_go = threading.Event()

    class Hangs(Kept):
        def send(self, points: list[Point]) -> None:
            let_go.wait()

    said: list[str] = []
    observer = sender(Hangs(), said, capacity=50, close_s=0.1)
    for step in range(500):
        observer(record(step))  # would never return if it waited for room
    observer.finish(0)
    let_go.set()
    (words,) = said
    dropped = int(words.split("not sent, ")[1].split()[0])
    assert words.startswith("Tracker: 500 of 500 points were not sent, ")
    assert words.endswith("because it was too slow; the run directory holds all of them")
    assert 400 <= dropped <= 450


def test_interruption_and_failure_reach_the_tracker(
    tiny_config: Path, tmp_path: Path, use: Callable[[trackers.Tracker], None]
) -> None:
    from hotloop.train import loop

    for error, code in ((Interrupted("stopped"), 75), (RuntimeError("broken"), 1)):
        kept = Kept()
        use(kept)

        def ends(*args: object, error: Exception = error) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "update", ends)
            with pytest.raises(type(error)):
                train(tiny_config, tmp_path / str(code), "logging.mlflow=true")
        assert kept.exit_code == code


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[trackers.Tracker], None]:
    """Put a tracker in the place of MLflow's, whether that is installed or not."""

    def put(tracker: trackers.Tracker) -> None:
        monkeypatch.setattr(trackers, "is_installed", lambda name: True)
        monkeypatch.setattr(
            trackers, "build", lambda name, *rest: tracker if name == "mlflow" else Kept()
        )

    return put


def test_steps_and_evaluations_of_a_run_arrive(
    tiny_config: Path, tmp_path: Path, use: Callable[[trackers.Tracker], None]
) -> None:
    kept = Kept()
    use(kept)
    train(tiny_config, tmp_path / "run", "logging.mlflow=true", "averaging.name=ema")
    told = {point.step: point.values for point in kept.points if "loss" in point.values}
    written = list(read_steps(tmp_path / "run/steps.jsonl"))
    assert [told[record.step]["loss"] for record in written] == [r.loss for r in written]
    assert [told[record.step]["grad_norm"] for record in written] == [r.grad_norm for r in written]
    evaluated = {p.step: p.values for p in kept.points if "held_out/loss" in p.values}
    lines = (tmp_path / "run/evals.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        values = evaluated.pop(line["step"])
        assert values == {
            "held_out/loss": line["loss"], "held_out/averaged_loss": line["averaged_loss"],
        }  # fmt: skip
    assert not evaluated


def test_training_is_the_same_whatever_the_tracker_does(
    tiny_config: Path, tmp_path: Path, use: Callable[[trackers.Tracker], None]
) -> None:
    train(tiny_config, tmp_path / "without")
    use(Kept(open=10**9))
    said: list[str] = []
    train(tiny_config, tmp_path / "broken", "logging.mlflow=true", warn=said.append)
    assert any("points were not sent" in words for words in said)
    first, second = (
        [r.loss for r in read_steps(tmp_path / name / "steps.jsonl")]
        for name in ("without", "broken")
    )
    assert first == second


def test_measured_process_talks_to_no_tracker(
    tiny_config: Path, tmp_path: Path, use: Callable[[trackers.Tracker], None]
) -> None:
    kept = Kept()
    use(kept)
    train(tiny_config, tmp_path / "run", "logging.mlflow=true", stop_after=5)
    assert (kept.opened, kept.points) == (0, [])


@pytest.mark.parametrize("installed", [True, False])
def test_a_tracker_that_is_not_there_is_none_to_turn_off(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr("hotloop.train.observed.find_spec", lambda name: installed)
    train(tiny_config, tmp_path / "run", "logging.tensorboard=auto", stop_after=2)
    often = json.loads((tmp_path / "run/census.json").read_text())["how_often"]
    assert often.get("logging") == ("logging.tensorboard" if installed else None)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_package_is_one_clear_error(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(trackers, "is_installed", lambda name: False)
    with pytest.raises(UsageError, match="is not installed") as caught:
        train(tiny_config, tmp_path / "run", f"logging.{name}=true")
    assert f"pip install 'hotloop[{name}]'" in (caught.value.do or "")
    assert not (tmp_path / "run").exists()


def test_names_without_a_tracker_have_no_effect(tiny_config: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no effect here"):
        train(tiny_config, tmp_path / "run", "logging.project=mine")


@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_mlflow_keeps_steps_evaluations_settings_and_continues_the_run(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_after: Dies
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run = tmp_path / "run"
    settings = ("logging.mlflow=true", "logging.project=tests", "logging.run_name=first")
    said: list[str] = []
    with dies_after(6):
        train(tiny_config, run, *settings, warn=said.append)
    assert said == []
    identity = json.loads((run / "trackers.json").read_text())["mlflow"]
    client = MlflowClient(store)
    assert client.get_run(identity["run_id"]).info.status == "FAILED"
    train(tiny_config, run, *settings, "checkpoint.keep=3", warn=said.append)
    assert said == ["continues from step 4 of 12"]
    assert json.loads((run / "trackers.json").read_text())["mlflow"] == identity
    found = client.get_run(identity["run_id"])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "first")
    assert found.data.params["optimizer.learning_rate"] == "0.001"
    assert found.data.params["checkpoint.keep"] == "2"  # a parameter is what the run began with
    assert found.data.tags["origin.logging.project"] == "flag"
    written = list(read_steps(run / "steps.jsonl"))
    for name in ("loss", "grad_norm"):
        history = client.get_metric_history(identity["run_id"], name)
        expected = {record.step: getattr(record, name) for record in written}
        assert {m.step: m.value for m in history} == pytest.approx(expected)
    held_out = client.get_metric_history(identity["run_id"], "held_out/loss")
    assert {m.step for m in held_out} == {6, 12}

    # A run that somebody deleted there is begun anew.
    client.delete_run(identity["run_id"])
    killed_after(run, step=8)
    train(tiny_config, run, *settings, warn=said.append)
    assert said == ["continues from step 4 of 12", "continues from step 8 of 12"]
    again = json.loads((run / "trackers.json").read_text())["mlflow"]["run_id"]
    assert again != identity["run_id"]
    assert {m.step for m in client.get_metric_history(again, "loss")} == {8, 9, 10, 11}


@pytest.mark.filterwarnings("default")
def test_wandb_offline_writes_the_run_and_continues_it_under_one_id(
    tiny_config: Path, tmp_path: Path, dies_after: Dies
) -> None:
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    said: list[str] = []
    with dies_after(6):
        train(tiny_config, run, "logging.wandb=offline", warn=said.append)
    train(tiny_config, run, "logging.wandb=offline", warn=said.append)
    assert said == ["continues from step 4 of 12"]
    name = json.loads((run / "trackers.json").read_text())["wandb"]["id"]
    written = {record.step: record.loss for record in read_steps(run / "steps.jsonl")}
    deadline, rows = time.monotonic() + 120, {}
    while rows != written and time.monotonic() < deadline:  # W&B's own process flushes at leisure
        time.sleep(0.1)
        files = sorted((run / "wandb").glob(f"offline-run-*-{name}*/run-{name}.wandb"))
        logged = [row for file in files for row in wandb_rows(file) if "loss" in row]
        rows = {int(row["step"]): row["loss"] for row in logged}
    assert len(files) == 2
    assert rows == written


def wandb_rows(file: Path) -> list[dict[str, float]]:
    """The rows that a W&B run file holds: protobuf records in LevelDB's log format, after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content = file.read_bytes()
    rows, record, at, block = [], b"", 7, 1 << 15
    while at + 7 <= len(content):
        if block - at % block < 7:  # no room for another header in this block
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            found = wandb_internal_pb2.Record()
            found.ParseFromString(record)
            items = found.history.item
            if items:
                rows.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items})
            record = b""
    return rows


FULL_DISK = """
import resource, sys, time
from pathlib import Path
from hotloop.train.tracker_clients import Point, TensorboardTracker
tracker = TensorboardTracker(Path(sys.argv[1]), first_step=0)
tracker.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))  # a write beyond that fails
try:
    while True:
        tracker.send([Point(0, {"loss": 1.0})])
        time.sleep(0.01)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def test_tensorboard_on_a_full_disk_raises_and_prints_nothing_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("OSError 27\n", "")
