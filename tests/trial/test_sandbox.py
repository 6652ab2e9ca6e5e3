"""A trial runs where the command runs, and nothing of what it does is seen outside."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import escapes
import pytest

from hotloop.core.measurement import Measurement, Plan
from hotloop.trial.arm import Arm
from hotloop.trial.isolation import list_workdir
from hotloop.trial.measure import LOG_FILE, Workdir, measure
from hotloop.trial.sandbox.layered import Layered, Storage, storage_for
from hotloop.trial.sandbox.syscalls import landlock_version
from hotloop.trial.snapshot import take_snapshot

TEMPORARY = Path(tempfile.gettempdir())
NO_LAYERS = storage_for(TEMPORARY, TEMPORARY) is None
pytestmark = pytest.mark.skipif(
    NO_LAYERS, reason="this kernel gives no layers to unprivileged users"
)


def layered(workdir: Path, doctors: Path, storage: Storage = "disk", **rest: bool) -> Layered:
    """As the doctor makes it before the command runs."""
    doctors.mkdir(parents=True, exist_ok=True)
    return Layered(take_snapshot(workdir, doctors / "before"), doctors.resolve(), storage, **rest)


def tried(arm: Arm, start: Workdir, *, doctors: Path) -> tuple[Measurement, str]:
    """One trial, and what it printed."""
    number = sum(1 for _ in doctors.glob("trials/*"))
    place = doctors / "trials" / f"trial-{number}"
    measured = measure(
        arm, directory=place, plan=Plan(0, 1, 600.0), seed="0", cache=doctors / "cache", workdir=start
    )  # fmt: skip
    assert not (place / "layer").exists()
    return measured, (place / LOG_FILE).read_text()


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything that can be seen of it."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def test_edited_files_are_seen_by_the_trial_alone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "package").mkdir(parents=True)
    (work / "package" / "__init__.py").write_text("VALUE = 'as it is'")
    (work / "linked.py").symlink_to("package/__init__.py")
    start = layered(work, tmp_path / "doctor")
    command = (sys.executable, "-c", "import package, linked; print(package.VALUE, linked.VALUE)")
    edited = {"package/__init__.py": b"VALUE = 'edited'"}
    _, printed = tried(
        Arm("plain", command, "none", workdir=work, edited=edited),
        start,
        doctors=tmp_path / "doctor",
    )
    assert printed == "edited edited\n"
    edited = {"linked.py": b"VALUE = 'by its link'"}
    _, printed = tried(
        Arm("plain", command, "none", workdir=work, edited=edited),
        start,
        doctors=tmp_path / "doctor",
    )
    assert printed == "by its link by its link\n"
    assert (work / "package" / "__init__.py").read_text() == "VALUE = 'as it is'"
    assert (work / "linked.py").is_symlink()


def test_shared_memory_of_a_trial_is_no_larger_than_that_outside(tmp_path: Path) -> None:
    """Else loader workers whose batches fit there fill it where the command runs."""
    (tmp_path / "work").mkdir()
    (tmp_path / "outer.py").write_text(f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_sandbox import Arm, layered, tried
if __name__ == "__main__":
    root = Path({str(tmp_path)!r})
    look = "import os; room = os.statvfs('/dev/shm'); print(room.f_blocks * room.f_frsize)"
    arm = Arm("plain", (sys.executable, "-c", look), "none", workdir=root / "work")
    print(tried(arm, layered(root / "work", root / "doctor"), doctors=root / "doctor")[1])
""")
    outside = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", outside, "sh", sys.executable, str(tmp_path / "outer.py")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert int(done.stdout) == 8 << 20, done.stderr


# Escapes


@dataclass
class Outside:
    """What was there before the attempts, and is there after them."""

    said: dict[str, str]
    before: dict[str, tuple[int, int, bytes]]
    after: dict[str, tuple[int, int, bytes]]
    reached: list[str]
    left: list[str]
    victim_lives: bool


@pytest.fixture(scope="module", params=["disk", "memory"])
def outside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outside:
    return attempted(tmp_path_factory.mktemp(f"world-{secrets.token_hex(4)}-"), request.param)


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """By Landlock alone, as where the kernel gives no namespaces."""
    if landlock_version() < 6:
        pytest.skip("this kernel's Landlock cannot do all of it")
    return attempted(tmp_path_factory.mktemp(f"world-{secrets.token_hex(4)}-"), None)


def attempted(root: Path, storage: Storage | None) -> Outside:
    """Every way out, tried in one process. storage: of its layer; `None` is a copy that it may not leave."""
    for number in range(len(escapes.ATTEMPTS)):
        target = root / "targets" / str(number)
        (target / "sub").mkdir(parents=True)
        (target / "sub" / "deep.txt").write_text("deep")
        (target / "kept.txt").write_text("kept")
        (target / "tensor.bin").write_bytes(bytes(16))
        with sqlite3.connect(target / "base.db") as base:
            base.execute("create table t (a)")
    work = root / "targets" / "work"
    work.mkdir()
    (work / "kept.txt").write_text("kept")
    shutil.copy(escapes.__file__, work / "escapes.py")
    start: Workdir
    if storage is not None:
        start = layered(work, root / "doctor", storage)
    else:
        start = replace(list_workdir(work, without=root), restricted=True)
    before = tree(root / "targets")
    reached: list[str] = []
    victim = subprocess.Popen(["sleep", "3000"])
    with servers(root, reached) as ports:
        ports["victim"] = victim.pid
        report = "{run}/said.json"
        command = (sys.executable, "escapes.py", str(root), report, json.dumps(ports))
        tried(Arm("escapes", command, "none", workdir=work), start, doctors=root / "doctor")
    said = next(root.glob("doctor/trials/*/run/said.json"))
    places = [Path.home(), Path("/dev/shm"), Path("/tmp"), Path("/var/tmp")]
    found = [path for place in places for path in place.glob(f"*{root.name}-*")]
    left = [str(path) for path in found]
    for path in found:
        path.unlink()
    lives = victim.poll() is None
    victim.kill()
    victim.wait()
    return Outside(
        json.loads(said.read_text()), before, tree(root / "targets"), reached, left, lives
    )


class servers:
    """What listens on this machine; notes what it is sent."""

    def __init__(self, root: Path, reached: list[str]) -> None:
        self._reached = reached
        self._tcp = socket.create_server(("", 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._paths = []
        for address in (str(root / "server.sock"), f"\0{root}"):
            server = socket.socket(socket.AF_UNIX)
            server.bind(address)
            server.listen()
            self._paths.append(server)

    def __enter__(self) -> dict[str, int]:
        for server in (self._tcp, *self._paths):
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return {"tcp": self._tcp.getsockname()[1], "udp": self._udp.getsockname()[1]}

    def __exit__(self, *error: object) -> None:
        self._udp.setblocking(False)
        try:
            self._reached.append(f"udp {self._udp.recv(10)!r}")
        except BlockingIOError:
            pass
        for server in (self._tcp, self._udp, *self._paths):
            server.close()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            self._reached.append(f"{server.family} was connected to")
            connection.close()


@pytest.mark.parametrize("number", range(len(escapes.ATTEMPTS)), ids=list(escapes.ATTEMPTS))
def test_what_an_attempt_changes_is_not_seen_outside(outside: Outside, number: int) -> None:
    below = f"{number}/"
    mine = {name: seen for name, seen in outside.before.items() if f"{name}/".startswith(below)}
    assert {
        name: seen for name, seen in outside.after.items() if f"{name}/".startswith(below)
    } == mine
    assert list(escapes.ATTEMPTS)[number] in outside.said


def test_nothing_else_is_changed_reached_or_left(outside: Outside) -> None:
    assert outside.after == outside.before
    assert outside.reached == []
    assert outside.left == []


def test_attempts_are_real(outside: Outside) -> None:
    """Most seem to work: a script that writes where it always writes must not fail for being tried."""
    work = [name for name, what in outside.said.items() if what == "seemed to work"]
    must = ["open", "sqlite3", "subprocess cp", "safetensors", "torch.from_file", "rmtree", "mmap"]
    assert set(must) <= set(work), outside.said
    assert "ECONNREFUSED" in outside.said["TCP"] or "refused" in outside.said["TCP"]


UNSEEN_BY_LANDLOCK = {
    *("chmod file", "chmod directory", "utime", "subprocess touch", "xattr"),
    *("UDP", "unix socket", "shared memory"),
}


@pytest.mark.parametrize("name", sorted(set(escapes.ATTEMPTS) - UNSEEN_BY_LANDLOCK))
def test_what_landlock_sees_is_refused(restricted: Outside, name: str) -> None:
    below = f"{list(escapes.ATTEMPTS).index(name)}/"
    mine, after = (
        {path: seen for path, seen in each.items() if f"{path}/".startswith(below)}
        for each in (restricted.before, restricted.after)
    )
    assert after == mine


def test_landlock_refuses_connections_and_signals(restricted: Outside) -> None:
    assert [each for each in restricted.reached if "INET" in each] == []
    assert restricted.victim_lives
    assert [path for path in restricted.left if not path.startswith("/dev/shm")] == []


def test_processes_outside_are_not_signalled(outside: Outside) -> None:
    if landlock_version() < 6:
        pytest.skip("this kernel cannot keep signals in")
    assert outside.victim_lives
