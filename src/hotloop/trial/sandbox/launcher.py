"""Becomes the command of a trial, in namespaces of its own. Runs before it in the same process.

Standard library only; started with `-I -S`, so that nothing of the user's is loaded before the sandbox holds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hotloop.trial.sandbox.layers import Tree
from hotloop.trial.sandbox.relay import HOME, Relay
from hotloop.trial.sandbox.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    SCOPE_SIGNALS,
    change_root,
    drop_capabilities,
    landlock,
    landlock_version,
    mount,
    restrict,
    start_loopback,
    unshare,
)

FAILED = 125
"""Return code of a launcher that could not set up the sandbox."""
NOT_RUN = 126
"""Return code where the command itself could not be started; why is in `failure` either way."""


def main() -> None:
    """argv: the file that describes the sandbox, then the command."""
    command = sys.argv[2:]
    failure = enter_sandbox(sys.argv[1])
    if failure is None:
        sys.exit(FAILED)
    with failure:
        # Python ignores these in itself, and would hand that down.
        for each in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            failure.write(f"{error.strerror or error}")
    sys.exit(NOT_RUN)


def enter_sandbox(description: str) -> IO[str] | None:
    """Put this process into the sandbox of that file.

    Returns the file that takes why its command cannot be run, and is closed where that begins; `None` where there is no
    such sandbox, and why is in there.
    """
    spec: dict[str, Any] = json.loads(Path(description).read_text(encoding="utf-8"))
    # Opened now: later this place cannot be seen. Python closes it where the command begins.
    failure = open(spec["failure"], "w", encoding="utf-8")  # noqa: SIM115
    try:
        if "writable" in spec:
            restrict(spec["writable"], network=spec["network"])
        else:
            _enter(spec, str(Path.cwd()))
    except OSError as error:
        with failure:
            failure.write(f"{error.strerror or error}")
        return None
    return failure


def _enter(spec: dict[str, Any], workdir: str) -> None:
    network = bool(spec["network"])
    relay = Relay([(host, port) for host, port in spec["machines"]]) if spec["machines"] else None
    _unshare(CLONE_NEWNS | CLONE_NEWIPC | (0 if network else CLONE_NEWNET))
    root = Path(spec["root"])
    tree = Tree(root, Path(spec["storage"]) if spec["storage"] else None)
    tree.build(workdir)
    _restore(tree.inside(spec["workdir"]), spec)
    for path in spec["hidden"]:
        tree.hide(path)
    for path in spec["shared"]:
        tree.share(path)
    if not network:
        start_loopback()
        if relay is not None:
            relay.listen()
        _name_machines(tree, Path(spec["hosts"]), relay.names if relay is not None else {})
    change_root(root)
    drop_capabilities()
    if landlock_version() >= 6:
        landlock(scopes=SCOPE_SIGNALS)
    os.chdir(workdir)


def _unshare(flags: int) -> None:
    """With the same user and group inside; whoever may map all of them does, and can read what it could."""
    user, group = os.geteuid(), os.getegid()
    maps = _all_ids() if user == 0 else None
    ready = os.pipe()
    helper = os.fork() if maps is not None else None
    if helper == 0:  # stays outside, where the right to map lies
        os.close(ready[1])
        os.read(ready[0], 1)
        try:
            for name, text in (maps or {}).items():
                Path(f"/proc/{os.getppid()}/{name}").write_text(text, encoding="ascii")
        except OSError:
            os._exit(1)
        os._exit(0)
    unshare(CLONE_NEWUSER | flags)
    os.close(ready[1])  # its end: now there is something to map
    mapped = helper is not None and os.waitpid(helper, 0)[1] == 0
    os.close(ready[0])
    if not mapped:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _all_ids() -> dict[str, str]:
    """Every user and group that is known here, under its own number."""
    maps = {}
    for name in ("uid_map", "gid_map"):
        ranges = [
            line.split() for line in Path(f"/proc/self/{name}").read_text("ascii").splitlines()
        ]
        maps[name] = "".join(f"{inside} {inside} {number}\n" for inside, _, number in ranges)
    return maps


def _restore(workdir: Path, spec: dict[str, Any]) -> None:
    """The working directory as it was before the command ran: in the layer, not in the directory."""
    for name in spec["made"]:
        _remove(workdir / name)
    for directory in (workdir / name for name in spec["directories"]):
        if directory.is_symlink() or not directory.is_dir():
            _remove(directory)
        directory.mkdir(parents=True, exist_ok=True)
    for kept, name in spec["restored"]:
        _remove(workdir / name)
        shutil.copy2(kept, workdir / name)
    for name, leads_to in spec["links"]:
        _remove(workdir / name)
        (workdir / name).symlink_to(leads_to)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _name_machines(tree: Tree, file: Path, names: Mapping[str, str]) -> None:
    """Its own name leads to the loopback: there is no other address, and processes of a trial meet by name.

    names: of the machines that it reaches, and where each leads.
    """
    target = tree.inside("/etc/hosts")
    if names:
        target.touch()
    if not target.is_file():
        return
    name = socket.gethostname()
    told = {name, *names}
    lines = target.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = [line for line in lines if told.isdisjoint(line.split("#")[0].split()[1:])]
    own = [f"127.0.0.1 localhost {name}", f"::1 localhost {name}"]
    own += [f"{address} {each}" for each, address in names.items() if address != HOME]
    file.write_text("\n".join([*own, *kept, ""]), encoding="utf-8")
    mount(file, target, flags=MS_BIND)
