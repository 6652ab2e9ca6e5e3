"""Through the real command, in real processes where it matters: signals, exit codes, and what the user reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from trainings import wait_for_steps

from hotloop.cli.main import run as run_here
from hotloop.core.step import read_steps
from hotloop.optimizations.compiling.trainer import compile_model
from hotloop.train import run as run_module


def hotloop(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotloop", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **variables},
    )


def begin(config: Path, run: Path, hold: Path, *overrides: str) -> subprocess.Popen[str]:
    hold.touch()
    program = Path(__file__).with_name("held_program.py")
    return subprocess.Popen(
        [sys.executable, program, "train", config, "--out", run, *overrides],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "HOLD": str(hold), "HOLD_AFTER": "80"},
    )  # fmt: skip


STEPS = 300
LONG = (f"train.steps={STEPS}", "checkpoint.every_steps=20", "eval.every_steps=0")


@pytest.mark.usefixtures("without_compiler")
def test_killed_and_interrupted_the_same_command_continues_without_a_gap(
    tiny_config: Path, tmp_path: Path
) -> None:
    tiny_config.write_text(tiny_config.read_text().replace("  windows: 4\n", ""))
    run, hold = tmp_path / "run", tmp_path / "hold"
    child = begin(tiny_config, run, hold, *LONG)
    wait_for_steps(child, run / "steps.jsonl", 30)
    child.kill()
    child.communicate()
    child = begin(tiny_config, run, hold, *LONG)
    wait_for_steps(child, run / "steps.jsonl", 60)
    child.send_signal(signal.SIGINT)
    hold.unlink()
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 75, errors
    assert "run the same command again to continue" in errors
    done = max(record.step for record in read_steps(run / "steps.jsonl")) + 1
    assert f"saved at step {done}" in errors
    assert done < STEPS
    written = str(tmp_path / "out.json")
    assert run_here(["train", str(tiny_config), "--out", str(run), *LONG, "--json", written]) == 0
    assert json.loads(Path(written).read_text())["steps"] == STEPS
    steps = [record.step for record in read_steps(run / "steps.jsonl")]
    assert steps == list(range(STEPS))


def test_bad_key_exits_2_without_a_traceback(tiny_config: Path, tmp_path: Path) -> None:
    ended = hotloop(
        "train", str(tiny_config), "train.compiled=true", "--out", str(tmp_path / "run")
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[0] == "error: unknown key `train.compiled`"
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_it_trains_eager_and_says_so(tiny_config: Path, tmp_path: Path) -> None:
    ended = hotloop(
        *("train", str(tiny_config), "train.compile=true", "--out", str(tmp_path / "run")),
        CXX="no-such-compiler",
        PATH=str(Path(sys.executable).parent),
    )
    assert ended.returncode == 0, ended.stderr
    assert "train.compile is off: " in ended.stderr
    census = json.loads((tmp_path / "run/census.json").read_text())
    assert census["compiled"] is False
    assert any("train.compile is off" in note for note in census["notes"])


LLAMA = (
    *("train.attention=plain", "optimizer.name=muon", "model.family=llama"),
    *("model.kv_heads=1", "model.qk_norm=true", "model.value_embeddings=true"),
)


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("how", "graphs", "settings"),
    [
        ("true", 1, ("train.attention=sdpa",)),
        ("true", 1, LLAMA),
        ("blocks", 2, ("train.attention=plain", "model.layers=3")),
    ],
    ids=["gpt2", "llama", "blocks"],
)
def test_compiled_training_is_as_many_graphs_with_the_same_losses(
    tiny_config: Path, tmp_path: Path, how: str, graphs: int, settings: tuple[str, ...]
) -> None:
    """Through the whole compiler: a minute of CPU where nothing is cached yet."""
    train = ["train", str(tiny_config), *settings]
    ended = hotloop(*train, f"train.compile={how}", "--out", str(tmp_path / "compiled"))
    assert ended.returncode == 0, ended.stderr
    assert run_here([*train, "train.compile=false", "--out", str(tmp_path / "eager")]) == 0
    assert_graphs_with_the_same_losses(graphs, tmp_path / "compiled", tmp_path / "eager")


@pytest.mark.parametrize(
    ("how", "graphs", "settings"),
    [
        ("true", 1, LLAMA),
        ("blocks", 2, ("model.layers=5",)),
        # Blocks with embeddings of their own for the values are another code.
        ("blocks", 3, (*LLAMA, "model.layers=5", "train.loss=chunked")),
        ("blocks", 2, ("model.layers=5", "train.activation_checkpointing=full")),
    ],
    ids=["whole", "gpt2", "llama", "computed again"],
)
def test_a_block_is_compiled_once_for_all_layers_before_kernels_are_made(
    tiny_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    graphs: int,
    settings: tuple[str, ...],
) -> None:
    """Evaluations, also of fewer sequences, compile nothing."""
    monkeypatch.setattr(run_module, "compile_model", partial(compile_model, backend="aot_eager"))
    train = ["train", str(tiny_config), *settings, "eval.windows=7"]
    torch._dynamo.reset()
    counters.clear()
    try:
        assert run_here([*train, f"train.compile={how}", "--out", str(tmp_path / "compiled")]) == 0
    finally:
        torch._dynamo.reset()
        counters.clear()
    assert run_here([*train, "train.compile=false", "--out", str(tmp_path / "eager")]) == 0
    assert_graphs_with_the_same_losses(graphs, tmp_path / "compiled", tmp_path / "eager")


def assert_graphs_with_the_same_losses(graphs: int, compiled: Path, eager: Path) -> None:
    census = json.loads((compiled / "census.json").read_text())
    assert census["compiled"]
    assert census["num_graphs"] == graphs
    assert census["num_graph_breaks"] == 0
    assert 0.1 < census["compile_s"] < 600
    records = list(read_steps(compiled / "steps.jsonl"))
    assert [record.step for record in records if "compile" in record.tags] == [0]
    for a, b in zip(records, read_steps(eager / "steps.jsonl"), strict=True):
        assert a.loss is not None
        assert b.loss is not None
        assert abs(a.loss - b.loss) < 1e-4 * b.loss


def test_unwritable_directory_exits_4(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run_here(["train", str(tiny_config), "--out", str(tmp_path / "file" / "run")]) == 4
    assert "Traceback" not in capsys.readouterr().err


def test_generate_writes_text_and_refuses_what_is_no_run(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert run_here(["train", str(tiny_config), "--out", run]) == 0
    capsys.readouterr()
    assert run_here(["generate", run, "--prompt", "the ", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the ")
    assert run_here(["generate", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    for wrong in (["--temperature", "nan"], ["--temperature", "1e-320"], ["--seed", "9" * 20]):
        assert run_here(["generate", run, *wrong]) == 2, wrong
