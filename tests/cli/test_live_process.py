"""`hotloop doctor --pid PID`: real trainings that run already, and what is no training."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import live_process_view  # loaded before rights are given up
from hotloop.cli.main import run
from hotloop.core.stack_profile import StackProfile
from processes import wait_for

MAY_BE_SAMPLED = "import ctypes; ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))\n"
"""Lets any process sample this one where Yama restricts that to its ancestors (PR_SET_PTRACER)."""

SCRIPT = (
    MAY_BE_SAMPLED
    + """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 10**7
    def __getitem__(self, index):
        time.sleep(float(sys.argv[2]))  # as a slow disk
        return torch.full((16,), float(index % 7)), torch.tensor(float(index % 5))

def metrics():
    end = time.perf_counter() + float(sys.argv[3])
    while time.perf_counter() < end:
        pass

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for number, (x, y) in enumerate(DataLoader(Items(), batch_size=4, num_workers=int(sys.argv[1]))):
    (model(x).squeeze(1) - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    metrics()
    if number == 3:
        open("trains-" + os.environ.get("RANK", ""), "w").close()
"""
)

LAUNCHER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.default_int_handler)
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "RANK": rank})
         for rank in ("1", "0")]
print(*(each.pid for each in ranks), flush=True)
try:
    ranks[0].wait()
finally:
    for each in ranks:
        each.kill()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, without_compiler: None) -> Iterator[Start]:
    """Starts a Python in `tmp_path`; all are ended after the test."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "launch.py").write_text(LAUNCHER)
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for each in started:
        each.terminate()
        each.communicate()


def running(start: Start, program: str) -> subprocess.Popen[str]:
    """A Python that has come to `program`, and may be sampled."""
    process = start("-c", f"{MAY_BE_SAMPLED}print(flush=True)\n{program}")
    assert process.stdout is not None
    process.stdout.readline()
    return process


SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def sampling(start: Start) -> None:
    """Skips where the machine lets no process be sampled."""
    if not (
        shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    ):
        pytest.skip("py-spy is not installed")
    process = running(start, SLEEPS)
    try:
        open(f"/proc/{process.pid}/mem", "rb").close()
    except PermissionError:
        pytest.skip("this machine lets no process be sampled (ptrace)")


def examined(directory: Path, pid: int, *options: str) -> dict[str, Any]:
    file = directory / "found.json"
    assert run(["doctor", "--pid", str(pid), "--seconds", "2", "--json", str(file), *options]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def wait_until_it_trains(directory: Path, name: str = "trains-") -> None:
    deadline = time.monotonic() + 120
    while not (directory / name).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (directory / name).exists()


def line(found: dict[str, Any]) -> tuple[str, str | None]:
    return found["lines"][0]["site"], found["lines"][0]["text"]


def number_of(text: str) -> int:
    return next(n for n, each in enumerate(SCRIPT.splitlines(), start=1) if text in each)


def test_a_wait_for_items_comes_out_largest_with_its_line_and_the_command_for_next_time(
    start: Start, sampling: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start("train.py", "0", "0.02", "0.015")
    wait_until_it_trains(tmp_path)
    found = examined(tmp_path, process.pid)
    assert process.poll() is None
    largest = found["phases"][0]
    assert largest["phase"] == "data_wait"
    assert 0.5 < largest["low"] < largest["fraction"] < largest["high"] <= 1
    assert line(largest) == (
        f"train.py:{number_of('slow disk')}",
        "time.sleep(float(sys.argv[2]))  # as a slow disk",
    )
    assert [each["code"] for each in largest["worth_trying"]] == ["HL102"]
    assert "loader_workers" in largest["worth_trying"][0]["fixes"]
    assert sum(each["fraction"] for each in found["phases"]) == pytest.approx(1)
    command = f"hotloop doctor -- {shlex.join([sys.executable, 'train.py', '0', '0.02', '0.015'])}"
    assert found["command"] == f"cd {shlex.quote(str(tmp_path))} && {command}"
    said = capsys.readouterr().out
    assert said.startswith(f"PID {process.pid}: data_wait about")
    assert command in said
    assert "HL102  Batches are made one by one between the steps: `hotloop explain HL102`" in said


def test_workers_that_are_late_are_named_by_their_own_line(
    start: Start, sampling: None, tmp_path: Path
) -> None:
    process = start("train.py", "1", "0.02", "0.0")
    wait_until_it_trains(tmp_path)
    found = examined(tmp_path, process.pid)
    assert found["pid"] == process.pid
    assert found["phases"][0]["phase"] == "data_wait"
    assert [each["code"] for each in found["phases"][0]["worth_trying"]] == ["HL104"]
    assert found["workers"]["fraction"] > 0.5
    assert line(found["workers"])[0] == f"train.py:{number_of('slow disk')}"


def test_of_a_launcher_rank_0_is_examined_and_a_slow_line_of_its_own_comes_out_largest(
    start: Start, sampling: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start("launch.py", "train.py", "0", "0.0", "0.05")
    assert process.stdout is not None
    rank_1, rank_0 = map(int, process.stdout.readline().split())
    wait_until_it_trains(tmp_path, "trains-0")
    found = examined(tmp_path, process.pid)
    assert found["pid"] == rank_0
    assert f"the others, too: {rank_1}" in found["notes"][0]
    largest = found["phases"][0]
    assert largest["phase"] == "unattributed"
    assert largest["lines"][0]["function"] == "metrics"
    assert [each["code"] for each in largest["worth_trying"]] == ["HL801"]
    assert "launch.py train.py 0 0.0 0.05" in found["command"]
    assert f"PID {rank_0}: unattributed about" in capsys.readouterr().out


def test_a_python_that_does_not_train_is_said_so_and_one_that_ends_meanwhile_was_seen(
    start: Start,
    sampling: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process, sample = running(start, SLEEPS), subprocess.run

    def sample_and_end(words: Any, **options: Any) -> Any:
        if "record" in words:
            threading.Timer(3, process.kill).start()
        return sample(words, **options)

    monkeypatch.setattr(subprocess, "run", sample_and_end)
    begun = time.monotonic()
    assert run(["doctor", "--pid", str(process.pid), "--seconds", "600"]) == 3
    assert time.monotonic() - begun < 300
    said = capsys.readouterr().out
    assert f"PID {process.pid}: no training was seen" in said
    assert "nothing of torch's training was seen" in said


def test_what_is_no_python_is_refused(
    start: Start, sampling: None, capsys: pytest.CaptureFixture[str]
) -> None:
    process = running(start, "import os; os.execvp('sleep', ['sleep', '600'])")
    assert wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    code = run(["doctor", "--pid", str(process.pid), "--seconds", "1"])
    if code == 4:
        pytest.skip("this machine lets no process be sampled (ptrace)")
    assert code == 2
    assert "is no Python process" in capsys.readouterr().err


def test_a_pid_that_is_hotloops_own_or_nobodys_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid, what in ((os.getpid(), "is hotloop itself"), (ended.pid, "no process")):
        assert run(["doctor", "--pid", str(pid)]) == 2
        assert what in capsys.readouterr().err


def test_without_the_right_to_read_a_process_it_is_said_what_to_do(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert live_process_view.show_live_process
    if os.getuid():
        code = run(["doctor", "--pid", "1"])
    else:
        child = os.fork()
        if not child:
            os.setuid(65534)
            os._exit(run(["doctor", "--pid", str(os.getppid())]))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 4
    err = capfd.readouterr().err
    assert "not permitted to read the stacks" in err
    assert "ptrace_scope" in err


def test_without_py_spy_it_is_said_how_to_get_it(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = running(start, SLEEPS)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    code = run(["doctor", "--pid", str(process.pid)])
    err = capsys.readouterr().err
    if code == 4:
        pytest.skip("this machine lets no process be sampled (ptrace)")
    assert code == 2
    assert "error: --pid needs py-spy\n  pip install 'hotloop[pid]'" in err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--pid", "1", "--budget", "5m"], "--budget has no effect with --pid"),
        (["--pid", "1", "--", "python", "train.py"], "COMMAND has no effect with --pid"),
        (["--seconds", "5", "--", "python", "train.py"], "--seconds has no effect without --pid"),
        (["--pid", "0"], "0 is not in the range"),
    ],
)
def test_what_has_no_effect_is_refused(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", *words]) == 2
    assert what in capsys.readouterr().err


def test_the_json_goes_to_stdout_alone_where_that_is_asked_for(
    start: Start, sampling: None, capsys: pytest.CaptureFixture[str]
) -> None:
    process = running(start, SLEEPS)
    assert run(["doctor", "--pid", str(process.pid), "--seconds", "1", "--json", "-"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert set(found) == set(StackProfile.__dataclass_fields__)
