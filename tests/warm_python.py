"""`subprocess.run` for Python scripts that import torch, without the two seconds that the import takes.

A process that holds torch, and has computed nothing, forks for each script. In the fork `import torch` goes
through the import system as it does in a fresh process, so whatever waits for it is called, and gets the module
that is there already. What acts before Python starts, or on its command line, needs a fresh process: `run` takes
one where the environment says so, and tests of endings, start-up and the import itself take one themselves.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

READ_AT_START = ("OMP_", "MKL_", "KMP_", "LD_", "MALLOC_", "GLIBC", "TORCH", "PYTHON", "CUDA")
"""Variables that a library or Python reads before a script could be forked."""


def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout: float | None = None,
    fresh: bool = False,
    trainer: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS`, a script and its own arguments, with its streams as text.

    trainer: the process that it is forked from holds hotloop's trainer, too, another second and a half.
    Raises `subprocess.TimeoutExpired` after `timeout` seconds, as `subprocess.run` does.
    """
    if fresh or not _may_fork(arguments, env):
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=dict(env)
        )
    if not _hosts:
        _hosts.extend(_start())
    return _hosts[trainer].run([str(each) for each in arguments], dict(env), str(cwd), timeout)


def _may_fork(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
        found = {name: value for name, value in variables.items() if name.startswith(READ_AT_START)}
        found.pop("PYTHONPATH", None)
        return found

    return not str(arguments[0]).startswith("-") and read_at_start(env) == read_at_start(os.environ)


TRAINER = ("hotloop.cli.train", "hotloop.train.start")


def _start() -> list[_Host]:
    """The processes that hold torch, and torch and the trainer; the second one is forked from the first."""
    pairs = [socket.socketpair() for _ in range(2)]
    descriptors = [theirs.fileno() for _, theirs in pairs]
    process = subprocess.Popen(
        [sys.executable, __file__, *map(str, descriptors)],
        pass_fds=descriptors,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    for _, theirs in pairs:
        theirs.close()
    hosts = [_Host(own) for own, _ in pairs]
    atexit.register(process.wait)
    for host in hosts:
        atexit.register(host.close)  # before the wait
    return hosts


class _Host:
    """The way to a process that holds modules."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._answers = own.makefile("r")

    def run(
        self, arguments: list[str], env: dict[str, str], cwd: str, timeout: float | None
    ) -> subprocess.CompletedProcess[str]:
        pipes = [os.pipe(), os.pipe()]
        asked = json.dumps({"arguments": arguments, "env": env, "cwd": cwd}).encode() + b"\n"
        ends = array.array("i", [write for _, write in pipes])
        self._socket.sendmsg([asked[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ends)])
        self._socket.sendall(asked[1:])
        for _, write in pipes:
            os.close(write)
        pid = json.loads(self._answers.readline())
        said: list[str] = ["", ""]
        readers = [
            threading.Thread(target=_read, args=(read, said, number), daemon=True)
            for number, (read, _) in enumerate(pipes)
        ]
        late = threading.Timer(timeout, os.kill, (pid, 9)) if timeout is not None else None
        if late is not None:
            late.start()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        code = json.loads(self._answers.readline())
        if late is not None and late.finished.is_set() and code == -9:
            raise subprocess.TimeoutExpired(arguments, timeout or 0.0, said[0], said[1])
        if late is not None:
            late.cancel()
            late.join()  # tests count threads
        return subprocess.CompletedProcess([sys.executable, *arguments], code, *said)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


_hosts: list[_Host] = []


def _read(descriptor: int, said: list[str], number: int) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        said[number] = file.read()


def _serve(plain: int, with_trainer: int) -> dict[str, Any]:
    """Returns in each fork, with what it is to run."""
    import gc
    import importlib

    import torch
    import torch._dynamo  # what the first optimizer of a script loads: another second

    is_trainer = os.fork() == 0
    descriptor, others = (with_trainer, plain) if is_trainer else (plain, with_trainer)
    os.close(others)
    with socket.socket(fileno=descriptor) as connection:
        while True:
            begun, ends, _, _ = socket.recv_fds(connection, 1, 2)
            if not begun:
                sys.exit()
            line = begun
            while not line.endswith(b"\n"):
                line += connection.recv(1 << 16)
            for name in TRAINER if is_trainer else ():
                importlib.import_module(name)
            gc.freeze()  # a fork that collects, as each does at its end, would copy every page
            pid = os.fork()
            if pid == 0:
                for number, end in enumerate(ends, 1):
                    os.dup2(end, number)
                    os.close(end)
                if not is_trainer:
                    _import_again(torch)
                return {**json.loads(line), "trainer": is_trainer}
            for end in ends:
                os.close(end)
            connection.sendall(f"{pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _import_again(module: Any) -> None:
    """The next import finds it as if for the first time, and has it at once."""
    import importlib.util

    class Loader:
        """Loads nothing."""

        def create_module(self, spec: Any) -> Any:
            return module

        def exec_module(self, loaded: Any) -> None:
            sys.meta_path.remove(held)
            loaded.__spec__ = own

    class Held:
        """Finds one module."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name != module.__name__:
                return None
            spec = importlib.util.spec_from_loader(name, Loader(), origin=module.__file__)
            assert spec is not None
            spec.submodule_search_locations = list(module.__path__)
            spec.has_location = True
            return spec

    own: Any = module.__spec__
    held: Any = Held()
    del sys.modules[module.__name__]
    sys.meta_path.insert(0, held)


def _become(asked: dict[str, Any]) -> None:
    """Runs the script as `python SCRIPT ...` does, and ends."""
    script, *_ = arguments = asked["arguments"]
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = arguments
    sys.orig_argv = [sys.executable, *arguments]
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    behind = [each for each in sys.path if each != own]
    before = [each for each in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [*before, *behind]
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        pass
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))  # noqa: PTH120
    script = os.path.abspath(script)  # noqa: PTH100
    main = type(sys)("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    try:
        exec(code, main.__dict__)
    except SystemExit as ended:
        if not asked["trainer"] or isinstance(ended.code, str):
            raise
        _end(int(ended.code or 0))
    except Exception as error:  # noqa: BLE001 - whatever the script raised
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        _end(1)
    _end(0)


def _end(code: int) -> None:
    """Ends as Python does, but leaves torch as it lies: to take it apart copies its pages, half a second of CPU."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()  # closes the script's files, ends its loaders
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _become(_serve(*map(int, sys.argv[1:])))
