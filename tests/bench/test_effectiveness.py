"""`hotloop bench effectiveness`, end to end: of a config, and of a script that was not written for it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.bench.effectiveness import chosen_options
from hotloop.cli.main import run
from hotloop.core.errors import ExitCode, UsageError
from hotloop.tune.options import AUTO, Known
from hotloop.tune.settings import Words, alone

SOURCE = Path(__file__).parents[2] / "src"
WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"

SCRIPT = """
import torch

def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(True)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(40)), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(8, 16)
    for _ in range(150):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    main()
"""

CONFIG = """
name: tiny
data: {source: python-stdlib, tokenizer: bytes}
model: {layers: 1, width: 32, heads: 2, context: 32}
train: {steps: 200, microbatch: 4, compile: false, precision: fp32, num_threads: 1}
eval: {every_steps: 0}
checkpoint: {every_steps: 0}
"""


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (WITHOUT_COMPILER, SOURCE))))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(*words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what `--json` has."""
    options = ["--json", "found.json", "--markdown", "found.md"]
    code = run(["bench", "effectiveness", *options, *words])
    return code, json.loads(Path("found.json").read_text()) if Path("found.json").exists() else {}


COMMAND = ("--", sys.executable, "train.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to measure was given"),
        (["tiny.yaml", *COMMAND], "a config, tiny.yaml, and a command were given"),
        (["--only", "nope", *COMMAND], "no technique `nope`"),
        (["tiny.yaml", "--only", "nope"], "nothing is called `nope` here"),
        (["tiny.yaml", "train.nope=1"], "unknown key `train.nope`"),
        (["tiny.yaml", "train.steps=0"], "train.steps"),
        (["nope.yaml"], "no such config file"),
        (["tiny.yaml", "--pairs", "5"], "is not one of '4', '6', '10'"),
        (["tiny.yaml", "--budget", "20"], "has no unit"),
        (["tiny.yaml", "--markdown", "no/such/file.md"], "no such directory"),
        (["tiny.yaml", "--markdown", "-"], "would mix with what the command prints"),
        (["--", "python", "nope.py"], "no such script `nope.py`"),
    ],
)
def test_bad_input_is_told_before_anything_runs(
    words: list[str], said: str, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "effectiveness", *words]) == ExitCode.USAGE
    told = capfd.readouterr().err
    assert said in told
    assert told.startswith("error: ")
    assert sorted(each.name for each in workdir.iterdir()) == ["tiny.yaml", "train.py"]


def test_a_command_that_fails_is_an_answer(workdir: Path) -> None:
    (workdir / "train.py").write_text("raise SystemExit(3)")
    code, found = measured(*COMMAND)
    assert (code, found) == (ExitCode.COMMAND_FAILED, {})


def test_a_budget_too_small_for_one_fix_says_which_is_not(
    workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _ = measured("--budget", "4s", *COMMAND)
    assert code == ExitCode.USAGE
    said = capfd.readouterr().err
    assert "testing one fix here needs about" in said
    assert "hotloop bench effectiveness --json found.json --markdown found.md --budget" in said


def options() -> tuple[list[Words], list[Words]]:
    def words(name: str, *values: str) -> Words:
        return Words(name, values, Known("", techniques=(name.split(".")[-1],)), "bitwise")

    first = words(AUTO, "train.precision=bf16 train.compile=true")
    rest = [
        words("train.precision", "train.precision=bf16", "train.precision=fp32"),
        words("train.compile", "train.compile=true"),
    ]
    return [first], rest


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        ((), [[1], [2, 1]]),
        ((AUTO,), [[1], []]),
        (("train.precision",), [[], [2]]),
        (("precision", "compile"), [[], [2, 1]]),
        (("train.precision=fp32", AUTO), [[1], [1]]),
    ],
)
def test_only_names_keys_techniques_and_single_settings(
    only: tuple[str, ...], chosen: list[list[int]]
) -> None:
    rounds = chosen_options(*options(), only)
    assert [[len(option.values) for option in each] for each in rounds] == chosen


def test_a_name_that_is_misspelt_is_told_what_is_close() -> None:
    with pytest.raises(UsageError, match="nothing is called `train") as refused:
        chosen_options(*options(), ["train.precison"])
    assert "did you mean `train.precision`?" in str(refused.value)


def test_a_setting_that_needs_another_one_is_not_measured_alone() -> None:
    config = SOURCE.parent / "configs/quickstart-plain.yaml"
    both = Words("both", ("train.clip=fused", "optimizer.fused=true"), Known(""), "reduction_order")
    clips = Words("train.clip", ("train.clip=fused",), Known(""), "reduction_order")
    assert [each.values for each in alone([both, clips], config, ())] == [("optimizer.fused=true",)]
    fused = alone([clips], config, ("optimizer.fused=true",))
    assert [each.values for each in fused] == [("train.clip=fused",)]


@pytest.mark.slow
def test_fixes_of_a_command_are_measured_alone_and_together_and_go_on(
    workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    only = ("--only", "anomaly_mode", "--only", "channels_last", "--only", "item_cache")
    code, found = measured(*only, "--budget", "4m", *COMMAND)
    assert code == ExitCode.FINE
    rows = {each["name"]: each for each in found["rows"]}
    assert rows.keys() == {"anomaly_mode", "channels_last"}
    assert rows["anomaly_mode"]["status"] == "kept"
    assert rows["anomaly_mode"]["verdict"]["outcome"] == "improved"
    assert rows["anomaly_mode"]["start_s"] is not None
    assert rows["channels_last"]["status"] == "not_applied"
    assert [each["name"] for each in found["not_here"]] == ["item_cache"]
    assert found["whole"]["value"] == "anomaly_mode"
    assert found["whole"]["verdict"]["outcome"] == "improved"
    assert "hotloop bench effectiveness --only anomaly_mode" in found["made_with"]
    text = Path("found.md").read_text()
    assert "| **all that was kept** |" in text
    assert text.splitlines()[-1].endswith(f"{found['date']}: `{found['made_with']}`.")
    made = {each: each.stat().st_mtime_ns for each in workdir.rglob("measurement.json")}

    capfd.readouterr()
    code, again = measured(*only, "--budget", "4m", *COMMAND)
    assert code == ExitCode.FINE
    assert again["whole"] == found["whole"]
    assert {e: e.stat().st_mtime_ns for e in workdir.rglob("measurement.json")} == made
    assert Path("found.md").read_text().splitlines()[:4] == text.splitlines()[:4]


@pytest.mark.slow
def test_settings_of_a_config_are_measured_alone_whatever_they_bring(workdir: Path) -> None:
    only = ("--pairs", "4", "--budget", "10m", "--only", "optimizer.fused")
    code, first = measured("tiny.yaml", *only)
    assert code == ExitCode.FINE
    code, found = measured("tiny.yaml", *only, "--only", "split")  # on from there
    assert code == ExitCode.FINE
    assert first["rows"][0] in found["rows"]
    assert found["ledger"]["continued"]
    rows = {each["name"]: each for each in found["rows"]}
    assert "optimizer.fused=false" not in rows  # as the config has it
    split = rows["train.microbatch=2 train.grad_accum_steps=2"]
    for row in rows.values():
        assert row["verdict"]["num_pairs"] == 4
        assert row["verdict"]["ratio_low"] < row["verdict"]["ratio"] < row["verdict"]["ratio_high"]
        assert row["verdict"]["parity"]["result"] in ("same", "within_noise")
    assert split["verdict"]["ratio"] < 1
    assert found["whole"] is None
    assert found["not_here"] == []
    assert [each.name for each in Path("runs").iterdir()] == ["effectiveness-tiny"]
