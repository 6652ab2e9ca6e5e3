"""`hotloop env`, and the MFU that `hotloop report` takes from what it measured."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.main import run
from hotloop.core.ceilings import Ceilings, MatmulCeiling
from hotloop.core.census import Census
from hotloop.core.config import RunConfig
from hotloop.core.files import write_json
from hotloop.core.judgement import MODEL_FILE
from hotloop.core.measurement import Environment
from hotloop.core.settings import Settings, store_settings
from hotloop.core.step import StepRecord
from hotloop.data.tokenizer import Tokenizer
from hotloop.hardware import ceilings as hardware
from hotloop.hardware.device import read_environment
from hotloop.hardware.environment import store_ceilings
from hotloop.hardware.limits import default_threads
from hotloop.models.shape import model_flops
from hotloop.train.run import decoder_shape


def ceilings(environment: Environment, num_threads: int) -> Ceilings:
    return Ceilings(
        device=environment.device,
        cpu_model=environment.cpu_model,
        cpu_quota=environment.cpu_quota,
        num_threads=num_threads,
        torch=environment.torch or "",
        matmul=(
            MatmulCeiling("bfloat16", 8e11, (2048, 384, 1536), 7.9e11, True, 1.7e9),
            MatmulCeiling("float32", 2e11, (512, 512, 512), 1.9e11, True, 1.7e9),
            MatmulCeiling("float16", 2e10, (512, 512, 512), 1.9e10, False, 1.7e9),
        ),
    )


@pytest.fixture
def measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An empty cache, and measuring that takes no time; the list grows with each one."""
    calls: list[int] = []

    def measure(environment: Environment, device: Any, *, num_threads: int, **_: Any) -> Ceilings:
        calls.append(num_threads)
        return ceilings(environment, num_threads)

    monkeypatch.setattr(hardware, "measure_ceilings", measure)
    return calls


def test_env_shows_and_stores_what_comparisons_depend_on(
    measured: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["env", "--no-measure", "--json", str(tmp_path / "env.json")]) == 0
    out = capsys.readouterr().out
    stored = json.loads((tmp_path / "env.json").read_text())
    assert stored["schema"] == "hotloop.env/1"
    assert stored["device"] in out
    assert {"cpu_quota", "torch", "memory_limit_bytes", "num_threads", "fast_dtypes"} <= set(stored)
    assert stored["ceilings"] is None
    assert "not measured" in out
    assert measured == []


def test_first_call_measures_and_later_ones_remember_until_asked_again(
    measured: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["env"]) == 0
    out = capsys.readouterr().out
    assert "bfloat16 products  800 GFLOP/s, 4.00x float32 (2048 x 384 x 1536)" in out
    assert "float16 products   20 GFLOP/s, 0.10x float32, emulated here" in out
    assert len(measured) == 1
    run(["env"])
    assert "800 GFLOP/s" in capsys.readouterr().out
    run(["env", "--no-measure", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["ceilings"]["schema"] == "hotloop.ceilings/1"
    assert len(measured) == 1
    run(["env", "--measure"])
    run(["env", "--threads", str(default_threads() + 1)])
    assert measured[1:] == [default_threads(), default_threads() + 1]


def test_cache_that_cannot_be_written_is_a_note_and_not_an_error(
    measured: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    assert run(["env"]) == 0
    out, err = capsys.readouterr()
    assert "800 GFLOP/s" in out
    assert "note: not kept" in err


@pytest.fixture
def trained(tmp_path: Path, prepared: Path) -> Path:
    """A run of this machine: 1000 tokens/s of a model whose arithmetic is known."""
    directory = tmp_path / "run"
    directory.mkdir()
    values = {
        "data": {"source": "python-stdlib"},
        "model": {"layers": 2, "width": 64, "heads": 2, "context": 128},
        "train": {"steps": 3, "num_threads": default_threads(), "precision": "bf16"},
        "schedule": {"warmup_steps": 0},
    }
    store_settings(Settings(RunConfig.model_validate(values), {}), directory / "config.yaml")
    shutil.copy(prepared / "tokenizer.json", directory / "tokenizer.json")
    vocabulary = Tokenizer.load(directory / "tokenizer.json").vocabulary_size
    shape = decoder_shape(RunConfig.model_validate(values), vocabulary)
    write_json(directory / MODEL_FILE, model_flops(shape))
    lines = [
        StepRecord(i, 1.0, host={"forward": 1.0}, tokens=1000, loss=5.0).to_json() for i in range(3)
    ]
    (directory / "steps.jsonl").write_text("\n".join(lines) + "\n")
    write_json(directory / "environment.json", read_environment("cpu"))
    census = Census(device="cpu", num_threads=default_threads(), matmul_dtypes=("bfloat16",))
    write_json(directory / "census.json", census)
    return directory


def test_report_names_the_measured_denominator_of_both_mfus(
    measured: list[int], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = read_environment("cpu")
    store_ceilings(environment, ceilings(environment, default_threads()))
    assert run(["report", str(trained), "--json", str(trained / "found.json")]) == 0
    out = capsys.readouterr().out
    used = json.loads((trained / "found.json").read_text())["utilization"]
    vocabulary = Tokenizer.load(trained / "tokenizer.json").vocabulary_size
    matmul, attention = 6 * (2 * 12 * 64**2 + vocabulary * 64), 12 * 2 * 64 * 128
    assert used["palm_flops_per_s"] == pytest.approx(1000 * (matmul + attention))
    assert used["causal_flops_per_s"] == pytest.approx(1000 * (matmul + attention / 2))
    assert used["palm_mfu"] == pytest.approx(1000 * (matmul + attention) / 8e11)
    assert "(PaLM)" in out
    assert "(causal)" in out
    assert "800 GFLOP/s: bfloat16 matrix product 2048 x 384 x 1536" in out


def test_report_of_another_machine_has_no_mfu_and_says_how_to_get_it(
    measured: list[int], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = read_environment("cpu")
    store_ceilings(here, ceilings(here, default_threads()))
    write_json(trained / "environment.json", replace(here, device="Other CPU"))
    assert run(["report", str(trained)]) == 0
    out = capsys.readouterr().out
    assert "MFU" in out
    assert "`hotloop env" in out
    assert "800 GFLOP/s" not in out


def test_without_torch_it_shows_the_machine_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("device", "ceilings"):
        monkeypatch.delitem(sys.modules, f"hotloop.hardware.{name}", raising=False)
    assert run(["env", "--json", str(tmp_path / "env.json")]) == 0
    out = capsys.readouterr().out
    assert (
        "not measured: torch is not installed beside hotloop (pip install 'hotloop[train]')" in out
    )
    found = json.loads((tmp_path / "env.json").read_text())
    assert (found["torch"], found["torch_device"], found["ceilings"]) == (None, None, None)
    assert found["num_cpus"] >= 1
    assert run(["env", "--measure"]) == 2
    assert "pip install 'hotloop[train]'" in capsys.readouterr().err
