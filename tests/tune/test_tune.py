"""`hotloop tune`, end to end, on a small script that was not written for it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.main import run
from hotloop.core.errors import ExitCode
from hotloop.trial import session
from hotloop.tune import runner

SOURCE = Path(__file__).parents[2] / "src"
WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"
TUNE = [sys.executable, "-m", "hotloop", "tune"]

SCRIPT = """
import argparse
import time
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--sleep-ms", type=float, default=10.0)
parser.add_argument("--cheat", action="store_true")
parser.add_argument("--unused-batch-size", type=int, default=8)
parser.add_argument("--hang", action="store_true")
args = parser.parse_args()

class Data(Dataset):
    def __len__(self):
        return 8 * 64
    def __getitem__(self, index):
        return torch.full((16,), float(index % 7)), torch.tensor(float(index % 5))

def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * (1 + args.cheat))
    if args.hang:
        time.sleep(600)
    for number, (x, y) in enumerate(DataLoader(Data(), batch_size=args.batch_size), 1):
        loss = (model(x).squeeze(1) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.sleep_ms / 1000 / (1 + args.cheat))

if __name__ == "__main__":
    main()
"""

VARY = (
    *("--vary", "--sleep-ms=1,40", "--parity", "sleep-ms=bitwise"),
    *("--vary", "--cheat", "--parity", "cheat=bitwise"),
    *("--vary", "--batch-size=32", "--vary", "--bogus=1"),
)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    path = [WITHOUT_COMPILER, SOURCE]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, path)))
    # What other programs take is no matter of these tests, and a pair that is set aside for it is not where it was.
    monkeypatch.setattr(session, "MOST_UNEVEN", 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tuned(*options: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what `--json` has."""
    file = Path("found.json")
    code = run(["tune", *options, "--json", str(file), "--", sys.executable, "train.py"])
    return code, json.loads(file.read_text()) if file.exists() else {}


def test_values_are_kept_shown_refused_and_rejected_a_killed_call_goes_on_and_an_edited_script_begins_anew(
    workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*TUNE, *VARY, "--", sys.executable, "train.py"]
    killed = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    trials, deadline = workdir / "runs/tune-train/trials", time.monotonic() + 600
    while not any(trials.glob("*/pair-02-*/measurement.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    made = {each: each.stat().st_mtime_ns for each in trials.glob("*/*/measurement.json")}
    assert made

    code, found = tuned(*VARY)
    assert code == ExitCode.FINE
    said = capfd.readouterr().err
    assert f"run it with: {sys.executable} train.py --sleep-ms=1\n" in said
    assert {each: each.stat().st_mtime_ns for each in made} == made
    assert found["continued"]
    assert found["kept"] == ["--sleep-ms=1"]
    assert found["run_with"] == f"{sys.executable} train.py --sleep-ms=1"
    assert found["together"]["outcome"] == "improved"
    assert found["together"]["ratio"] > 2
    assert found["together"]["parity"]["result"] == "same"

    fixes = {each["name"]: each for each in found["fixes"]}
    assert {name: each["status"] for name, each in fixes.items()} == {
        "--sleep-ms=1": "kept",
        "--sleep-ms=40": "stopped",  # no further than its first pairs
        "--cheat on": "rejected",
        "--batch-size=32": "what_if",
        "--bogus=1": "failed",
    }
    for name, each in fixes.items():
        assert f"\n  {each['status'].replace('_', ' '):<12} {name} " in said
    statuses = [(each["name"], each["status"]) for each in found["fixes"]]
    assert [(each["optimization"], each["status"]) for each in found["trials"]] == statuses
    assert found["final"]["ratio"] == found["together"]["ratio"]
    assert fixes["--sleep-ms=40"]["verdict"]["num_pairs"] == 2
    assert fixes["--sleep-ms=40"]["verdict"]["ratio"] < 0.7
    assert "learns something else" in fixes["--cheat on"]["why"]
    assert "unrecognized arguments: --bogus=1" in fixes["--bogus=1"]["why"]
    larger = fixes["--batch-size=32"]  # of a fourth of the steps, compared per sample
    assert larger["steps"] + larger["warmup_steps"] == 16
    assert larger["verdict"]["unit"] == "sample"
    assert larger["verdict"]["outcome"] == "improved"
    assert 1.5 < larger["verdict"]["ratio"] < 8  # by steps it would be 1, counted twice 16
    assert "--accept batch-size" in larger["why"]
    assert "--sleep-ms=1" in (workdir / "runs/tune-train/report.html").read_text()
    assert run(["report", "runs/tune-train"]) == 0
    assert "run it with" in capfd.readouterr().out

    begun = time.time()
    code, again = tuned(*VARY)  # all of it is there
    assert code == ExitCode.FINE
    assert again["together"] == found["together"]
    assert all(each.stat().st_mtime < begun for each in trials.glob("*/pair-*/measurement.json"))

    # Of another torch nothing of that counts, and a pair takes more than is left.
    file = workdir / "runs/tune-train/environment.json"
    environment = json.loads(file.read_text())
    file.write_text(json.dumps({**environment, "torch": "2.0.0"}))
    code, _ = tuned("--vary", "--sleep-ms=40", "--parity", "sleep-ms=bitwise", "--budget", "1s")
    assert code == ExitCode.USAGE
    said = capfd.readouterr().err
    now = f"torch (2.0.0 then, {environment['torch']} now)"
    assert f"runs/tune-train holds a run of another {now}: this begins in runs/tune-train-2" in said
    assert "--out runs/tune-train-2 --budget" in said

    file.write_text(json.dumps(environment))
    shutil.rmtree(workdir / "runs/tune-train-2")
    (workdir / "train.py").write_text(SCRIPT + "# edited\n")
    code, _ = tuned("--vary", "--sleep-ms=40", "--parity", "sleep-ms=bitwise", "--budget", "1s")
    assert code == ExitCode.USAGE  # nor of another script
    assert (workdir / "runs/tune-train-2").is_dir()
    said = capfd.readouterr().err
    assert "a pair of runs takes about" in said
    assert "--out runs/tune-train-2 --budget" in said


@pytest.mark.slow
def test_what_hangs_or_is_not_used_is_told_and_what_is_accepted_is_kept(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE_S", 1.0)
    code, found = tuned(
        *("--vary", "--hang", "--parity", "hang=bitwise"),
        *("--vary", "--unused-batch-size=80"),
        *("--vary", "--batch-size=16,32", "--accept", "batch-size"),
    )
    assert code == ExitCode.FINE
    assert found["kept"] == ["--batch-size=32"]
    fixes = {each["name"]: each for each in found["fixes"]}
    assert fixes["--hang on"]["status"] == "failed"
    assert "had not finished after" in fixes["--hang on"]["why"]
    assert fixes["--unused-batch-size=80"]["status"] == "not_applied"
    assert fixes["--batch-size=32"]["why"] == "faster, and trains otherwise, as accepted"
    assert "--batch-size=32 looked faster" in fixes["--batch-size=16"]["why"]


ACCUMULATING = (
    SCRIPT.replace("8 * 64", "8 * 100")
    .replace(
        """        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep""",
        """        (loss / args.accum).backward()
        if number % args.accum == 0:
            optimizer.step()
            optimizer.zero_grad()
        time.sleep""",
    )
    .replace(
        'parser.add_argument("--hang"',
        'parser.add_argument("--accum", type=int, default=4)\nparser.add_argument("--hang"',
    )
)


@pytest.mark.parametrize("divides", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_larger_batch_with_less_accumulation_is_kept_where_it_is_the_same_step(
    workdir: Path, divides: bool
) -> None:
    script = ACCUMULATING if divides else ACCUMULATING.replace("loss / args.accum", "loss")
    (workdir / "train.py").write_text(script)
    code, found = tuned("--vary", "--batch-size=32", "--accumulate-with", "--accum")
    assert code == ExitCode.FINE
    (fix,) = found["fixes"]
    assert fix["name"] == "--batch-size=32 --accum=1"
    if divides:
        assert found["kept"] == [fix["name"]]
        assert found["run_with"] == f"{sys.executable} train.py --accum=1 --batch-size=32"
        assert fix["verdict"]["unit"] == "sample"
        assert fix["verdict"]["ratio"] > 2
    else:  # its gradients are four times as small then
        assert fix["status"] == "rejected"
        assert "learns something else" in fix["why"]


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    ("said", "fails"),
    [
        ("CUDA error: no CUDA-capable device is detected", "True"),
        ("its data have gone", "args.sleep_ms == 10"),
    ],
)
def test_a_command_that_does_not_run_any_more_ends_it_and_once_it_does_it_goes_on(
    workdir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    said: str,
    fails: str,
) -> None:
    gone = tmp_path_factory.mktemp("machine") / "gone"
    breaks = (
        f"    if Path({str(gone)!r}).exists() and {fails}:\n        raise RuntimeError({said!r})\n"
    )
    script = SCRIPT.replace("def main():\n", f"def main():\n{breaks}")
    (workdir / "train.py").write_text(f"from pathlib import Path\n{script}")
    values = ("--vary", "--sleep-ms=1,5", "--parity", "sleep-ms=bitwise")
    timed = runner.OptionRunner.timed

    def breaking(self: Any, *given: Any, **rest: Any) -> Any:
        result = timed(self, *given, **rest)
        gone.touch()
        return result

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(runner.OptionRunner, "timed", breaking)
        code, found = tuned(*values)
    assert (code, found) == (ExitCode.ENVIRONMENT, {})
    printed = capfd.readouterr().err
    assert "fails now in two processes running: `baseline` ended with exit code 1\n" in printed
    assert f"RuntimeError: {said}" in printed
    assert ("look at `nvidia-smi`" in printed) == ("CUDA" in said)
    trials = workdir / "runs/tune-train/trials"
    assert not list(trials.glob("again-*"))
    made = {each: each.stat().st_mtime_ns for each in trials.glob("*/*/measurement.json")}
    assert made

    gone.unlink()
    code, found = tuned(*values)
    assert (code, found["kept"]) == (ExitCode.FINE, ["--sleep-ms=1"])
    assert {each: each.stat().st_mtime_ns for each in made} == made


def test_a_command_that_fails_is_an_answer(workdir: Path) -> None:
    (workdir / "train.py").write_text("raise SystemExit(3)")
    code, _ = tuned("--vary", "--num-workers=1")
    assert code == ExitCode.COMMAND_FAILED


@pytest.mark.parametrize("vary", ["--batch-size=32", "--bptt=64", "train.batch_size=32"])
def test_work_of_a_step_that_nothing_tells_is_asked_for(
    workdir: Path, capfd: pytest.CaptureFixture[str], vary: str
) -> None:
    text = SCRIPT.replace("DataLoader(Data(), batch_size=args.batch_size)", "batches()")
    text = text.replace(
        '"--batch-size", type=int, default=8', '"--batch-size", type=int, default=4 + 4'
    )
    batches = "\ndef batches():\n    for _ in range(60):\n        yield torch.randn(8, 16), torch.zeros(8)\n"
    (workdir / "train.py").write_text(text.replace("\ndef main", batches + "\ndef main"))
    code, _ = tuned("--vary", vary)
    assert code == ExitCode.USAGE
    assert "write the script's own default into the command" in capfd.readouterr().err


def test_what_a_name_does_not_tell_is_asked_for_on_a_terminal(workdir: Path) -> None:
    controller, terminal = pty.openpty()
    options = ["--vary", "--foo=1", "--", "python", "not-there.py"]
    process = subprocess.Popen([*TUNE, *options], stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.write(controller, b"bitwise\n")
    assert process.wait(120) == ExitCode.USAGE
    said = b""
    with suppress(OSError):  # that is how a terminal ends
        while piece := os.read(controller, 10_000):
            said += piece
    os.close(controller)
    assert b"What may --foo change in what is learnt?" in said
    assert b"no such script `not-there.py`" in said
