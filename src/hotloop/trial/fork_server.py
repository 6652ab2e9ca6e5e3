"""A process that has imported what a script imports, and is forked for each trial of it.

Runs in the script's own interpreter, as a program: standard library alone. It says on its socket whether it is
ready, or why forks of it would not be what fresh processes are; then each request is answered with a process id and,
once that process has ended, with its exit code.

In a fork the modules are there, as `multiprocessing`'s fork server preloads them; everything else is as in a fresh
process: variables, arguments, `sys.path`, `__main__`, random numbers, the sandbox. What forks share, and fresh
processes draw anew: the seed of hashes, and where libraries and small objects lie in memory.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import runpy
import socket
import sys
import sysconfig
import tempfile
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

from hotloop.probe.imports import source_file
from hotloop.trial.bootstrap import sitecustomize
from hotloop.trial.sandbox.launcher import FAILED, enter_sandbox
from hotloop.trial.watchdog import TRIAL

RESTARTS_ITS_THREADS = frozenset({"numpy", "scipy", "pyarrow"})
"""Packages whose import starts threads, which they start again in a fork: OpenBLAS and Arrow."""


_MAIN = frozenset({"__main__", "__mp_main__"})
_NOT_IMPORTED = _MAIN | {"sitecustomize", "usercustomize"}
"""Modules that no script's import brings."""


class NotSound(Exception):
    """Forks of this process would differ from fresh processes."""


def serve(connection: socket.socket, preload: dict[str, str], command: list[str]) -> None:
    """Answer requests until the other end closes. Returns in no fork."""
    try:
        place = _TokenPlace()
        _preload(preload, command)
    except NotSound as why:
        _answer(connection, {"refused": str(why)})
        return
    _answer(connection, {"ready": len(preload)})
    while (request := _receive(connection)) is not None:
        with warnings.catch_warnings(action="ignore"):  # of threads that are known to start again
            process = os.fork()
        if process == 0:
            connection.close()
            _begin(request, place)
        for descriptor in request["descriptors"]:
            os.close(descriptor)
        _answer(connection, process)
        _answer(connection, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def _preload(modules: dict[str, str], command: list[str]) -> None:
    """Import these, as name -> file, with the `sys.path` that `command` has. Raises `NotSound`."""
    sys.path[0] = _first_of_path(command)
    for name in modules:
        threads, known = _num_threads(), RESTARTS_ITS_THREADS & sys.modules.keys()
        try:
            importlib.import_module(name)
        except ImportError:  # the script gets it in its own way
            continue
        except Exception as error:
            raise NotSound(f"{name} cannot be imported alone: {error!r}") from error
        by = {name.partition(".")[0]} | (sys.modules.keys() - known)
        if _num_threads() > threads and not RESTARTS_ITS_THREADS & by:
            raise NotSound(f"importing {name} starts threads")
    _refuse_other_modules(modules)
    if threading.active_count() > 1:
        raise NotSound("an import starts threads")
    if Path(f"/proc/self/task/{os.getpid()}/children").read_text().strip():
        raise NotSound("an import starts processes")
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        raise NotSound("an import reaches for a GPU")
    if "torch" not in sys.modules:
        raise NotSound("torch is not among what can be imported before the script begins")


def _refuse_other_modules(modules: dict[str, str]) -> None:
    """Raises `NotSound` where another file was imported than in the script's process, or one of the user's."""
    library = [Path(sysconfig.get_path(each)).resolve() for each in ("stdlib", "platstdlib")]
    for name, module in list(sys.modules.items()):
        file = source_file(module)
        if file is None or name in _NOT_IMPORTED:
            continue
        if name.partition(".")[0] == "hotloop" or modules.get(name) == file:
            continue
        path = Path(file).resolve()
        if {"site-packages", "dist-packages"} & {*path.parts} or not any(
            path.is_relative_to(each) for each in library
        ):
            raise NotSound(f"{name} would be imported from {file}")


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


class _TokenPlace:
    """Where the kernel keeps the token by which processes of a trial are found in /proc/*/environ."""

    def __init__(self) -> None:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start = int(fields[47])  # env_start of proc(5)
        held = Path("/proc/self/environ").read_bytes()
        line = os.fsencode(f"{TRIAL}={os.environ[TRIAL]}")
        if not start or line not in held:
            raise NotSound("the kernel does not tell where a process's environment lies")
        self._end = start + held.index(line) + len(line)

    def fill(self, token: str) -> None:
        """Write the last part of the token, of the same length as what is there."""
        ctypes.memmove(self._end - len(token), token.encode(), len(token))


def _begin(request: dict[str, Any], place: _TokenPlace) -> None:
    """Become the process of a trial; never returns."""
    code = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(request["descriptors"], 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        place.fill(request["env"][TRIAL].rpartition(":")[2])
        os.chdir(request["cwd"])
        if request["sandbox"] is not None:
            failure = enter_sandbox(request["sandbox"])
            if failure is None:
                os._exit(FAILED)
            failure.close()
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = None
        _draw_anew()
        code = _run(request["command"])
    except BaseException:  # noqa: BLE001 - before the script began
        traceback.print_exc()
    finally:
        _end(code)


def _draw_anew() -> None:
    """Random numbers of its own, as a fresh process has; Python's generator does so by itself."""
    sys.modules["torch"].default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _run(command: list[str]) -> int:
    """Run the script or module as `python COMMAND` does; returns its exit code."""
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    behind = [each for each in sys.path[1:] if each not in _GIVEN_PATH and each not in own]
    sys.path[:] = [_first_of_path(command), *(each for each in own if _is_seen(each)), *behind]
    sys.orig_argv = [sys.orig_argv[0], *command]
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=__builtins__, __cached__=None)
    for name in _MAIN & sys.modules.keys():
        sys.modules[name] = main
    sitecustomize.start_probes()
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
        else:
            sys.argv = command
            path = str(Path(command[0]).absolute())
            main.__dict__["__file__"] = path
            # Not with the annotations of this module, which are strings.
            code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
            exec(code, main.__dict__)
    except SystemExit as ended:
        return _exit_code(ended)
    except BaseException as error:  # noqa: BLE001 - shown as Python shows it
        theirs = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(theirs), theirs)
        return 1
    return 0


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _end(code: int) -> None:
    """As Python ends; but modules are left as they lie, since taking them apart would copy their memory."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def _first_of_path(command: list[str]) -> str:
    """What Python puts at the head of `sys.path`."""
    if command[0] == "-m":
        return str(Path.cwd())
    return str(Path(command[0]).resolve().parent)


def _is_seen(directory: str) -> bool:
    """Whether a script finds it in `sys.path`: what starts the probes takes its own away."""
    return bool(directory) and Path(directory).resolve() != _BOOTSTRAP


_BOOTSTRAP = Path(sitecustomize.__file__).resolve().parent
_GIVEN_PATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)
"""Of this process: that of each fork has other directories."""


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next request, with the descriptors that came with it; `None` where the other end has closed, be it within one."""
    line, descriptors, _, _ = socket.recv_fds(connection, 1, 2)
    more = line
    while more and not line.endswith(b"\n"):
        more = connection.recv(1 << 16)
        line += more
    if not more:
        return None
    return {**json.loads(line), "descriptors": descriptors}


def _answer(connection: socket.socket, answer: object) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def main() -> None:
    """argv: the descriptor of the socket, a file with what to preload, then script and arguments."""
    preload = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    try:
        serve(socket.socket(fileno=int(sys.argv[1])), preload, sys.argv[3:])
    finally:
        os._exit(0)  # whoever started it knows all there is


if __name__ == "__main__":
    main()
