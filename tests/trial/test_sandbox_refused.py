"""Sandboxes on systems that refuse a part of them: one clear sentence, and nothing of the user's is changed."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec")
"""A place of its own, in which a test may mount and forbid; trials are made in further ones inside."""
TRIAL = """
import sys
from pathlib import Path
from hotloop.core.connections import Network
from hotloop.core.errors import HotloopError
from hotloop.core.measurement import Plan
from hotloop.doctor.starting_point import isolation_of, keep_start, start_of, weak_isolation
from hotloop.trial.arm import Arm
from hotloop.trial.measure import measure

work, doctors, source = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
network = Network(tuple(sys.argv[4:]))
arm = Arm("plain", (sys.executable, "-c", source), "none", workdir=work, sandboxed=True)
try:
    doctors.mkdir(exist_ok=True)
    keep_start(doctors, work, network=network)
    start = start_of(doctors, work, network=network)
    print(isolation_of(start), "|", weak_isolation(start))
    measure(arm, directory=doctors / "trial", plan=Plan(0, 1, 300.0), seed="0", cache=doctors / "cache", workdir=start)
    print((doctors / "trial" / "log.txt").read_text())
except HotloopError as error:
    print("error:", error)
"""

pytestmark = pytest.mark.skipif(
    subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode != 0,
    reason="needs a user namespace",
)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Beside few others: a mount below makes each of them a layer of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        yield Path(place)


def tried(tmp_path: Path, source: str, *, first: str, hosts: Sequence[str] = ()) -> str:
    """What is said of a trial of `source`, on a system where the shell's `first` was done. $D: the doctor's."""
    work, doctors = tmp_path / "work", tmp_path / "doctor"
    work.mkdir()
    doctors.mkdir()
    (work / "kept.txt").write_text("kept")
    python = [sys.executable, "-c", TRIAL, str(work), str(doctors), source, *hosts]
    done = subprocess.run(
        [*NAMESPACE, f'D={doctors}; H={tmp_path}; {first}; exec "$@"', "sh", *python],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=work,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert (work / "kept.txt").read_text() == "kept"
    assert [each.name for each in work.iterdir()] == ["kept.txt"]
    return done.stdout


WRITES = "open('kept.txt', 'a').write('x'); print(open('kept.txt').read())"


def test_in_a_namespace_of_another_trials_have_layers_all_the_same(tmp_path: Path) -> None:
    said = tried(tmp_path, WRITES, first="true")
    assert said.splitlines() == ["layer | None", "keptx", ""]


def test_without_namespaces_the_kernel_refuses_writes_and_it_is_said(tmp_path: Path) -> None:
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    away = tmp_path / "away"
    source = f"{WRITES}; import os; os.system('echo x > {away}; echo ended')"
    said = tried(tmp_path, source, first=forbid)
    assert "allows no user namespaces with overlayfs" in said
    assert "keptx" in said
    assert "ended" in said
    if said.startswith("landlock"):
        assert not away.exists()
        assert "Permission denied" in said


def test_without_namespaces_single_machines_are_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    said = tried(tmp_path, WRITES, first=forbid, hosts=["db.example:5432"])
    assert said.startswith("error: this system allows no user namespaces with overlayfs")
    assert "not to db.example:5432" in said
    assert list((tmp_path / "doctor").iterdir()) == []


def test_a_name_is_looked_up_where_the_command_runs(tmp_path: Path) -> None:
    def answer() -> None:
        for _ in range(2):
            with server.accept()[0] as connection:
                connection.sendall(b"it is me")

    names = "echo '127.0.0.1 localhost data.example' > $H/names; mount --bind $H/names /etc/hosts"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=answer, daemon=True).start()
        source = f"""
import socket
for host in ("data.example", "DATA.example"):
    print(socket.create_connection((host, {port})).recv(20))
"""
        said = tried(tmp_path, source, first=names, hosts=[f"data.example:{port}"])
    assert said.splitlines()[1:3] == ["b'it is me'"] * 2


def test_a_full_disk_for_the_layer_is_one_clear_error(tmp_path: Path) -> None:
    small = "mount -t tmpfs -o size=2m none $D"
    said = tried(tmp_path, "open('big', 'wb').write(bytes(9 << 20))", first=small)
    if "layer" not in said:
        pytest.skip("this kernel's tmpfs cannot hold a layer")
    assert "error: the disk is full" in said
    assert "--out" in said


def test_a_read_only_home_is_written_in_the_layer(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    first = "mount --bind $H/home $H/home; mount -o remount,bind,ro $H/home; export HOME=$H/home"
    source = "import pathlib; p = pathlib.Path.home() / 'x'\ntry: p.write_text('x')\nexcept OSError as e: print(e)\nprint('ended')"
    said = tried(tmp_path, source, first=first)
    assert said.startswith("layer | None")
    assert "ended" in said
    assert not any((tmp_path / "home").iterdir())


CLEARS_UP = """
import itertools, pathlib, sys, time
ends = time.monotonic() + 60
for number in itertools.count():
    made = [pathlib.Path(sys.argv[1], f"of-others-{number % 7}-{each}") for each in range(20)]
    for each in made: each.mkdir()
    time.sleep(0.002)
    for each in made: each.rmdir()
    if time.monotonic() > ends: break
"""


def test_what_others_clear_up_beside_a_mount_meanwhile_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    with subprocess.Popen([sys.executable, "-c", CLEARS_UP, str(tmp_path)]) as others:
        try:
            said = tried(tmp_path, WRITES, first="mount --bind $H/beside $H/beside")
        finally:
            others.kill()
    assert said.splitlines() == ["layer | None", "keptx", ""]


def test_a_read_only_run_directory_is_one_clear_error(tmp_path: Path) -> None:
    first = "mount --bind $D $D; mount -o remount,bind,ro $D"
    said = tried(tmp_path, WRITES, first=first)
    assert said.startswith("error: cannot prepare a trial: the file system is read-only")
