"""Real processes whose readers went away: what is shown can neither end nor alter what is done."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from hotloop.core.step import read_steps

pytestmark = pytest.mark.usefixtures("without_compiler")

HOTLOOP = f"{shlex.quote(sys.executable)} -m hotloop"
STEPS = 12
SETTINGS = (
    f"train.steps={STEPS} schedule.warmup_steps=2 checkpoint.every_steps=5 eval.every_steps=5"
)


def bash(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-c", command], capture_output=True, text=True, timeout=240, check=False
    )


def train(config: Path, run: Path, more: str = "") -> str:
    return f"{HOTLOOP} train {config} --out {run} {SETTINGS} {more}"


def trained(run: Path) -> tuple[int, list[str]]:
    """Steps recorded, and the steps of the checkpoints that were kept."""
    steps = len(list(read_steps(run / "steps.jsonl")))
    return steps, sorted(each.name[:13] for each in (run / "checkpoints").iterdir())


WHOLE = (STEPS, ["step-00000010", "step-00000012"])


@pytest.mark.at_once(3)
@pytest.mark.parametrize(
    "streams",
    [
        "2>&1 | head -n 1",
        "2>/dev/full",
        "<&- >&- 2>&-",
        ">/dev/full 2>/dev/full",
        ">&- 2>&-",
    ],
)
def test_training_goes_on_to_its_end_whatever_becomes_of_its_output(
    tiny_config: Path, tmp_path: Path, streams: str
) -> None:
    run = tmp_path / "run"
    done = bash(f"{train(tiny_config, run)} {streams}; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert trained(run) == WHOLE
    assert "Traceback" not in done.stdout + done.stderr


def test_training_that_cannot_show_its_summary_says_so_and_has_trained(
    tiny_config: Path, tmp_path: Path
) -> None:
    done = bash(f"{train(tiny_config, tmp_path / 'run')} >/dev/full")
    assert done.returncode == 0
    assert trained(tmp_path / "run") == WHOLE
    assert "note: what was printed is lost: cannot write standard output: no space" in done.stderr


def test_a_result_asked_for_on_stdout_that_cannot_be_written_is_no_success(
    tiny_config: Path, tmp_path: Path
) -> None:
    done = bash(f"{train(tiny_config, tmp_path / 'run', '--json -')} >/dev/full")
    assert done.returncode == 4
    assert "error: cannot write standard output: no space left on the disk" in done.stderr
    assert trained(tmp_path / "run") == WHOLE


def test_interrupted_training_without_a_reader_saves_and_says_75(
    tiny_config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    more = "train.steps=100000 checkpoint.every_steps=0 eval.every_steps=0"
    done = bash(
        f"{train(tiny_config, run, more)} 2>/dev/full & child=$!; "
        f"for i in $(seq 1200); do [ -s {run}/steps.jsonl ] && break; sleep 0.1; done; "
        "kill -INT $child; wait $child"
    )
    assert done.returncode == 75
    assert trained(run)[1]


@pytest.mark.at_once(1)
@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&1 | true"])
def test_preparing_goes_on_whatever_becomes_of_its_output(tmp_path: Path, streams: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words that are text\n" * 2000)
    out = tmp_path / "prepared"
    done = bash(
        f"{HOTLOOP} prepare {text} --tokenizer bytes --out {out} {streams}; exit ${{PIPESTATUS[0]}}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "manifest.json").exists()


@pytest.mark.parametrize(
    ("streams", "code"), [("| true", 0), ("2>&-", 0), (">/dev/full", 4), (">&-", 4)]
)
def test_a_command_that_only_prints_fails_where_nothing_can_be_printed(
    streams: str, code: int
) -> None:
    # The reader is gone before the first byte is written.
    done = bash(f"(sleep 0.3; {HOTLOOP} --help) {streams}; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if code:
        assert done.stderr.startswith("error: cannot write standard output: ")
    elif "|" in streams:
        assert done.stderr == ""


def test_an_error_keeps_its_exit_code_where_it_cannot_be_said() -> None:
    for streams in ("2>/dev/full", "2>&-", ">&- 2>&-", "2>&1 | true"):
        done = bash(f"{HOTLOOP} report /nowhere {streams}; exit ${{PIPESTATUS[0]}}")
        assert done.returncode == 2, streams


def test_a_closed_descriptor_is_never_given_to_a_file_that_is_opened_later() -> None:
    """Else what a library prints to descriptor 2 would land inside a checkpoint."""
    script = (
        "import os, sys; from hotloop.cli.output import guard_streams; guard_streams(); "
        "sys.exit(os.open('/dev/null', os.O_RDONLY))"
    )
    done = bash(f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} <&- >&- 2>&-")
    assert done.returncode >= 3


def test_a_reader_that_does_not_read_holds_no_progress_up() -> None:
    """As behind a pager: the pipe is full, and nobody takes anything from it."""
    script = (
        "from hotloop.cli.output import guard_streams; guard_streams()\n"
        "from hotloop.cli.progress import progress_bar\n"
        "with progress_bar() as progress:\n"
        "    for number in range(20000): progress(f'work {number}', 0, None, 'x' * 100)\n"
    )
    reader, writer = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", script], stderr=writer)
    os.close(writer)
    try:
        assert child.wait(timeout=240) == 0
    finally:
        child.kill()
        os.close(reader)


def test_output_to_a_pipe_that_does_not_wait_is_written_whole() -> None:
    script = (
        "import os, sys; os.set_blocking(1, False)\n"
        "from hotloop.cli.output import guard_streams; guard_streams()\n"
        "print('x' * 1_000_000)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    out, _ = child.communicate(timeout=240)
    assert (child.returncode, len(out)) == (0, 1_000_001)


def test_what_was_written_before_ctrl_c_is_not_written_again() -> None:
    script = (
        "import os; from hotloop.cli.output import guard_streams; guard_streams()\n"
        "try: print('x' * 6000, flush=True)\n"
        "except KeyboardInterrupt: os.write(2, b'!'); print('end', flush=True)\n"
    )
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with open(reader, "rb") as shown:
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as child:
            os.close(writer)
            assert child.stderr is not None
            while child.poll() is None and held_by(reader) < size:  # then the write waits for room
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)
            assert child.stderr.read(1) == b"!"
            out = shown.read()
    assert (child.returncode, out) == (0, b"x" * size + b"end\n")


def held_by(pipe: int) -> int:
    """Bytes that wait to be read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
