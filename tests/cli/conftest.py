"""Run directories as `hotloop train` leaves them, and commands in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from judge_inputs import ENVIRONMENT

from hotloop.cli.main import run
from hotloop.core.census import Census
from hotloop.core.config import RunConfig
from hotloop.core.files import write_json
from hotloop.core.settings import Settings, store_settings
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import TelemetrySample

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hotloop(capsys: pytest.CaptureFixture[str]) -> Command:
    """Exit code, stdout and stderr of a command."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in `tmp_path`."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """What `hotloop train` leaves after 20 of 20 steps."""
    values = {
        "name": "tiny",
        "data": {"source": "python-stdlib"},
        "train": {"steps": 20},
        "schedule": {"warmup_steps": 2},
    }
    origins = {"train.steps": "flag", "schedule.warmup_steps": "tiny.yaml:9"}
    directory = tmp_path / "run"
    directory.mkdir()
    store_settings(Settings(RunConfig.model_validate(values), origins), directory / "config.yaml")
    lines = [
        StepRecord(
            step,
            0.1,
            host={"forward": 0.03, "backward": 0.05, "optimizer": 0.018, "unattributed": 0.002},
            tokens=2048,
            loss=9.0 - step / 10,
            tags=("warmup",) if step < 2 else (),
        ).to_json()
        for step in range(20)
    ]
    (directory / "steps.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "evals.jsonl").write_text('{"step": 20, "loss": 7.25, "tokens": 4096}\n')
    write_json(directory / "environment.json", ENVIRONMENT)
    write_json(directory / "census.json", Census(device="cpu", notes=("no C++ compiler: eager",)))
    samples = [
        TelemetrySample(
            1e9 + n,
            cpu_fraction=0.9,
            iowait_fraction=0.01,
            process_bytes=10**9,
            memory_bytes=5 * 10**9,
            memory_total_bytes=25 * 10**9,
        ).to_json()
        for n in range(5)
    ]
    (directory / "telemetry.jsonl").write_text("\n".join(samples) + "\n")
    for file in directory.iterdir():  # an hour ago: nobody trains there
        os.utime(file, (file.stat().st_atime - 3600, file.stat().st_mtime - 3600))
    return directory


@pytest.fixture
def corpus_directory(tmp_path: Path) -> Path:
    """A few small files of text."""
    directory = tmp_path / "corpus"
    directory.mkdir()
    for number in range(40):
        (directory / f"{number:02}.txt").write_text(f"document {number}: héllo wörld 世界\n" * 20)
    return directory
