"""What every trial starts from: the working directory as it was before the command ran, in a sandbox.

```
RUN/before/   isolation.json   how trials are kept apart
              before.json, files/   the snapshot, or a whole copy
```
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotloop.core.command_run import COMMAND_RUN_FILE
from hotloop.core.connections import NO_NETWORK, Connections, Network, connections_of, host_and_port
from hotloop.core.errors import UsageError
from hotloop.core.files import storing, write_json
from hotloop.core.ledger import Isolation
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.doctor.directory import mapping_of
from hotloop.report.numbers import counted, size
from hotloop.trial.isolation import copy_workdir, list_workdir
from hotloop.trial.measure import MEASUREMENT_FILE, Workdir
from hotloop.trial.sandbox.layered import Layered, Storage, remove_tree, storage_for
from hotloop.trial.sandbox.syscalls import landlock_version, refuses_connections
from hotloop.trial.snapshot import read_snapshot, take_snapshot

BEFORE = "before"
ISOLATION_FILE = "isolation.json"
MOST_HOSTS = 4
EDITED = (".py", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".sh")
"""What people write by hand; other files decide what a command does where it names them."""


def keep_start(directory: Path, workdir: Path, *, network: Network = NO_NETWORK) -> None:
    """Keep `workdir` as it is now for the trials of the doctor's `directory`.

    Raises `UsageError` where trials need copies of it and it is too large, or cannot be kept to `network`;
    `EnvironmentFailed` when the disk refuses.
    """
    storage = storage_for(directory, workdir)
    kept, making = directory / BEFORE, directory / f".{BEFORE}"
    _refuse_hosts_of_copies(storage, network)
    remove_tree(making)  # a kill left it unfinished
    if storage is not None:
        take_snapshot(workdir, making)
    else:
        copy_workdir(list_workdir(workdir, without=directory), making / "files")
    write_json(making / ISOLATION_FILE, {"storage": storage})
    with storing(kept, "keep the working directory as it is"):
        making.rename(kept)


def start_of(directory: Path, workdir: Path, *, network: Network = NO_NETWORK) -> Workdir:
    """What was kept; where nothing was, what is there now. Raises what `keep_start` raises."""
    kept = directory / BEFORE
    if not (kept / ISOLATION_FILE).exists():
        directory.mkdir(parents=True, exist_ok=True)
        keep_start(directory, workdir, network=network)
    storage = _storage(kept / ISOLATION_FILE)
    _refuse_hosts_of_copies(storage, network)
    snapshot = None if storage is None else read_snapshot(kept)
    if storage is not None and snapshot is not None:
        return Layered(snapshot, directory.resolve(), storage, network)
    files = kept / "files"
    return replace(
        list_workdir(files, without=directory),
        root=workdir.resolve(),
        source=files,
        restricted=sys.platform == "linux" and landlock_version() > 0,
        network=network.unlimited,
    )


def isolation_of(workdir: Workdir | None) -> Isolation:
    """The kind of isolation, as it is stored."""
    if workdir is None:
        return "none"
    if isinstance(workdir, Layered):
        return "layer"
    return "landlock" if workdir.restricted else "copy"


def network_of(workdir: Workdir | None) -> Network:
    """What trials can connect to."""
    if isinstance(workdir, Layered):
        return workdir.network
    is_refused = workdir is not None and workdir.restricted and refuses_connections()
    return Network(unlimited=workdir is None or workdir.network or not is_refused)


def refuse_unknown_hosts(network: Network) -> None:
    """Raises `UsageError` where one of its hosts has no address."""
    for each in network.hosts:
        host, port = host_and_port(each)
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            do = "check the name, and whether this machine can look names up"
            raise UsageError(f"--network: no address is known of {host}: {why}", do=do) from error


def before_trials(directory: Path, workdir: Workdir | None) -> list[str]:
    """What is to be said before the first trial of what was examined in `directory`. Raises what `edited` raises."""
    said = (
        weak_isolation(workdir), cut_off(directory, workdir), written_over(workdir),
        edited(directory, workdir),
    )  # fmt: skip
    return [each for each in said if each]


def cut_off(directory: Path, workdir: Workdir | None) -> str | None:
    """What to say before the first trial where the command of `directory` connected to machines that trials cannot
    reach; `None` where it did not."""
    reached = network_of(workdir)
    lacking = [each for each in connections_of(directory) if each.name.lower() not in reached.hosts]
    if not lacking or reached.unlimited:
        return None
    named = ", ".join(_with_bytes(each) for each in lacking[:MOST_HOSTS])
    more = "" if len(lacking) <= MOST_HOSTS else f" and {len(lacking) - MOST_HOSTS} more"
    together = ",".join((*reached.hosts, *(each.name for each in lacking)))
    option = f"--network={together}" if isinstance(workdir, Layered) else "--network"
    return (
        f"the command connected to {named}{more}, which trials cannot reach. Where it needs that, end this with "
        f"Ctrl-C and add {option}"
    )


def written_over(workdir: Workdir | None) -> str | None:
    """What to say before the first trial where the command wrote over checkpoints of which no copy was kept; `None`: over none."""
    lost = workdir.snapshot.hide_lost() if isinstance(workdir, Layered) else []
    if not lost:
        return None
    others = f" and {counted(len(lost) - 1, 'other checkpoint')}" if len(lost) > 1 else ""
    return (
        f"{lost[0]}{others} changed while the command ran, too large to keep a copy of before: trials begin without. Where "
        "the command needs what was there, end this with Ctrl-C and let it write to another directory"
    )


def named_files(names: Sequence[str]) -> str:
    more = f" and {counted(len(names) - 1, 'other file')}" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def edited(directory: Path, workdir: Workdir | None) -> str | None:
    """What to say before trials that go on though files were edited meanwhile; `None`: none was.

    Raises `UsageError` where trials would see these files as they are now.
    """
    if not (names := edited_since(directory)):
        return None
    what = f"{named_files(names)} changed after the command was examined"
    if workdir is None or any(name.startswith(os.pardir) for name in names):
        raise UsageError(
            f"{what}: its trials would be of another command",
            where=str(directory),
            do="name another directory with --out",
        )
    return f"{what}: trials run it as it was then. With another --out it is examined as it is now"


def edited_since(directory: Path) -> list[str]:
    """Files that decide what the command of `directory` does and are others than when its examination ended, by their
    path relative to where it runs. What it wrote itself is none of them."""
    run = mapping_of(directory / COMMAND_RUN_FILE)
    root, words = Path(run.get("workdir", "")), run.get("command", ())
    return edited_files(directory, root, words, since=directory / MEASUREMENT_FILE)


def edited_files(directory: Path, root: Path, words: Sequence[str], *, since: Path) -> list[str]:
    """Those that decide what commands of these words do in `root` and are others than when the file `since` was written."""
    kept = directory / BEFORE / "files"
    try:
        ended_at = since.stat().st_mtime
    except OSError:
        return []
    paths = [root / word.rpartition("=")[2] for word in words]
    # `Path.is_file` raises for a word that is longer than a name can be, as the text after `-c` is.
    named = {os.path.relpath(path, root) for path in paths if os.path.isfile(path)}  # noqa: PTH113
    found = {each.relative_to(kept).as_posix(): each for each in kept.rglob("*") if each.is_file()}
    decide = {
        name for name in {*found, *named} if name.endswith(EDITED) or name in named & found.keys()
    }
    return sorted(
        name
        for name in decide
        if _was_edited(root / name, found.get(name), ended_at, is_named=name in named)
    )


def _was_edited(path: Path, before: Path | None, ended_at: float, *, is_named: bool) -> bool:
    """before: as it was; `None`: nobody kept it."""
    try:
        if path.stat().st_ctime <= ended_at:  # or the command wrote it
            return False
        if before is None:
            return True
        content = before.read_bytes()
        by_hand = is_named or b"\ndigest: " not in content  # else `hotloop tune` wrote that config
        return by_hand and content != path.read_bytes()
    except OSError:
        return before is not None


def _with_bytes(connections: Connections) -> str:
    sent, received = size(connections.sent_bytes), size(connections.received_bytes)
    moved = connections.sent_bytes or connections.received_bytes
    return f"{connections.name} ({received} received, {sent} sent)" if moved else connections.name


def what_trials_lack(workdir: Workdir | None) -> str:
    """What a command that has run may miss in a trial, and what to do."""
    if isinstance(workdir, Layered):
        if workdir.network.unlimited:
            return "a trial sees every file, and what it writes is kept from them; trackers are offline"
        seen = ", ".join(workdir.network.hosts)
        return (
            f"a trial sees every file, but no other machine{f' than {seen}' if seen else ''}; where it needs one, "
            "allow it with --network=HOST:PORT"
        )
    offline = "" if network_of(workdir).unlimited else " and no connections, which --network allows"
    return (
        f"a trial is a copy of the working directory, with trackers offline{offline}; where it needs what lies "
        "beside that directory, try --in-place"
    )


def weak_isolation(workdir: Workdir | None) -> str | None:
    """What to say before the first trial where the kernel does not keep it in; `None` where it does."""
    if workdir is None or isinstance(workdir, Layered):
        return None
    where = "this system allows no user namespaces with overlayfs: trials run in copies of the working directory"
    if not workdir.restricted:
        return (
            f"{where}, and only what Python opens outside of them is refused. C libraries, child processes and the "
            "network are not kept in; --no-try leaves trials out"
        )
    open_to = "all connections" if network_of(workdir).unlimited else "UDP"
    return (
        f"{where}, and the kernel refuses what they write outside of them, but for caches, shared memory, modes and "
        f"times of files, and {open_to}; --no-try leaves trials out"
    )


def _refuse_hosts_of_copies(storage: Storage | None, network: Network) -> None:
    """The kernel can refuse a copy all connections, and knows ports but no machines."""
    if storage is None and network.hosts:
        raise UsageError(
            "this system allows no user namespaces with overlayfs: trials can be let to all machines or to none, not to "
            f"{', '.join(network.hosts)}",
            do="give --network alone, which allows all, or leave it out",
        )


def _storage(path: Path) -> Storage | None:
    try:
        stored = parse_object(read_bytes(path)).get("storage")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"damaged: {error}", where=str(path), do="name another directory with --out"
        ) from error
    return stored if stored in ("disk", "memory") else None
