"""Trials begin where the command began, whatever it and the user have done to the directory since."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotloop.core.command_run import COMMAND_RUN_FILE
from hotloop.core.connections import CONNECTIONS_FILE, NO_NETWORK, Network
from hotloop.core.errors import CommandFailed, EnvironmentFailed, UsageError
from hotloop.core.measurement import Plan
from hotloop.doctor import starting_point
from hotloop.doctor.starting_point import (
    before_trials,
    cut_off,
    edited_since,
    isolation_of,
    keep_start,
    network_of,
    refuse_unknown_hosts,
    start_of,
)
from hotloop.trial.arm import Arm
from hotloop.trial.measure import LOG_FILE, MEASUREMENT_FILE, measure
from hotloop.trial.sandbox.layered import Layered
from hotloop.trial.snapshot import MAX_ENTRIES, read_snapshot


@dataclass
class Doctor:
    """A command that runs once in its directory, and then is tried."""

    workdir: Path
    directory: Path

    def run(self, source: str) -> str:
        """Keep the start, then run the command as the user does."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        (self.workdir / "train.py").write_text(source)
        self.directory.mkdir(parents=True)
        keep_start(self.directory, self.workdir)
        return self.by_hand()

    def by_hand(self) -> str:
        command = [sys.executable, "train.py"]
        done = subprocess.run(command, cwd=self.workdir, capture_output=True, text=True, check=True)
        return done.stdout

    def tried(self, *, network: Network = NO_NETWORK) -> str:
        """One trial: what it printed."""
        number = sum(1 for _ in self.directory.glob("trials/*"))
        place = self.directory / "trials" / f"trial-{number}"
        measure(
            Arm(
                "plain", (sys.executable, "train.py"), "none", workdir=self.workdir, sandboxed=True
            ),
            directory=place,
            plan=Plan(0, 1, 120.0),
            seed="0",
            cache=self.directory / "cache",
            workdir=start_of(self.directory, self.workdir, network=network),
        )
        return (place / LOG_FILE).read_text()


@pytest.fixture(params=["layer", "copy"])
def doctor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Doctor:
    if request.param == "copy":  # as a kernel without namespaces has it
        monkeypatch.setattr(starting_point, "storage_for", lambda *directories: None)
    made = Doctor(tmp_path / "user" / "work", tmp_path / "user" / "work" / "runs" / "doctor")
    made.workdir.mkdir(parents=True)
    return made


@pytest.fixture
def sandbox(tmp_path: Path) -> Doctor:
    """With layers; skipped where this kernel gives none."""
    if starting_point.storage_for(tmp_path, tmp_path) is None:
        pytest.skip("this kernel gives no layers to unprivileged users")
    workdir = tmp_path / "repo" / "examples" / "x"
    workdir.mkdir(parents=True)
    return Doctor(workdir, workdir / "runs" / "doctor")


RESUMING = """
import os
first = int(open("last.txt").read()) if os.path.exists("last.txt") else 0
print("steps", first, "to 20")
for step in range(first, 20):
    open("last.txt", "w").write(str(step + 1))
"""


def test_a_script_that_resumes_starts_where_the_command_started(doctor: Doctor) -> None:
    assert doctor.run(RESUMING) == "steps 0 to 20\n"
    assert doctor.tried() == doctor.tried() == "steps 0 to 20\n"
    assert (doctor.workdir / "last.txt").read_text() == "20"
    assert doctor.by_hand() == "steps 20 to 20\n"


def test_a_checkpoint_that_was_there_is_gone_on_from_again(doctor: Doctor) -> None:
    (doctor.workdir / "last.txt").write_text("7")
    assert doctor.run(RESUMING) == "steps 7 to 20\n"
    assert doctor.tried() == "steps 7 to 20\n"


def test_a_checkpoint_beside_many_files_is_gone_on_from_again(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.trial.snapshot.MAX_ENTRIES", 3)
    for name in ("1.png", "2.png", "3.png", "last.txt"):
        (doctor.workdir / name).write_text("7")
    assert doctor.run(RESUMING) == "steps 7 to 20\n"
    assert doctor.tried() == "steps 7 to 20\n"


def test_a_script_that_refuses_to_overwrite_is_tried(doctor: Doctor) -> None:
    source = (
        "import os; os.makedirs('out/a'); open('out/a/x', 'x'); print('made', os.listdir('out'))"
    )
    assert doctor.run(source) == doctor.tried() == "made ['a']\n"
    assert [each.name for each in doctor.workdir.glob("out/a/*")] == ["x"]


def test_what_the_command_removed_and_linked_anew_is_back(doctor: Doctor) -> None:
    doctor.workdir.joinpath("data", "raw").mkdir(parents=True)
    (doctor.workdir / "data" / "raw" / "a.txt").write_text("a")
    (doctor.workdir / "latest").symlink_to("data/raw")
    source = """
import os, shutil
print(open("latest/a.txt").read(), os.path.isdir("swap"), os.readlink("latest"))
shutil.rmtree("data"); os.unlink("latest"); os.symlink("train.py", "latest")
"""
    assert doctor.run(source) == doctor.tried() == doctor.tried() == "a False data/raw\n"
    assert not (doctor.workdir / "data").exists()


def test_a_directory_that_became_a_file_is_a_directory_again(doctor: Doctor) -> None:
    (doctor.workdir / "state").mkdir()
    (doctor.workdir / "state" / "x").write_text("x")
    (doctor.workdir / "plain").write_text("p")
    source = """
import os, shutil
print(os.listdir("state"), os.path.isfile("plain"))
shutil.rmtree("state"); open("state", "w").close()
os.unlink("plain"); os.mkdir("plain"); open("plain/y", "w").close()
"""
    assert doctor.run(source) == doctor.tried() == doctor.tried() == "['x'] True\n"


def test_a_script_that_is_edited_meanwhile_is_tried_as_it_was(doctor: Doctor) -> None:
    assert doctor.run("print('as it was')") == "as it was\n"
    (doctor.workdir / "train.py").write_text("print('edited')")
    assert doctor.tried() == "as it was\n"
    assert doctor.by_hand() == "edited\n"


def test_a_package_of_the_users_own_named_like_a_tracker_is_there(doctor: Doctor) -> None:
    package = doctor.workdir / "loggers" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("name = 'mine'")
    (doctor.workdir / "mlruns").mkdir()
    (doctor.workdir / "mlruns" / "__init__.py").write_text("name = 'too'")
    source = "from loggers import wandb; import mlruns; print(wandb.name, mlruns.name)"
    assert doctor.run(source) == doctor.tried() == "mine too\n"


def test_data_beside_the_directory_and_by_links_is_read(sandbox: Doctor, tmp_path: Path) -> None:
    (tmp_path / "repo" / "data").mkdir()
    (tmp_path / "repo" / "data" / "a.txt").write_text("found")
    (sandbox.workdir / "link").symlink_to("../../data")
    source = f"""
for path in ("../../data/a.txt", "link/a.txt", {str(tmp_path / "repo" / "data" / "a.txt")!r}):
    print(open(path).read())
open("../../data/a.txt", "w").write("changed"); open("link/new.txt", "w").close()
"""
    (sandbox.workdir / "train.py").write_text(source)
    sandbox.directory.mkdir(parents=True)
    keep_start(sandbox.directory, sandbox.workdir)
    assert sandbox.tried() == sandbox.tried() == "found\n" * 3
    assert [each.name for each in tmp_path.glob("repo/data/*")] == ["a.txt"]
    assert (tmp_path / "repo" / "data" / "a.txt").read_text() == "found"


def test_huge_data_is_read_where_it_is(sandbox: Doctor) -> None:
    data = sandbox.workdir / "data"
    data.mkdir()
    with (data / "big.bin").open("wb") as big:
        big.truncate(2 << 30)
        big.seek(-4, os.SEEK_END)
        big.write(b"last")
    (data / "many").mkdir()
    for number in range(MAX_ENTRIES + 1):
        os.mknod(data / "many" / str(number))
    source = """
import os
with open("data/big.bin", "rb") as f:
    f.seek(-4, 2)
    print(f.read(), len(os.listdir("data/many")), os.listdir("."))
"""
    (data.parent / "train.py").write_text(source)
    sandbox.directory.mkdir(parents=True)
    begun = time.monotonic()
    keep_start(sandbox.directory, sandbox.workdir)
    assert time.monotonic() - begun < 60  # no copy was made: it would fill the disk of some
    kept = sum(path.stat().st_blocks * 512 for path in sandbox.directory.rglob("*"))
    assert kept < 1 << 20
    printed = sandbox.tried()
    assert printed.startswith(f"b'last' {MAX_ENTRIES + 1} "), printed


def test_a_large_file_that_was_changed_is_said_and_not_tried(
    sandbox: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.trial.snapshot.MAX_FILE_BYTES", 1000)
    monkeypatch.setattr("hotloop.trial.snapshot._shares_blocks", lambda source, target: False)
    (sandbox.workdir / "data.bin").write_bytes(bytes(2000))
    sandbox.run("f = open('data.bin', 'r+b'); f.write(b'x')")
    with pytest.raises(UsageError, match=r"data\.bin .* has changed since the command was started"):
        sandbox.tried()


def test_a_large_checkpoint_that_is_written_over_is_seen_as_it_was(
    sandbox: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.trial.snapshot.MAX_FILE_BYTES", 1000)
    monkeypatch.setattr("hotloop.trial.snapshot._shares_blocks", lambda source, target: False)
    (sandbox.workdir / "last.pt").write_bytes(bytes(2000))
    sandbox.run("f = open('last.pt', 'r+b'); print(f.read(3)); f.seek(0); f.write(b'new')")
    assert sandbox.tried().startswith(str(bytes(3)))


def test_checkpoints_too_large_to_keep_that_are_written_over_are_seen_by_no_trial(
    sandbox: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.trial.snapshot.MAX_KEPT_BYTES", 1000)
    monkeypatch.setattr("hotloop.trial.snapshot._shares_blocks", lambda source, target: False)
    for name in ("last.pt", "gone.pt", "other.pt"):
        (sandbox.workdir / name).write_bytes(bytes(2000))
    source = "import os; print(sorted(os.listdir())); open('last.pt', 'wb').write(b'new'); os.path.exists('gone.pt') and os.remove('gone.pt')"
    sandbox.run(source)
    listing = start_of(sandbox.directory, sandbox.workdir)
    said = before_trials(sandbox.directory, listing)
    assert [each.split(":")[0] for each in said] == [
        "gone.pt and 1 other checkpoint changed while the command ran, too large to keep a copy of before"
    ]
    assert sandbox.tried().startswith("['other.pt', 'runs', 'train.py']")
    # As it was decided before the first trial: what is written over later would part one trial from the next.
    (sandbox.workdir / "other.pt").write_bytes(b"by somebody else")
    assert before_trials(sandbox.directory, listing) == said
    with pytest.raises(UsageError, match=r"other\.pt .* has changed"):
        sandbox.tried()
    (sandbox.directory / "before" / "unseen.json").write_text("[")
    with pytest.raises(UsageError, match="damaged"):
        sandbox.tried()


def test_the_doctors_own_directory_is_seen_empty(sandbox: Doctor) -> None:
    source = "import os; print(sorted(os.listdir('.')), sorted(os.listdir('runs/doctor/trials/trial-0')))"
    (sandbox.workdir / "train.py").write_text(source)
    sandbox.directory.mkdir(parents=True)
    keep_start(sandbox.directory, sandbox.workdir)
    seen = sandbox.tried()
    assert seen.startswith("['runs', 'train.py'] "), seen
    assert "layer" not in seen
    assert "before" not in seen


def test_the_next_call_goes_on_from_the_same_start(sandbox: Doctor) -> None:
    sandbox.run(RESUMING)
    first = start_of(sandbox.directory, sandbox.workdir)
    assert isinstance(first, Layered)
    assert isolation_of(first) == "layer"
    assert start_of(sandbox.directory, sandbox.workdir).digest == first.digest
    snapshot = read_snapshot(sandbox.directory / "before")
    assert snapshot == first.snapshot


def test_the_next_call_goes_on_from_the_same_copy(doctor: Doctor) -> None:
    doctor.run(RESUMING)
    digests = {start_of(doctor.directory, doctor.workdir).digest for _ in range(2)}
    assert len(digests) == 1


def test_a_start_that_a_kill_left_unfinished_is_kept_again(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (doctor.workdir / "train.py").write_text("print('whole')")

    def killed(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(starting_point, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            doctor.tried()
    assert doctor.tried() == doctor.tried() == "whole\n"


def test_what_is_there_by_that_name_stays(doctor: Doctor) -> None:
    own = doctor.directory / "before" / "notes"
    own.mkdir(parents=True)
    with pytest.raises(EnvironmentFailed, match="cannot keep the working directory as it is"):
        start_of(doctor.directory, doctor.workdir)
    assert own.is_dir()


def test_a_damaged_snapshot_is_one_clear_error(sandbox: Doctor) -> None:
    sandbox.run(RESUMING)
    (sandbox.directory / "before" / "before.json").write_text('{"files": 3}')
    with pytest.raises(UsageError, match="damaged"):
        sandbox.tried()


def test_processes_of_a_trial_meet_on_its_own_loopback(sandbox: Doctor) -> None:
    source = """
import os, socket, threading
server = socket.create_server((socket.gethostname(), 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
print(socket.create_connection((socket.gethostname(), server.getsockname()[1])).recv(5))
print(sorted(name for _, name in socket.if_nameindex()))
"""
    sandbox.workdir.joinpath("train.py").write_text(source)
    sandbox.directory.mkdir(parents=True)
    keep_start(sandbox.directory, sandbox.workdir)
    assert sandbox.tried() == "b'hello'\n['lo']\n"


def test_network_is_there_where_it_was_allowed(sandbox: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sandbox.run(f"import socket; socket.create_connection(('127.0.0.1', {port})); print('met')")
        assert sandbox.tried(network=Network(unlimited=True)) == "met\n"
        assert sandbox.tried(network=Network((f"127.0.0.1:{port}",))) == "met\n"
        with pytest.raises(CommandFailed, match="exit code 1"):
            sandbox.tried()


def test_machines_that_trials_cannot_reach_are_named_before_the_first_one(tmp_path: Path) -> None:
    doctor = Doctor(tmp_path / "work", tmp_path / "doctor")
    doctor.run("")
    start = start_of(doctor.directory, doctor.workdir)
    assert cut_off(doctor.directory, start) is None
    hosts = [f"host-{number}.example:443\n" for number in (1, 2, 3, 4, 5, 1)]
    hosts.append("host-1.example:443 512 3400000\n")
    (doctor.directory / CONNECTIONS_FILE).write_text("".join(hosts))
    said = cut_off(doctor.directory, start)
    if network_of(start).unlimited:
        assert said is None
        return
    assert said is not None
    assert "host-1.example:443 (3.4 MB received, 512 B sent), host-2.example:443" in said
    assert "and 1 more" in said
    named = [each.strip() for each in hosts[:5]]
    if isinstance(start, Layered):
        assert said.endswith(f" add --network={','.join(named)}")
    else:
        assert said.endswith(" add --network")
    unlimited = start_of(doctor.directory, doctor.workdir, network=Network(unlimited=True))
    assert cut_off(doctor.directory, unlimited) is None


def test_only_machines_that_were_not_allowed_are_named_and_the_option_keeps_the_others(
    sandbox: Doctor,
) -> None:
    sandbox.run("")
    start = start_of(sandbox.directory, sandbox.workdir, network=Network(("a.example:443", "b:1")))
    (sandbox.directory / CONNECTIONS_FILE).write_text("A.example:443\n")
    assert cut_off(sandbox.directory, start) is None
    (sandbox.directory / CONNECTIONS_FILE).write_text("A.example:443\na.example:80\n")
    said = cut_off(sandbox.directory, start)
    assert said is not None
    assert "connected to a.example:80, which" in said
    assert said.endswith(" add --network=a.example:443,b:1,a.example:80")


def test_copies_are_never_let_to_all_machines_where_some_were_named(doctor: Doctor) -> None:
    network = Network(("127.0.0.1:9",))
    doctor.run("print('ran')")
    if isinstance(start_of(doctor.directory, doctor.workdir), Layered):
        assert network_of(start_of(doctor.directory, doctor.workdir, network=network)) == network
        return
    with pytest.raises(UsageError, match=r"to all machines or to none, not to 127\.0\.0\.1:9"):
        start_of(doctor.directory, doctor.workdir, network=network)
    new = doctor.directory.with_name("new")
    new.mkdir()
    with pytest.raises(UsageError, match="to all machines or to none"):
        keep_start(new, doctor.workdir, network=network)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 64])
def test_a_name_without_an_address_is_one_clear_error(host: str) -> None:
    refuse_unknown_hosts(Network(("localhost:80", "[::1]:80", "192.0.2.1:80")))
    with pytest.raises(UsageError, match=f"no address is known of {host}: "):
        refuse_unknown_hosts(Network(("localhost:80", f"{host}:80")))


def test_what_was_edited_after_the_examination_is_told_and_what_the_command_wrote_is_not(
    doctor: Doctor,
) -> None:
    work, outside = doctor.workdir, doctor.workdir.parent / "model.yaml"
    for name in ("conf/a.yaml", "kept.yaml", "log.txt", "names.txt"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("before")
    (work / "tuned.yaml").write_text("name: a\ndigest: 1\n")
    outside.write_text("before")
    doctor.run("open('log.txt', 'w').write('after'); open('kept.yaml', 'w').write('after')")
    command = ["python", "train.py", "names.txt", f"--model={outside}"]
    run = {"command": command, "workdir": str(work)}
    (doctor.directory / COMMAND_RUN_FILE).write_text(json.dumps(run))
    (doctor.directory / MEASUREMENT_FILE).write_text("{}")
    assert edited_since(doctor.directory) == []
    run["command"] += ["-c", "x" * 300]  # no name of a file
    (doctor.directory / COMMAND_RUN_FILE).write_text(json.dumps(run))
    assert edited_since(doctor.directory) == []
    time.sleep(0.02)  # past the grain of a file's time
    listing = start_of(doctor.directory, work)
    for name in ("log.txt", "tuned.yaml"):
        (work / name).write_text("other")
    assert edited_since(doctor.directory) == []
    for name in ("conf/a.yaml", "names.txt"):
        (work / name).write_text("edited")
    (work / "train.py").unlink()
    assert edited_since(doctor.directory) == ["conf/a.yaml", "names.txt", "train.py"]
    said = before_trials(doctor.directory, listing)[-1]
    assert said.startswith("conf/a.yaml and 2 other files changed after the command was examined")
    for workdir in (
        None,
        listing,
    ):  # trials see it as it is now: in place, or where it lies beside the copy
        if workdir is not None:
            outside.write_text("edited")
        with pytest.raises(UsageError, match="its trials would be of another command"):
            before_trials(doctor.directory, workdir)
