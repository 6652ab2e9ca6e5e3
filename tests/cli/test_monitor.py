"""`hotloop monitor` on runs that wait, train, ended, were killed or are damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hotloop.cli import monitor as command
from hotloop.core.command_run import CommandRun
from hotloop.core.config import RunConfig
from hotloop.core.files import read_json, write_json
from hotloop.core.judgement import MODEL_FILE, ModelFlops
from hotloop.core.ledger import Ledger
from hotloop.core.settings import Settings, store_settings
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.hardware.device import read_environment
from hotloop.monitor.screen import CURVE_CELLS, bar, curve

Monitor = Callable[..., tuple[int, str, str]]


@pytest.fixture
def monitor(hotloop: Monitor, cache: Path) -> Monitor:
    return partial(hotloop, "monitor")


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A run at step 12 of 20, last written to a minute ago."""
    directory = tmp_path / "run"
    directory.mkdir()
    values = {
        "data": {"source": "python-stdlib"},
        "train": {"steps": 20, "num_threads": 2, "precision": "bf16"},
        "model": {"vocabulary": 512},
        "schedule": {"warmup_steps": 0},
    }
    store_settings(Settings(RunConfig.model_validate(values), {}), directory / "config.yaml")
    write_json(directory / "environment.json", read_environment("cpu"))
    write_json(directory / MODEL_FILE, ModelFlops(matmul=1e6, attention=2e5))
    lines = [
        StepRecord(
            step,
            0.1 if step else 9.0,
            host={"forward": 0.04, "backward": 0.06},
            tokens=2000,
            loss=9.0 - step / 10,
            tags=() if step else ("compile",),
        ).to_json()
        for step in range(12)
    ]
    (directory / "steps.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "evals.jsonl").write_text('{"step": 10, "loss": 7.25}\n')
    sample = TelemetrySample(
        time.time() - 130,
        process_cpus=1.5,
        process_bytes=10**9,
        cpu_fraction=0.75,
        iowait_fraction=0.02,
        memory_bytes=10**9,
        memory_total_bytes=4 * 10**9,
        gpus=(
            GpuSample(
                0, "NVIDIA H200", busy_fraction=0.9, power_w=500.0, throttled_by=("power_cap",)
            ),
        ),
    )
    (directory / "telemetry.jsonl").write_text(sample.to_json() + "\n")
    age(directory)
    return directory


def age(directory: Path, by_s: float = 60) -> None:
    """Negative: to be fresh however late it is looked at."""
    old = time.time() - by_s
    for path in directory.rglob("*"):
        os.utime(path, (old, old))


def test_frame_shows_progress_speed_loss_phases_and_machine(
    monitor: Monitor, training: Path
) -> None:
    age(training, -60)
    code, out, _ = monitor(training, "--once")
    assert code == 0
    assert "training" in out.splitlines()[0]
    assert "12 of 20, 800 ms left" in out
    assert "20.0 K tokens/s, 100 ms a step" in out
    assert "7.9000" in out
    assert "7.2500" in out
    assert "backward" in out
    assert "60.0 %" in out
    assert "phases of the last 11 steps" in out
    assert "75 % busy" in out
    assert "1.50 CPUs" in out
    assert "GPU 0 NVIDIA H200" in out
    assert "slowed by  power cap" in out
    assert "MFU" in out
    unwrapped = " ".join(out.replace("│", " ").split())
    assert "`hotloop env --threads 2`" in unwrapped
    assert "\x1b" not in out


def test_killed_run_is_said_to_have_stopped_and_how_old_its_numbers_are(
    monitor: Monitor, training: Path
) -> None:
    out = monitor(training, "--once")[1]
    assert "stopped before its end" in out
    assert "2 min 1" in out
    assert "left" not in out


def test_finished_run_is_said_to_be_finished(monitor: Monitor, training: Path) -> None:
    with (training / "steps.jsonl").open("a") as file:
        file.writelines(StepRecord(i, 0.1, tokens=2000).to_json() + "\n" for i in range(12, 20))
    (training / "census.json").write_text("{}")  # written when the last weights are saved
    assert "finished" in monitor(training, "--once")[1].splitlines()[0]


def test_run_that_has_not_started_is_waited_for_and_no_error(
    monitor: Monitor, tmp_path: Path
) -> None:
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / ".lock").touch()
    code, out, err = monitor(tmp_path / "later", "--once")
    assert (code, err) == (0, "")
    assert "not started yet" in out


@pytest.mark.parametrize(
    ("name", "what"),
    [("nowhere", "no such directory"), ("file", "not a directory"), (".", "not a run directory")],
)
def test_what_is_no_run_is_bad_input(
    monitor: Monitor, tmp_path: Path, name: str, what: str
) -> None:
    (tmp_path / "file").touch()
    code, out, err = monitor(tmp_path / name, "--once")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {what}\n  at {tmp_path / name}\n")


@pytest.fixture
def examined(tmp_path: Path) -> Path:
    """What the doctor writes of a command that still runs."""
    directory = tmp_path / "doctor-train"
    directory.mkdir()
    run = CommandRun(("python", "train.py"), str(tmp_path), time.time(), "0.1.0")
    write_json(directory / "doctor.json", run)
    steps = [StepRecord(step, 0.25, host={"forward": 0.2}, loss=3.5) for step in range(30)]
    (directory / "steps-0.jsonl").write_text("".join(each.to_json() + "\n" for each in steps))
    age(directory, -60)
    return directory


def ended(directory: Path) -> None:
    run = read_json(directory / "doctor.json", CommandRun)
    write_json(directory / "doctor.json", replace(run, ended="by_itself", returncode=0))
    age(directory)


def test_command_that_is_examined_is_shown_with_its_steps(monitor: Monitor, examined: Path) -> None:
    code, out, _ = monitor(examined, "--once")
    assert code == 0
    assert "the doctor runs a command and watches it" in out.splitlines()[0]
    for part in ("python train.py", "step   30", "250 ms a step", "3.5000", "forward"):
        assert part in out


def test_command_whose_doctor_was_killed_is_not_said_to_run(
    monitor: Monitor, examined: Path
) -> None:
    age(examined)
    out = monitor(examined, "--once")[1]
    assert "nothing happens here now" in out
    assert "the same command with" in out


def test_fixes_that_are_tried_are_shown_with_their_processes(
    monitor: Monitor, examined: Path
) -> None:
    ended(examined)
    assert "the doctor has ended" in monitor(examined, "--once")[1]
    for name in ("pair-01-a-baseline", "pair-01-b-item_cache"):
        (examined / "trials" / "item_cache" / name).mkdir(parents=True)
    (examined / "trials/item_cache/pair-01-a-baseline/measurement.json").touch()
    out = monitor(examined, "--once")[1]
    assert "the doctor tries fixes" in out.splitlines()[0]
    assert "1 processes measured, pair-01-b-item_cache under way" in out
    assert "it ended with exit code 0" in out
    age(examined, 600)
    assert "nothing happens here now" in monitor(examined, "--once")[1]


def test_ledger_is_the_end_of_the_fixes(monitor: Monitor, examined: Path) -> None:
    (examined / "trials" / "item_cache" / "pair-01-a-baseline").mkdir(parents=True)
    ended(examined)
    ledger = Ledger((), (), (), together=None, warmup_steps=0, steps=0, wall_s=1.0, budget_s=None)
    write_json(examined / "ledger.json", ledger)
    age(examined)  # within one tick of the clock of files
    code, out, _ = monitor(examined, "--json", "-")
    assert (code, json.loads(out)["state"]) == (0, "examined")
    assert "No fix that can be tried" in dict(json.loads(out)["doctor"])["fixes"]


def test_final_training_of_a_quickstart_is_followed(monitor: Monitor, training: Path) -> None:
    (training.parent / "quick").mkdir()
    training.rename(training.parent / "quick" / "train")
    assert "12 of 20" in monitor(training.parent / "quick", "--once")[1]


def test_run_that_compiles_is_starting(monitor: Monitor, training: Path) -> None:
    (training / "steps.jsonl").write_text("")
    age(training, -60)
    assert "starting" in monitor(training, "--once")[1].splitlines()[0]


def test_damaged_lines_are_counted_and_the_rest_is_shown(monitor: Monitor, training: Path) -> None:
    for name in ("steps.jsonl", "telemetry.jsonl"):
        with (training / name).open("a") as file:
            file.write('{"broken\n')
    code, out, _ = monitor(training, "--once")
    assert code == 0
    assert "2 lines of its files could not be read" in out
    assert "12 of 20" in out


def test_diverged_loss_and_a_name_with_control_characters_do_no_harm(
    monitor: Monitor, training: Path
) -> None:
    with (training / "steps.jsonl").open("a") as file:
        file.write(StepRecord(12, 0.1, tokens=2000, loss=float("nan")).to_json() + "\n")
    gpu = TelemetrySample(time.time(), gpus=(GpuSample(0, "\x1b[2Jevil"),)).to_json()
    (training / "telemetry.jsonl").write_text(gpu + "\n")
    code, out, _ = monitor(training, "--once")
    assert code == 0
    assert "nan" in out
    assert "\x1b" not in out
    assert monitor(training, "--json", "-")[0] == 0


def test_snapshot_as_json_is_one_object(monitor: Monitor, training: Path) -> None:
    code, out, _ = monitor(training, "--json", "-")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "hotloop.monitor/1"
    assert (found["state"], found["steps"], found["total_steps"]) == ("stopped", 12, 20)
    assert found["breakdown"]["forward"] == pytest.approx(0.4)
    assert found["telemetry"]["gpus"][0]["busy_fraction"] == 0.9
    assert found["utilization"]["palm_flops_per_s"] > 0


def test_system_alone_shows_this_machine(monitor: Monitor) -> None:
    code, out, _ = monitor("--system", "--once", "--every", "0.2")
    assert code == 0
    assert "this machine" in out
    assert "memory" in out
    assert "training" not in out


@pytest.mark.parametrize("arguments", [[], ["x", "--system"]])
def test_exactly_one_thing_is_watched(monitor: Monitor, arguments: list[str]) -> None:
    code, _, err = monitor(*arguments)
    assert code == 2
    assert "hotloop monitor runs/NAME" in err


def test_interrupt_ends_quietly_with_0(
    monitor: Monitor, training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def live(watched: object, every_s: float) -> None:
        looks.append(every_s)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_live", live)
    monkeypatch.setattr(command.sys.stdout, "isatty", lambda: True, raising=False)
    assert monitor(training, "--every", "2") == (0, "", "")
    assert looks == [2.0]


def test_live_view_on_a_terminal_draws_and_ends_on_ctrl_c() -> None:
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hotloop", "monitor", "--system", "--every", "0.2"],
        stdin=child,
        stdout=child,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(child)
    drawn = b""
    try:
        while b"memory" not in drawn:
            drawn += os.read(parent, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                if not os.read(parent, 4096):
                    break
            except OSError:  # the terminal's other side is gone
                break
        assert process.wait(timeout=120) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        os.close(parent)
        if process.stderr is not None:
            process.stderr.close()


def test_bars_and_curves_stay_in_their_cells() -> None:
    assert bar(0.5) == "█" * 12 + "░" * 12
    assert bar(-1) == bar(float("nan")) == "░" * 24
    assert bar(9) == "█" * 24
    assert curve([1.0]) == ""
    assert curve([1.0, float("inf"), 2.0]) == "▁█"
    assert curve([0.0, 2.0], scale=(0.0, 1.0)) == "▁█"
    assert len(curve([float(i) for i in range(99)])) == CURVE_CELLS
