"""A process that is forked finds what a fresh one finds, and is looked after as one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import pytest

from hotloop.core.child import IMPORTS_FILE
from hotloop.core.errors import CommandFailed
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.progress import silent
from hotloop.doctor.command import attached_environment
from hotloop.trial import session, watchdog
from hotloop.trial.arm import Arm
from hotloop.trial.forking import ForkServer, ForkServers, Imports, may_fork
from hotloop.trial.measure import load_measurement, measure, server_environment
from hotloop.trial.plan import TrialPlan, round_orders
from hotloop.trial.sandbox.layered import Layered, storage_for
from hotloop.trial.snapshot import take_snapshot
from processes import alive, wait_for

TEMPORARY = Path(tempfile.gettempdir())
pytestmark = pytest.mark.skipif(
    storage_for(TEMPORARY, TEMPORARY) is None,
    reason="this kernel gives no layers to unprivileged users",
)

SCRIPT = """
import inspect, json, os, random, sys, tempfile, threading
os.environ["SET_EARLY"] = "yes"
import torch
import numpy
import helper

class Told:
    kind: int = 0

def surroundings():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "executable": sys.executable,
        "path": sys.path, "main": [main.__name__, main.__file__, str(main.__spec__)],
        "helper": helper.__file__, "told": inspect.getsource(Told), "kind": repr(Told.__annotations__), "cwd": os.getcwd(),
        "environ": dict(os.environ), "early": os.environ["SET_EARLY"],
        "temporary": tempfile.gettempdir(), "threads": threading.active_count(),
        "stdin": sys.stdin.read(), "outside": os.path.exists(sys.argv[1]),
        "signals": [str(__import__("signal").getsignal(n)) for n in (2, 13, 15)],
        "session": os.getsid(0) == os.getpid(), "gc": __import__("gc").get_threshold(),
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:4],
    }

print(json.dumps(surroundings()))
print(json.dumps([torch.rand(1).item(), random.random(), numpy.random.rand()]))
open("written.txt", "w").write("in the layer alone")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


class Place:
    """A script in a directory, and trials of it."""

    def __init__(self, root: Path) -> None:
        self.workdir, self.doctors = root / "work", root / "doctors"
        self.workdir.mkdir()
        self.doctors.mkdir()
        self.number = 0
        self.write("helper.py", "")

    def write(self, name: str, source: str) -> Arm:
        (self.workdir / name).write_text(source)
        return Arm("plain", (sys.executable, name, "/etc"), "step_clock", workdir=self.workdir)

    def imports(self) -> Imports:
        """As the probe records them of `SCRIPT`."""
        seen = self.doctors / "seen"
        seen.mkdir()
        arm = self.write("seen.py", SCRIPT)
        env = attached_environment(dict(os.environ), seen)
        subprocess.run(arm.command, cwd=self.workdir, env=env, stdin=subprocess.DEVNULL, check=True)
        (self.workdir / "written.txt").unlink()
        imports = Imports.read(seen / IMPORTS_FILE)
        assert imports is not None
        assert imports.variables == {"SET_EARLY": "yes"}
        assert "helper" not in imports.modules
        return imports

    def trial(self, arm: Arm, server: ForkServer | None, **plan: Any) -> tuple[Measurement, str]:
        self.number += 1
        place = self.doctors / "trials" / f"trial-{self.number}"
        before = take_snapshot(self.workdir, self.doctors / f"before-{self.number}")
        measured = measure(
            arm, directory=place, plan=Plan(**{"warmup_steps": 2, "steps": 10, "timeout_s": 300.0, **plan}),
            seed="0", cache=self.doctors / "cache", workdir=Layered(before, self.doctors.resolve()),
            server=server,
        )  # fmt: skip
        return measured, (place / "log.txt").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("forking").resolve())


@pytest.fixture(scope="module")
def imports(place: Place) -> Imports:
    return place.imports()


@pytest.fixture(scope="module")
def server(place: Place, imports: Imports) -> Iterator[ForkServer]:
    servers = ForkServers(imports, place.doctors / "server")
    yield ready(servers, place, place.write("train.py", SCRIPT))
    servers.close()


def ready(servers: ForkServers, place: Place, arm: Arm) -> ForkServer:
    server = servers.for_pair(
        [arm], partial(server_environment, arm, cache=place.doctors / "cache")
    )
    assert server is not None, servers.given_up
    return server


def test_a_fork_finds_what_a_fresh_process_finds(place: Place, server: ForkServer) -> None:
    arm = place.write("train.py", SCRIPT)
    fresh, printed = place.trial(arm, None)
    forked = [place.trial(arm, server) for _ in range(2)]
    expected = json.loads(printed.splitlines()[0])
    drawn = [json.loads(printed.splitlines()[1])]
    for measured, text in forked:
        found = json.loads(text.splitlines()[0])
        for name in ("environ", "path"):  # each trial has directories of its own
            found[name], own = _placed(found[name], measured), _placed(expected[name], fresh)
            assert found.pop(name) == own
        expected_rest = {k: v for k, v in expected.items() if k in found and k != "temporary"}
        assert {k: v for k, v in found.items() if k != "temporary"} == expected_rest
        drawn.append(json.loads(text.splitlines()[1]))
        assert len(measured.records) == len(fresh.records) == 12
        assert measured.census is not None
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 3
    assert not (place.workdir / "written.txt").exists()


def _placed(value: Any, measured: Measurement) -> Any:
    text = json.dumps(value, sort_keys=True)
    text = re.sub(r"trial-\d+", "trial", text)
    text = re.sub(r'"HOTLOOP_(TRIAL|PADDING)": "[^"]*"', "", text)
    return re.sub(r"/hotloop-[a-z0-9_]+", "/hotloop-x", text)


@pytest.mark.parametrize("told_by", ["kernel", "looks"])
def test_a_fork_is_found_by_its_token_and_ended_with_what_it_started(
    place: Place, server: ForkServer, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    if told_by == "looks":  # as in builds of Python without it
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    arm = place.write(
        "asleep.py",
        "import os, subprocess, sys, time, torch\n"
        "if os.fork() == 0:\n    os.setsid(); time.sleep(600)\n"
        "time.sleep(600)\n",
    )
    with pytest.raises(CommandFailed, match="had not finished after 3 s"):
        place.trial(arm, server, timeout_s=3.0)
    own = Path(f"/proc/{server._process.pid}")

    def is_alone() -> bool:
        found = [each for each in Path("/proc").glob("[0-9]*") if _is_in(each, place.workdir)]
        return watchdog.descendants(server._process.pid) == [] and found == [own]

    assert wait_for(is_alone)  # what was ended may have its memory no more, and not be gone yet


def _is_in(process: Path, workdir: Path) -> bool:
    try:
        if (process / "cwd").readlink() != workdir:
            return False
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("ending", "code"),
    [("raise SystemExit(3)", 3), ("raise KeyError('gone')", 1), ("import os; os._exit(7)", 7)],
)
def test_a_fork_ends_with_the_code_of_its_script(
    place: Place, server: ForkServer, ending: str, code: int
) -> None:
    arm = place.write("ends.py", f"import torch\n{ending}\n")
    with pytest.raises(CommandFailed) as caught:
        place.trial(arm, server)
    assert caught.value.returncode == code
    if "KeyError" in ending:
        assert "KeyError: 'gone'" in str(caught.value)
        assert "fork_server" not in str(caught.value)


@pytest.mark.parametrize("asked", ["nothing", "half"])
def test_each_serves_two_pairs_and_ends_with_the_process_that_started_it(
    place: Place, imports: Imports, asked: str
) -> None:
    arm = place.write("train.py", SCRIPT)
    servers = ForkServers(imports, place.doctors / "servers")
    first, second = ready(servers, place, arm), ready(servers, place, arm)
    assert first is second
    third = ready(servers, place, arm)
    assert third is not first
    assert first._process.returncode is not None
    if asked == "half":
        third._socket.sendall(b'{"command": ')
    third._answers.close()
    third._socket.close()  # as the end of this process does
    assert third._process.wait(timeout=120) == 0
    with pytest.raises(
        CommandFailed, match="the process that trials are forked from does not answer"
    ):
        place.trial(arm, third)
    servers.close()
    assert not (place.doctors / "servers").exists()


STARTS_A_PROCESS = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
with open("child.part", "w") as file:
    file.write(str(child.pid))
os.rename("child.part", "child")
"""


def test_what_an_import_started_ends_with_the_refusal(
    tmp_path: Path, place: Place, imports: Imports
) -> None:
    users = Place(tmp_path.resolve())
    arm = users.write("train.py", SCRIPT)
    users.write("starts.py", STARTS_A_PROCESS)
    modules = {**imports.modules, "starts": str(users.workdir / "starts.py")}
    servers = ForkServers(Imports(modules, {}), users.doctors / "servers")
    environment = partial(server_environment, arm, cache=tmp_path / "cache")
    assert servers.for_pair([arm], environment) is None
    assert servers.given_up == "an import starts processes"
    child = int((users.workdir / "child").read_text())
    try:
        assert wait_for(lambda: not alive(child), limit_s=20)
    finally:
        end([child])


HOTLOOP = """
import os, sys
from pathlib import Path
from hotloop.trial.arm import Arm
from hotloop.trial.forking import ForkServer, Imports
here = Path(sys.argv[1])
arm = Arm("plain", (sys.executable, "train.py"), "step_clock", workdir=here)
ForkServer.started(arm, Imports({"starts": str(here / "starts.py")}, {}), dict(os.environ), here)
"""
NEVER_READY = """
with open("self.part", "w") as file:
    file.write(str(os.getpid()))
os.rename("self.part", "self")
import time; time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_still_imports_ends_with_the_one_that_started_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "starts.py").write_text(STARTS_A_PROCESS + NEVER_READY)
    started = subprocess.Popen(
        [sys.executable, "-c", HOTLOOP, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        assert wait_for((tmp_path / "self").exists)
    finally:
        started.send_signal(number)
        started.wait()
    left = [int((tmp_path / name).read_text()) for name in ("self", "child")]
    try:
        assert wait_for(lambda: not any(map(alive, left)), limit_s=20)
    finally:
        end(left)


def end(processes: list[int]) -> None:
    for process in filter(alive, processes):
        os.kill(process, signal.SIGKILL)


def test_one_that_does_not_say_what_it_forked_is_ended(place: Place, imports: Imports) -> None:
    arm = place.write("train.py", SCRIPT)
    servers = ForkServers(imports, place.doctors / "silent")
    server = ready(servers, place, arm)
    try:
        server._process.send_signal(signal.SIGSTOP)
        server._socket.settimeout(0.1)
        with pytest.raises(CommandFailed, match="does not answer"):
            place.trial(arm, server)
        assert server._process.returncode == -signal.SIGKILL
    finally:
        servers.close()


def test_what_is_imported_from_elsewhere_is_refused(
    tmp_path: Path, place: Place, imports: Imports
) -> None:
    users = Place(tmp_path.resolve())
    arm = users.write("train.py", SCRIPT)
    users.write("numpy.py", "")  # the user's own, in front of the package
    servers = ForkServers(imports, users.doctors / "servers")
    assert (
        servers.for_pair([arm], partial(server_environment, arm, cache=tmp_path / "cache")) is None
    )
    assert "numpy" in str(servers.given_up)


def test_where_no_time_is_left_for_imports_processes_are_fresh(
    tmp_path: Path, place: Place, imports: Imports
) -> None:
    users = Place(tmp_path.resolve())
    arm = users.write("train.py", SCRIPT)
    servers = ForkServers(imports, users.doctors / "servers")
    environment = partial(server_environment, arm, cache=tmp_path / "cache")
    assert servers.for_pair([arm], environment, timeout_s=0.0) is None
    assert servers.given_up == "it was not ready after 0 s"


@pytest.mark.parametrize(
    ("command", "may"),
    [
        (("python", "train.py", "-x"), True), (("python3.12", "-m", "train"), True),
        (("python", "-u", "train.py"), False), (("torchrun", "train.py"), False),
        (("python", "-m", "torch.distributed.run", "train.py"), False),
        (("python",), False), (("python", "-c", "pass"), False),
    ],
)  # fmt: skip
def test_which_commands_can_be_forked(command: tuple[str, ...], may: bool) -> None:
    arm = Arm("plain", command, "step_clock")
    assert may_fork([arm, Arm("other", command, "step_clock")]) is may
    assert may_fork([arm, Arm("other", (*command, "--lr", "1"), "step_clock")]) is may
    elsewhere = tuple("else.py" if each.startswith("train") else each for each in command)
    assert not may_fork([arm, Arm("other", elsewhere, "step_clock")])
    assert not may_fork([arm, Arm("other", command, "step_clock", env={"OMP_NUM_THREADS": "1"})])
    assert not may_fork([arm, Arm("other", command, "step_clock", comparable=True)])


def test_an_incomplete_record_of_imports_is_none(tmp_path: Path) -> None:
    file = tmp_path / "imports.json"
    for text in ("", "[]", '{"modules": {}, "variables": null}', '{"modules": []}'):
        file.write_text(text)
        assert Imports.read(file) is None
    file.write_text('{"modules": {"torch": "/x"}, "variables": {"A": null}}')
    assert Imports.read(file) == Imports({"torch": "/x"}, {"A": None})


def test_a_fork_that_fails_is_repeated_as_a_fresh_process_and_no_more_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def trial(*arguments: object, server: object = None, **rest: object) -> str:
        given.append(server)
        if server is not None:
            raise CommandFailed("it fails where it is forked", returncode=1)
        return "measured"

    monkeypatch.setattr(session, "trial", trial)
    servers = ForkServers(Imports({}, {}), tmp_path / "servers")
    made = session._Session(
        tmp_path, TrialPlan(1, 2, 9.0), None, tmp_path, silent, lambda pair: None, servers=servers,
        pairs_now=None, goes_on=lambda verdict: True, stop_now=lambda verdict, num_new: False,
        timeout_of=lambda seconds: seconds, was_cut_off=lambda error: False,
    )  # fmt: skip
    arm = Arm("plain", ("python", "train.py"), "step_clock")
    server = cast(ForkServer, object())
    assert made._trial(tmp_path / "pair", arm, Plan(1, 2, 9.0), "pair 1", server) == "measured"
    assert given == [server, None]
    assert servers.given_up == "it fails where it is forked"
    assert servers.for_pair([arm], lambda directory: {}) is None


def test_where_one_fails_that_was_forked_all_of_its_round_are_fresh(
    place: Place, imports: Imports
) -> None:
    names = ("baseline", "own", "other")
    order = round_orders(4, names, crc32(" ".join(names).encode()))[0]
    place.write("round.py", FAILS_FORKED)
    baseline, own, other = (
        Arm(
            name, (sys.executable, "round.py", name, order[-1]), "step_clock", workdir=place.workdir
        )
        for name in names
    )
    directory, plan = place.doctors / "round", TrialPlan(2, 10, 300.0, looks=(4,), aa_pairs=0)
    before = take_snapshot(place.workdir, place.doctors / "before-round")
    servers = ForkServers(imports, place.doctors / "round-servers")
    found = session.compare_arms(
        baseline, own, directory=directory / "own", plan=plan, parity_class="bitwise", pairs_now=1,
        beside=session.Beside(names[1:], ((directory / "other", other, plan),)),
        cache=place.doctors / "cache", workdir=Layered(before, place.doctors.resolve()),
        servers=servers,
    )  # fmt: skip
    assert f"{order[-1]}: `{order[-1]}` ended with exit code 1" in (servers.given_up or "")
    logs = sorted(directory.glob("*/pair-01-*/log.txt"))
    assert [each.read_text().split()[0] for each in logs] == ["fresh"] * 3
    measured = {each.arm: each for each in found.pairs[0]}
    (shared,) = directory.glob("other/pair-01-*-baseline/measurement.json")
    (beside,) = directory.glob("other/pair-01-*-other/measurement.json")
    measured["other"] = load_measurement(beside)
    assert load_measurement(shared).started_at == measured["baseline"].started_at
    began = {name: each.started_at or 0.0 for name, each in measured.items()}
    assert sorted(began, key=lambda name: began[name]) == list(order)


FAILS_FORKED = """
import sys
print("forked" if "torch" in sys.modules else "fresh", flush=True)
if "torch" in sys.modules and sys.argv[1] == sys.argv[2]:
    raise SystemExit("not where it is forked")
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
