"""The program around a command: what it leaves, how it ends, and the exit code that follows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.command_run import CommandRun
from hotloop.core.errors import ExitCode, UsageError
from hotloop.core.files import read_json
from hotloop.core.judgement import Diagnosis
from hotloop.core.measurement import Measurement
from hotloop.core.step import read_steps
from hotloop.core.telemetry import read_telemetry
from hotloop.doctor.program import Examined, examine, exit_code
from hotloop.trial import attached
from processes import alive

Recording = Callable[[str], list[str]]


def code(examined: Examined, level: float | None = None) -> int:
    return exit_code(examined, level=level)


def test_a_command_that_ends_by_itself_leaves_every_stage(
    workdir: Path, recording: Recording
) -> None:
    found = examine(recording("record(30); finish(); print('own output')"))
    assert code(found) == ExitCode.FINE
    assert found.directory == workdir / "runs" / "doctor-train"
    assert (found.run.ended, found.run.returncode, found.run.left_running) == ("by_itself", 0, ())
    assert read_json(found.directory / "doctor.json", CommandRun) == found.run
    assert read_json(found.directory / "diagnosis.json", Diagnosis) == found.diagnosis
    measurement = read_json(found.directory / "measurement.json", Measurement)
    assert len(measurement.records) == 30
    assert measurement.environment.torch == "2.12.0"
    assert measurement.environment.python == "3.12.1"
    assert found.num_steps == 27
    assert sum(found.diagnosis.breakdown.values()) == pytest.approx(1.0)
    assert found.diagnosis.breakdown["data_wait"] == pytest.approx(4 / 13)
    left = {path.name for path in workdir.iterdir()} | {p.name for p in found.directory.iterdir()}
    assert "path" not in left
    assert {path.name for path in workdir.iterdir()} == {"train.py", "runs"}


HOLDS_MEMORY = """
def is_seen():
    file = directory / "telemetry.jsonl"
    whole = file.read_text().split("\\n")[:-1] if file.exists() else []
    return any(json.loads(line).get("process_bytes", 0) > 300_000_000 for line in whole)
x, end = b"x" * 300_000_000, time.monotonic() + 60
while not is_seen() and time.monotonic() < end:
    time.sleep(0.05)
record(30); finish()
"""


def test_only_its_own_processes_are_in_the_telemetry(recording: Recording) -> None:
    found = examine(recording(HOLDS_MEMORY))
    samples, damaged = read_telemetry(found.directory / "telemetry.jsonl")
    assert not damaged
    assert max(s.process_bytes or 0 for s in samples) > 300_000_000


def test_a_finding_at_the_level_asked_for_is_exit_code_1(recording: Recording) -> None:
    found = examine(recording("record(100); finish()"))
    best = max(f.gain_at_most for f in found.diagnosis.findings if not f.gain_is_loose)
    assert code(found) == ExitCode.FINE
    assert code(found, 1.05) == ExitCode.FOUND
    assert code(found, best + 0.01) == ExitCode.FINE


def test_a_command_that_fails_keeps_its_code_and_what_was_measured(recording: Recording) -> None:
    found = examine(recording("record(30); sys.exit(9)"))
    assert code(found) == ExitCode.COMMAND_FAILED
    assert (found.run.ended, found.run.returncode) == ("failed", 9)
    assert found.num_steps == 27


def test_a_command_that_is_killed_is_named_by_its_signal(recording: Recording) -> None:
    found = examine(recording("record(8); os.kill(os.getpid(), 9)"))
    assert (found.run.ended, found.run.returncode) == ("failed", -signal.SIGKILL)


@pytest.mark.parametrize("body", ["", "record(3)", "record(7)"])
def test_too_few_steps_say_nothing(body: str, recording: Recording) -> None:
    found = examine(recording(body))
    assert code(found) == ExitCode.INCONCLUSIVE


def test_enough_steps_end_it_without_its_ending_being_called_a_failure(
    recording: Recording,
) -> None:
    body = (
        "record(23); finish(stopped=True)\n"
        "if os.fork() == 0:\n    time.sleep(60)\n"
        "(directory / 'stop').write_text(os.environ['HOTLOOP_DOCTOR_STOP'])\n"
        "os._exit(0)"
    )
    found = examine(recording(body), steps=20)
    assert (found.run.ended, found.run.returncode) == ("enough_steps", None)
    assert found.run.left_running == ()
    assert (found.directory / "stop").read_text() == "20"
    assert found.run.seconds is None
    assert code(found) == ExitCode.FINE


ENDLESS = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
EXAMINE = """
import sys
from hotloop.doctor.program import examine
from hotloop.runs.stored_run import read_run
found = examine(sys.argv[1:], seconds=0.5, say=print)
ranks = len(read_run(found.directory).ranks.ranks)
print(found.run.ended, found.run.seconds, found.run.returncode, found.num_steps >= 8, ranks)
"""


def test_endless_command_is_ended_after_so_many_seconds_of_steps_all_ranks_after_the_same(
    tmp_path: Path, without_compiler: None
) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, "train.py"]
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE, *command],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    said, ended = done.stdout.strip().splitlines()
    assert "it is ended after 0.5 s of its steps, --to-end runs it whole" in said
    assert ended == "enough_steps 0.5 None True 2"
    files = sorted(tmp_path.glob("runs/*/steps-*.jsonl"))
    # How many these are, and how many of them are the start, differs with what else the machine does.
    counted = [each for each in read_steps(files[0]) if not {"warmup", "profiled"} & {*each.tags}]
    assert sum(each.wall_s for each in counted) > 0.499
    last = [json.loads(file.read_text().splitlines()[-1])["step"] for file in files]
    assert len(last) == 2
    assert len(set(last)) == 1, last
    assert "Traceback" not in done.stderr, done.stderr


ON_ITS_OWN_DISK = """
import sys
from hotloop.cli.main import run
from hotloop.trial import attached
attached.ENOUGH_GRACE_S = 1.0  # what it has to end by itself, which it does not
sys.exit(run(sys.argv[1:]))
"""


def test_command_whose_steps_find_no_room_on_the_disk_is_ended(
    tmp_path: Path, without_compiler: None
) -> None:
    (tmp_path / "train.py").write_text(ENDLESS.replace("torch.distributed.init_process_group", "print").replace(
        "torch.nn.parallel.DistributedDataParallel", ""))  # fmt: skip
    mount = ["mount", "-t", "tmpfs", "-o", "size=140k", "none", str(tmp_path / "runs")]
    (tmp_path / "runs").mkdir()
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-c", ON_ITS_OWN_DISK, "doctor", "--no-try", "--"),
                *(sys.executable, "train.py"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
        )
    finally:
        subprocess.run(["umount", str(tmp_path / "runs")], check=True)
    assert done.returncode == ExitCode.ENVIRONMENT, done.stderr
    assert "the command was ended: no space left on the disk" in done.stderr


CLEARS_RUNS = """
import shutil
Path("pid").write_text(str(os.getpid()))
while Path("runs").exists():  # telemetry is written there meanwhile
    shutil.rmtree("runs", ignore_errors=True)
time.sleep(600)
"""


def test_command_that_removes_the_directory_of_its_run_is_ended(
    workdir: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "ENOUGH_GRACE_S", 0.1)
    try:
        with pytest.raises(UsageError, match="was removed while the command ran"):
            examine(recording(CLEARS_RUNS))
    finally:
        process = int((workdir / "pid").read_text())
        was_left = alive(process)
        if was_left:
            os.kill(process, signal.SIGKILL)
    assert not was_left


def test_interrupted_is_75_and_what_was_seen_is_judged(recording: Recording) -> None:
    # To the process that examines, which is this one: the command ends by what is passed on.
    body = "record(30)\nos.kill(os.getppid(), 15)\ntime.sleep(60)"
    found = examine(recording(body))
    assert code(found) == ExitCode.RESUMABLE
    assert found.run.ended == "interrupted"
    assert found.num_steps == 27
    assert found.diagnosis.breakdown


def test_what_outlives_it_is_left_running_and_goes_on_recording(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "LINGER_S", 0.3)
    body = "record(1)\nif os.fork():\n    os._exit(0)\nos.setsid()\ntime.sleep(60)"
    found = examine(recording(body))
    try:
        assert len(found.run.left_running) == 1
        assert (found.directory / "path" / "hotloop").exists()
        assert code(found) == ExitCode.INCONCLUSIVE
    finally:
        os.kill(found.run.left_running[0], signal.SIGKILL)


def test_that_it_began_to_make_steps_is_kept_where_nothing_else_was_written(
    recording: Recording,
) -> None:
    found = examine(recording("(directory / 'claim-0').touch(); os._exit(0)"))
    assert (found.directory / "claim-0").exists()
    found = examine(recording("(directory / 'claim-0').touch(); record(30); finish()"))
    assert not (found.directory / "claim-0").exists()


def test_the_directory_is_found_when_it_changes_its_own(
    workdir: Path, recording: Recording
) -> None:
    found = examine(recording("os.chdir('/'); record(30); finish()"), out=Path("here"))
    assert found.directory == workdir / "here"
    assert found.num_steps == 27


def test_a_command_that_cannot_start_leaves_no_directory(workdir: Path) -> None:
    broken = workdir / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match="cannot run"):
        examine([str(broken)])
    assert not list((workdir / "runs").iterdir())


def test_ranks_are_kept_apart_and_the_first_is_judged(recording: Recording) -> None:
    body = "record(30, rank=0); record(30, rank=1, wait=0.2); finish(rank=0); finish(rank=1)"
    found = examine(recording(body))
    assert found.diagnosis.breakdown["data_wait"] == pytest.approx(4 / 13)


def test_on_the_second_machine_the_lowest_rank_is_judged(recording: Recording) -> None:
    found = examine(recording("record(30, rank=8); record(30, rank=9); finish(rank=8)"))
    assert found.num_steps == 27
    assert read_json(found.directory / "measurement.json", Measurement).census is not None


def test_its_output_is_its_own(capfd: pytest.CaptureFixture[str], recording: Recording) -> None:
    said: list[str] = []
    body = recording("print('out'); print('err', file=sys.stderr)")
    examine(body, seconds=None, say=said.append)
    assert capfd.readouterr() == ("out\n", "err\n")
    assert said == ["what it does is recorded in runs/doctor-train"]


def test_its_environment_is_the_users(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    examine(recording("json.dump(dict(os.environ), open('seen.json', 'w'))"), seconds=None)
    seen = json.loads((workdir / "seen.json").read_text())
    added = {k for k, v in seen.items() if os.environ.get(k) != v} - {"LC_CTYPE"}
    assert added == {"PYTHONPATH", "HOTLOOP_DOCTOR"}
    assert set(os.environ) <= set(seen)


def test_what_is_open_for_it_stays_open(recording: Recording) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        examine(recording(f"os.write({writing}, b'through')"))
        assert os.read(reading, 100) == b"through"
    finally:
        os.close(reading)
        os.close(writing)


def test_handlers_are_as_before_when_it_is_over(workdir: Path) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    examine([sys.executable, "-c", "pass"])
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_looking_on_does_not_load_torch(workdir: Path, recording: Recording) -> None:
    """It would take seconds before the command starts, and memory while it runs."""
    watcher = (
        "import sys; from hotloop.doctor.program import examine; examine(sys.argv[1:]); "
        "sys.exit(9 if 'torch' in sys.modules else 0)"
    )
    command = [sys.executable, "-c", watcher, *recording("record(30); finish()")]
    assert subprocess.run(command, cwd=workdir, timeout=120).returncode == 0
