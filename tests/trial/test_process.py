from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotloop.core.command_run import describe_end
from hotloop.core.errors import CommandFailed, UsageError
from hotloop.trial import process, watchdog
from hotloop.trial.process import run_process, tail
from processes import alive, wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")

# A grandchild in a session of its own, as torchrun makes them, that ignores polite requests.
FAMILY = """
import subprocess, sys, time
source = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-S", "-c", source], start_new_session=True)
open(sys.argv[1] + ".part", "w").write(str(child.pid))
import os; os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""

# hotloop itself, as a process that can be interrupted or killed.
PARENT = """
import os, sys
from pathlib import Path
from hotloop.trial import process
from hotloop.trial.process import run_process
process.GRACE_S = 1.0
here = Path(sys.argv[1])
try:
    run_process([sys.executable, "-S", "-c", sys.argv[2], str(here / "pid")], workdir=here,
                env=dict(os.environ), log=here / "log", timeout_s=600, name="family")
except KeyboardInterrupt:
    sys.exit(75)
"""


def run(source: str, directory: Path, *, timeout_s: float = 300, arguments: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    return run_process(
        [sys.executable, "-S", "-c", source, *arguments],
        workdir=directory,
        env=dict(os.environ),
        log=directory / "log",
        timeout_s=timeout_s,
        name="it",
    )


def start_family(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(directory), FAMILY])
    assert wait_for((directory / "pid").exists)
    return parent, int((directory / "pid").read_text())


@linux
def test_wall_time_is_measured_without_polling_naps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    wait = subprocess.Popen.wait

    def seen(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        limits.append(timeout)
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", seen)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        times.append(run("import time; time.sleep(0.1)", tmp_path).wall_s)
        assert 0.1 < times[-1] < time.perf_counter() - began
    assert min(times) < 1.0  # its end is seen when it comes, not at the next look
    assert set(limits) == {None}  # with a limit, Popen naps for up to 50 ms


@linux
def test_timeout_ends_grandchildren_too_and_quotes_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 1.0)
    pid = tmp_path / "pid"
    # Its time is over as soon as the grandchild is there, however long that takes.
    late = SimpleNamespace(
        time=time.time,
        monotonic=time.monotonic,
        sleep=time.sleep,
        perf_counter=lambda: time.perf_counter() + 900 * pid.exists(),
    )
    monkeypatch.setattr(process, "time", late)
    with pytest.raises(CommandFailed, match=r"had not finished after 600 s") as caught:
        run("print('so far', flush=True)\n" + FAMILY, tmp_path, timeout_s=600, arguments=(str(pid),))  # fmt: skip
    assert "so far" in str(caught.value)
    assert caught.value.returncode == 124
    assert wait_for(lambda: not alive(int(pid.read_text())))


@linux
def test_ctrl_c_ends_children_and_grandchildren(tmp_path: Path) -> None:
    parent, grandchild = start_family(tmp_path)
    assert alive(grandchild)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(120) == 75
    assert wait_for(lambda: not alive(grandchild))  # killed, it waits for its turn to end


@linux
def test_kill_9_of_hotloop_leaves_no_process_behind(tmp_path: Path) -> None:
    parent, grandchild = start_family(tmp_path)
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not alive(grandchild))


@linux
def test_process_that_is_just_beginning_its_program_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a moment the kernel shows no environment of it: its parent's end is looked at then, too."""
    for number in range(100):
        token = f"{number:016x}"
        began = subprocess.Popen(["sleep", "600"], env={**os.environ, watchdog.TRIAL: token})
        monkeypatch.setattr(watchdog, "_processes", lambda pid=began.pid: [pid])
        try:
            assert watchdog.members(token) == [began.pid]
        finally:
            began.kill()
            began.wait()
    assert watchdog.members(token) == []


@linux
def test_process_that_outlives_its_command_is_ended(tmp_path: Path) -> None:
    source = FAMILY.replace("time.sleep(600)\n", "")
    assert run(source, tmp_path, arguments=(str(tmp_path / "pid"),)).returncode == 0
    assert wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_program_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-program"):
        run_process(
            ["no-such-program"], workdir=tmp_path, env={}, log=tmp_path / "log", timeout_s=5, name="x"
        )  # fmt: skip


def test_tail_shows_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"start\r\n 10%\r 50%\r100%\nlast\xff\n\n")
    assert [line.strip() for line in tail(log).splitlines()[1:]] == ["start", "100%", "last\ufffd"]
    log.write_bytes(b"")
    assert tail(log) == "It printed nothing."


RANK_1_FAILED = """\
step 14
[rank1]: Traceback (most recent call last):
[rank1]: ValueError: no apples
[rank0]: Traceback (most recent call last):
[rank0]: RuntimeError: Connection closed by peer
W1127 14:02:02.285000 19601 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 19620 closing signal SIGTERM
E1127 14:02:02.401000 19601 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 1)
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 19620)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 19620
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 19621)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""


def test_of_ranks_the_last_words_are_those_of_the_first_that_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(RANK_1_FAILED)
    assert tail(log).splitlines()[-1].strip() == "[rank1]: ValueError: no apples"
    assert "rank0" not in tail(log)
    log.write_text(RANK_1_FAILED.replace("[rank1]:", "").replace("[rank0]:", ""))
    assert tail(log).splitlines()[-1].strip() == "RuntimeError: Connection closed by peer"
    killed = RANK_1_FAILED.replace("To enable traceback see: https", "Signal 9 (SIGKILL) received")
    log.write_text(killed)
    assert tail(log).splitlines()[-1].strip() == "rank 1 was ended by Signal 9 (SIGKILL)"
    log.write_text(RANK_1_FAILED[RANK_1_FAILED.index("W1127") :])
    assert "Root Cause" in tail(log)  # nothing else was printed


def test_kill_by_the_system_is_named() -> None:
    assert describe_end(3) == "ended with exit code 3"
    assert "SIGKILL" in describe_end(-9)
    assert "memory" in describe_end(-9)
