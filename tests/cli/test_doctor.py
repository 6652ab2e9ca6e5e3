"""`hotloop doctor`, end to end: small scripts that were not written for it, in processes of their own."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.doctor import Options
from hotloop.cli.doctor import doctor as doctor_command
from hotloop.cli.main import run
from hotloop.core.connections import Network
from hotloop.core.errors import ExitCode
from hotloop.doctor import starting_point
from processes import wait_for

SOURCE = Path(__file__).parents[2] / "src"
WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"
COMMAND = [sys.executable, "-m", "hotloop", "doctor", "--no-try"]

IN_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Becomes a command in the foreground of the terminal that is its stdin."""

LOOP = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 8 * 200
    def __getitem__(self, index):
        time.sleep(WAIT)
        return torch.full((16,), float(index % 7)), torch.tensor(float(index % 5))

def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, (x, y) in enumerate(DataLoader(Slow(), batch_size=8)):
        loss = (model(x).squeeze(1) - y).square().mean() / EVERY
        loss.backward()
        if (number + 1) % EVERY == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(number, loss.item().hex(), flush=True)
        if number + 1 == STEPS * EVERY:
            break
AFTER

if __name__ == "__main__":
    main()
"""


def script(
    directory: Path, *, wait: float = 0.002, every: int = 1, steps: int = 40, after: str = ""
) -> list[str]:
    text = LOOP.replace("WAIT", str(wait)).replace("EVERY", str(every))
    text = text.replace("STEPS", str(steps)).replace("AFTER", after)
    (directory / "train.py").write_text(text)
    return [sys.executable, "train.py"]


def environment(*, with_compiler: bool = False) -> dict[str, str]:
    """Of processes that load torch whole, or in half of the time what training in them needs of it."""
    path = [SOURCE] if with_compiler else [WITHOUT_COMPILER, SOURCE]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}


def doctor(
    directory: Path, command: list[str], *options: str, with_compiler: bool = False
) -> tuple[subprocess.CompletedProcess[str], dict]:  # type: ignore[type-arg]
    """The command as a user runs it; and what it wrote for `--json`."""
    done = subprocess.run(
        [*COMMAND, "--out", "run", "--json", "found.json", *options, "--", *command],
        cwd=directory,
        env=environment(with_compiler=with_compiler),
        capture_output=True,
        text=True,
        timeout=240,
    )
    path = directory / "found.json"
    return done, json.loads(path.read_text()) if path.exists() else {}


Command = Callable[..., tuple[int, str, str]]
Examined = tuple[Path, subprocess.CompletedProcess[str], dict[str, Any]]
"""A directory, the command that ran in it, and what it wrote for `--json`."""


def begun(
    directory: Path, command: list[str], *prefix: str, **streams: Any
) -> subprocess.Popen[str]:
    """A doctor in `directory` whose command has made 30 steps. prefix: what starts it."""
    started = subprocess.Popen(
        [*prefix, *COMMAND, "--out", "run", "--", *command],
        cwd=directory,
        env=environment(),
        text=True,
        **streams,
    )
    steps = directory / "run" / "steps-0.jsonl"
    assert wait_for(lambda: steps.exists() and steps.read_text().count("\n") > 30, 240)
    return started


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """A plain loop that waits for data, examined with all of torch."""
    directory = tmp_path_factory.mktemp("waits")
    return directory, *doctor(directory, script(directory, steps=60), with_compiler=True)


def test_a_plain_loop_that_waits_for_data_is_told_so_and_prints_what_it_always_prints(
    waits: Examined,
) -> None:
    tmp_path, done, found = waits
    command = [sys.executable, "train.py"]
    plain = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout  # losses to the last bit
    assert found["bound"] == "input"
    assert found["breakdown"]["data_wait"] > 0.5
    assert sum(found["breakdown"].values()) == pytest.approx(1.0, abs=0.005)
    assert found["doctor"]["returncode"] == 0
    assert "waits for data" in done.stderr
    assert re.search(r"\n  total +100\.0 %\n", done.stderr)
    # Between our first line and the answer there is what the script itself says there: nothing.
    assert done.stderr.startswith(
        "hotloop: what it does is recorded in run; it is ended after 60 s of its steps, "
        "--to-end runs it whole\n\nrun\n\nThe training"
    )
    assert any((each["site"] or "").startswith("train.py:") for each in found["findings"])
    assert {path.name for path in tmp_path.iterdir()} <= {
        "train.py",
        "found.json",
        "run",
        "__pycache__",
    }
    page = (tmp_path / "run" / "report.html").read_text()
    assert "waits for data" in page
    assert "train.py:" in page


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_reads_its_input_is_examined_and_no_fix_is_tried_without_it(
    tmp_path: Path, kind: str
) -> None:
    command = [sys.executable, "train.py"]
    (tmp_path / "train.py").write_text(f"print('asked:', input())\n{RECORDS}")
    answers = tmp_path / "answers"
    answers.write_text("yes\nno\n")
    reader, writer = os.pipe()
    os.write(writer, answers.read_bytes())  # it is there when the doctor looks
    os.close(writer)
    with answers.open() as file, open(reader) as piped:
        done = subprocess.run(
            [sys.executable, "-m", "hotloop", "doctor", "--out", "run", "--", *command],
            cwd=tmp_path,
            env=environment(),
            stdin=file if kind == "file" else piped,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("asked: yes\n")
    assert "no fix was tried: it reads its standard input" in done.stderr
    assert not (tmp_path / "run" / "trials").exists()
    assert json.loads((tmp_path / "run" / "doctor.json").read_text())["reads_input"] is True


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """A loop that makes an update of every four batches, 20 in all, and then raises an error."""
    directory = tmp_path_factory.mktemp("crashes")
    raises = "    raise RuntimeError('of the script')"
    return directory, *doctor(directory, script(directory, every=4, steps=20, after=raises))


def test_a_step_is_an_update_where_gradients_are_accumulated(crashes: Examined) -> None:
    steps = crashes[2]["steps"]
    assert steps["measured"] + steps["warmup"] == 20


def test_steps_end_it_without_its_own_ending(tmp_path: Path) -> None:
    command = script(tmp_path, steps=190, after="    open('ending', 'w').close()")
    done, found = doctor(tmp_path, command, "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert found["doctor"]["ended"] == "enough_steps"
    # Those under the profiler count for nothing; the judge may take more of the first for the start.
    assert found["steps"]["measured"] + found["steps"]["warmup"] == 10 + 20
    assert not (tmp_path / "ending").exists()


def test_a_crash_is_its_own_and_what_was_measured_is_shown(crashes: Examined) -> None:
    _, done, found = crashes
    assert done.returncode == 5
    assert "RuntimeError: of the script" in done.stderr
    assert found["doctor"]["returncode"] == 1
    assert "the command ended with exit code 1" in done.stderr
    assert found["breakdown"]["data_wait"] > 0.5


def test_interrupted_it_ends_with_a_report_of_what_was_seen(tmp_path: Path) -> None:
    command = script(tmp_path, wait=0.005, steps=100_000)
    pipe = subprocess.PIPE
    started = begun(tmp_path, command, stdout=pipe, stderr=pipe, start_new_session=True)
    os.killpg(started.pid, signal.SIGINT)
    _, err = started.communicate(timeout=240)
    assert started.returncode == 75, err
    assert "it was interrupted" in err
    assert "interrupted: the same command starts it again from its beginning" in err
    assert (tmp_path / "run" / "report.html").exists()
    assert run(["report", str(tmp_path / "run")]) == 0
    script(tmp_path, wait=0.005, steps=60)  # the same command
    done, found = doctor(tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert found["doctor"]["ended"] == "by_itself"
    assert "the interrupted run is kept in run-interrupted-1" in done.stderr
    assert (tmp_path / "run-interrupted-1" / "report.html").exists()


def test_ctrl_c_in_a_terminal_lets_the_script_save_once(tmp_path: Path) -> None:
    command = script(tmp_path, wait=0.005, steps=100_000)
    path = tmp_path / "train.py"
    path.write_text(
        path.read_text().replace(
            "    main()",
            "    try:\n        main()\n    except KeyboardInterrupt:\n        open('saved', 'a').write('x')",
        )
    )
    terminal, theirs = pty.openpty()
    seen: list[bytes] = []
    reader = threading.Thread(target=drain, args=(terminal, seen), daemon=True)
    reader.start()
    within = (sys.executable, "-S", "-c", IN_TERMINAL)
    started = begun(tmp_path, command, *within, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(terminal, b"\x03")
    code = started.wait(240)
    reader.join(120)
    os.close(terminal)
    plain = re.sub(r"\x1b\[[\d;]*[a-zA-Z]", "", b"".join(seen).decode())
    shown = " ".join(plain.split())  # a terminal's lines are wrapped
    assert code == 75, shown
    assert (tmp_path / "saved").read_text() == "x"
    assert "it was interrupted" in shown
    assert "waits for data" in shown


def drain(terminal: int, into: list[bytes]) -> None:
    """Read a terminal until its other end is closed: it holds some kilobytes only."""
    while True:
        try:
            into.append(os.read(terminal, 4096))
        except OSError:
            return


def test_half_a_run_is_reported_when_everything_was_killed(
    tmp_path: Path, hotloop: Command
) -> None:
    command = script(tmp_path, wait=0.005, steps=100_000)
    nowhere = subprocess.DEVNULL
    started = begun(tmp_path, command, stdout=nowhere, stderr=nowhere)
    started.kill()
    started.wait()
    code, out, _ = hotloop("report", tmp_path / "run")
    assert code == 0
    assert "waits for data" in out
    assert "its end was not recorded" in out


def test_report_says_the_same_again(
    waits: Examined, tmp_path: Path, hotloop: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, done, found = waits
    monkeypatch.chdir(directory)
    page, written = tmp_path / "page.html", tmp_path / "again.json"
    code, out, _ = hotloop("report", "run", "--html", page, "--json", written)
    assert code == 0
    said = out.removesuffix(f"\n\npage written to {page}\n")
    assert "waits for data" in said
    assert said in done.stderr
    again = json.loads(written.read_text())
    assert again["diagnosis"]["breakdown"] == found["breakdown"]
    assert again["doctor"] == found["doctor"]
    assert page.read_text() == Path("run/report.html").read_text()


@pytest.mark.parametrize(
    ("torch", "why"),
    [
        ("__version__ = '2.5.1'", "torch 2.5.1 is older than 2.11"),
        ("__version__ = '2.13.0'", "No module named 'torch.optim'"),
    ],
)
def test_a_training_that_could_not_be_recorded_is_ended_at_its_import_of_torch(
    tmp_path: Path, torch: str, why: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(torch)
    (tmp_path / "train.py").write_text(
        "print('before', end='')\nimport torch\nopen('trained', 'w').close()\n"
    )
    arguments = ["doctor", "--no-try", "--out", "run", "--", sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == ExitCode.ENVIRONMENT, done.stderr
    assert done.stdout == "before"
    assert done.stderr.count(why) == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "trained").exists()


def test_a_daemon_is_left_running_and_reported_once_it_has_made_steps(
    tmp_path: Path, hotloop: Command
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "from hotloop.core.step import StepRecord\n"
        "if os.fork():\n"
        "    os._exit(0)\n"
        "os.setsid()\n"
        "for stream in (0, 1, 2):\n"
        "    os.dup2(os.open(os.devnull, os.O_RDWR), stream)\n"
        "while not os.path.exists('go'):\n"
        "    time.sleep(0.05)\n"
        "with open(os.environ['HOTLOOP_DOCTOR'] + '/steps-0.jsonl', 'w') as file:\n"
        "    for step in range(30):\n"
        "        host = {'data_wait': 0.05, 'forward': 0.05}\n"
        "        file.write(StepRecord(step, 0.1, host).to_json() + chr(10))\n"
        "open('gone', 'w').close()\n"
    )
    done, found = doctor(tmp_path, [sys.executable, "train.py"])
    assert done.returncode == 3, done.stderr
    assert len(found["doctor"]["left_running"]) == 1
    assert "steps they make are still recorded" in done.stderr
    (tmp_path / "go").touch()
    assert wait_for((tmp_path / "gone").exists)
    code, out, _ = hotloop("report", tmp_path / "run")
    assert code == 0
    assert re.search(r"data_wait +50\.0 %", out)


RECORDS = (
    "import os\n"
    "from hotloop.core.step import StepRecord\n"
    "with open(os.environ['HOTLOOP_DOCTOR'] + '/steps-0.jsonl', 'w') as file:\n"
    "    for step in range(60):\n"
    "        host = {'data_wait': 0.05, 'forward': 0.05}\n"
    "        file.write(StepRecord(step, 0.1, host).to_json() + chr(10))\n"
)


def test_what_a_full_disk_does_not_take_is_shown_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECORDS)
    command = [*COMMAND, "--out", "run", "--", sys.executable, "train.py"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", *command],
        cwd=tmp_path,
        env={**environment(), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 4, done.stderr
    assert re.search(r"data_wait +50\.0 %", done.stderr)
    assert "by itself, with exit code 0" in done.stderr
    assert done.stderr.index("data_wait") < done.stderr.index("error: cannot write")


def test_the_directory_of_an_earlier_run_is_refused(here: Path, hotloop: Command) -> None:
    (here / "train.py").write_text(RECORDS)
    done, _ = doctor(here, [sys.executable, "train.py"])
    assert done.returncode == 0, done.stderr
    before = {path: path.stat().st_mtime_ns for path in (here / "run").iterdir()}
    command = ("--", sys.executable, "train.py")
    code, _, err = hotloop("doctor", "--no-try", "--out", "run", *command)
    assert code == 2
    assert err.startswith("error: this directory holds something already")
    assert "`hotloop report run` shows it" in err
    assert {path: path.stat().st_mtime_ns for path in (here / "run").iterdir()} == before
    code, _, err = hotloop("doctor", "--no-try", "--out", "train.py/sub", *command)
    assert code == 2
    assert "a part of its path is a file" in err


def test_a_command_that_dies_after_its_first_step_is_not_said_to_have_made_none(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(4)).sum().backward()\n"
        "optimizer.step()\n"
        "os._exit(0)\n"
    )
    done, _ = doctor(tmp_path, [sys.executable, "train.py"])
    assert done.returncode == 3, done.stderr
    assert "no step of an optimizer" not in done.stderr
    assert "of warm-up were seen" in done.stderr or "ended before its steps were" in done.stderr


def test_a_line_of_its_own_says_where_a_step_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import hotloop, torch\n"
        "w = torch.zeros(64)\n"
        "for step in range(40):\n"
        "    w = w - 0.1 * torch.randn(64)\n"
        "    hotloop.step()\n"
    )
    done, found = doctor(tmp_path, [sys.executable, "train.py"])
    assert done.returncode == 0, done.stderr
    assert found["steps"]["measured"] + found["steps"]["warmup"] == 40


def test_a_script_that_never_steps_is_told_how_to_say_what_a_step_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(3).sum().item())\n")
    done, _ = doctor(tmp_path, [sys.executable, "train.py"])
    assert done.returncode == 3, done.stderr
    assert "torch was used; seen: no step of an optimizer, 0 passes backward" in done.stderr
    assert "hotloop.step()" in done.stderr


def test_a_script_without_torch_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('nothing')\n")
    done, _ = doctor(tmp_path, [sys.executable, "train.py"])
    assert done.returncode == 3, done.stderr
    assert done.stdout == "nothing\n"
    assert "it imported no torch" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--no-try"], "no command was given"),
        (["--no-try", "--", "train.py"], "is a script, not a program"),
        (["--no-try", "--", "no-such-program"], "cannot run `no-such-program`"),
        (["--no-try", "--", sys.executable, "-I", "train.py"], "no step could be seen"),
        (["--no-try", "--json", "-", "--", sys.executable, "x.py"], "would mix with"),
        (
            ["--no-try", "--json", "no/dir/x.json", "--", sys.executable, "x.py"],
            "no such directory",
        ),
        (["--no-try", "--diff", "x.diff", "--", sys.executable, "x.py"], "has no effect"),
        (["--no-try", "--network", "--", sys.executable, "x.py"], "has no effect"),
        (["--in-place", "--network", "--", sys.executable, "x.py"], "has no effect"),
        (["--in-place", "--network=h:1", "--", sys.executable, "x.py"], "has no effect"),
        (["--network", "python", "x.py"], "'python' names no host; write --network=HOST:PORT,"),
        (["--network=", "--", sys.executable, "x.py"], "'' names no host"),
        (["--network=a:1,b", "--", sys.executable, "x.py"], "'b' names no host"),
        (["--network=a:b", "--", sys.executable, "x.py"], "'a:b' names no port"),
        (["--network=a:0", "--", sys.executable, "x.py"], "'a:0' names no port"),
        (["--network=a:65536", "--", sys.executable, "x.py"], "'a:65536' names no port"),
        (["--network=fd00::2:80", "--", sys.executable, "x.py"], "names no host"),
        (["--network=[fd00]:80", "--", sys.executable, "x.py"], "'fd00'"),
        (["--network=a..b:80", "--", sys.executable, "x.py"], "no address is known of a..b"),
        (["--diff", "-", "--", sys.executable, "x.py"], "would mix with"),
        (["--diff", "no/dir/x.diff", "--", sys.executable, "x.py"], "no such directory"),
        (["--diff", ".", "--", sys.executable, "x.py"], "this is a directory"),
        (["--pr", "-", "--", sys.executable, "x.py"], "would mix with"),
        (["--no-try", "--apply", "--", sys.executable, "x.py"], "has no effect"),
        (["--to-end", "--steps", "9", "--", sys.executable, "x.py"], "leave one of them out"),
        (["--no-try", "--steps", "0", "--", sys.executable, "x.py"], "steps"),
        (["--no-try", "--level", "0.9", "--", sys.executable, "x.py"], "level"),
        (["--budget", "4", "--", sys.executable, "x.py"], "'4' has no unit; say 4m or 4s"),
        (["--budget", "0m", "--", sys.executable, "x.py"], "is no time"),
        (["--only", "fused", "--", sys.executable, "x.py"], "did you mean `fused_optimizer`?"),
        (["--only", "itemcache", "--", sys.executable, "x.py"], "did you mean `item_cache`?"),
        (["--only", "zzz", "--", sys.executable, "x.py"], "choose among"),
        (["--", sys.executable, "nothere.py"], "no such script `nothere.py`"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_is_run(
    here: Path, hotloop: Command, arguments: list[str], says: str
) -> None:
    code, _, err = hotloop("doctor", *arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert says in err
    assert not list(here.iterdir())


SOME = Network(("a:1", "b.example:65535"))


@pytest.mark.parametrize(
    ("words", "network"),
    [
        ([], None),
        (["--network"], Network(unlimited=True)),
        (["--network=a:1,B.example:65535,A:1"], SOME),
        (["--network", "a:1,b.example:65535"], SOME),
        (["--network=[FD00::2]:80"], Network(("[fd00::2]:80",))),
    ],
)
@pytest.mark.parametrize("command", [["python", "train.py"], ["h:1", "--network"]])
def test_machines_that_trials_may_reach_are_named_beside_a_whole_command(
    words: list[str], network: Network | None, command: list[str]
) -> None:
    read = doctor_command.make_context("doctor", [*words, "--", *command]).params
    assert (read["network"], read["command"]) == (network, tuple(command))
    # The command that continues says the same.
    for name in ("level", "pid", "seconds", "command"):
        del read[name]
    again = Options(**read).of_trials()
    again_read = doctor_command.make_context("doctor", [*again, "--", *command]).params
    assert (again_read["network"], again_read["command"]) == (network, tuple(command))


def test_single_machines_are_refused_before_the_command_where_trials_are_copies(
    here: Path, hotloop: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting_point, "storage_for", lambda *directories: None)
    (here / "train.py").write_text("open('ran', 'w')")
    command = ("--", sys.executable, "train.py")
    code, _, err = hotloop("doctor", "--network=localhost:80", *command)
    assert code == 2
    assert "not to localhost:80" in err
    assert not (here / "ran").exists()


def test_what_was_found_is_in_the_json_though_trying_is_refused(
    here: Path, hotloop: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "train.py").write_text(RECORDS)
    asked = ["doctor", "--out", "run", "--json", "found.json", "--only", "fused_optimizer"]
    command = ["--", sys.executable, "train.py"]
    code, _, said = hotloop(*asked, "--budget", "1s", *command)
    assert code == 2
    assert "testing one fix here needs about" in said
    # Nobody asked for the usual budget.
    monkeypatch.setattr("hotloop.cli.doctor.TRYING_S", 1.0)
    code, _, said = hotloop(*asked, *command)
    assert code == 0
    assert "no fix was tried: testing one fix here needs about" in said
    found = json.loads(Path("found.json").read_text())
    assert found["bound"] == "input"
    assert found["ledger"] is None
    # With what it lacked it goes on from there; outside of the doctor this command fails.
    Path("found.json").unlink()
    code, _, said = hotloop(*asked, "--budget", "1h", *command)
    assert code == 5
    assert "continuing in run" in said
    assert "does not run in a trial" in said
    assert "with `--out run` goes on" in hotloop("report", "run")[1]
    assert json.loads(Path("found.json").read_text()) == found


def test_without_an_optimizer_nothing_is_timed_and_it_is_said_why(
    here: Path, hotloop: Command
) -> None:
    census = (
        "import json\n"
        "from hotloop.core.census import Census, NO_OPTIMIZER\n"
        "with open(os.environ['HOTLOOP_DOCTOR'] + '/census-0.json', 'w') as file:\n"
        "    json.dump(Census(device='cpu', notes=(NO_OPTIMIZER,)).to_mapping(), file)\n"
    )
    (here / "train.py").write_text(RECORDS + census)
    asked = ["doctor", "--out", "run", "--only", "fused_optimizer"]
    code, _, said = hotloop(*asked, "--", sys.executable, "train.py")
    assert code == 0
    assert "update of a torch optimizer to the next, and none was seen" in said
    assert not (here / "run" / "trials").exists()


def test_what_was_asked_for_and_cannot_be_tried_is_no_success(here: Path, hotloop: Command) -> None:
    (here / "train.py").write_text(RECORDS)
    asked = ["doctor", "--out", "run", "--only", "sdpa_backend", "--", sys.executable, "train.py"]
    code, _, said = hotloop(*asked)
    assert code == 2
    assert "sdpa_backend is not tried: " in said
    assert "Nothing that was asked for could be tried here: sdpa_backend." in said


def test_a_pipe_takes_the_json_once(here: Path) -> None:
    (here / "train.py").write_text(RECORDS)
    theirs, ours = os.pipe()
    options = ["--json", f"/dev/fd/{ours}", "--budget", "1s", "--only", "fused_optimizer"]
    assert run(["doctor", *options, "--", sys.executable, "train.py"]) == 2
    os.close(ours)
    with os.fdopen(theirs) as file:
        assert json.loads(file.read())["bound"] == "input"


WITHOUT_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    *('echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh"),
)
"""Runs a command where the kernel gives it no namespaces."""


@pytest.mark.skipif(
    subprocess.run([*WITHOUT_NAMESPACES, "true"], check=False, capture_output=True).returncode != 0,
    reason="needs a user namespace to forbid others in it",
)
def test_directory_too_large_to_copy_is_said_before_the_command_runs(tmp_path: Path) -> None:
    command = script(tmp_path, wait=0.001, steps=30)
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(600 << 20)
    given = [*WITHOUT_NAMESPACES, sys.executable, "-m", "hotloop", "doctor", "--out", "run"]
    refused = subprocess.run(
        [*given, "--budget", "10m", "--", *command], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )  # fmt: skip
    assert refused.returncode == 2
    assert "too large to copy" in refused.stderr
    assert not (tmp_path / "run").exists()
    done = subprocess.run(
        [*given, "--", *command], cwd=tmp_path, capture_output=True, text=True, timeout=240, env=environment()
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, _, after = done.stderr.partition("is recorded in run")
    assert "no fix will be tried" in before
    assert "--in-place" in before
    assert "--no-try" in before
    assert "no fix was tried: each trial runs in a copy" in after
