"""A process in which hotloop is loaded already. Each line of its stdin names a command to run in a fork of it.

A fork costs milliseconds where a fresh `hotloop` costs seconds, and how it ends, by a signal too, is seen.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

MODULES = (
    "torch",
    "torch.nn.attention",
    "hotloop.runs.stored_run",
    "hotloop.train.start",
    "hotloop.train.trained",
    "hotloop.train.early",
    "hotloop.models.export",
    "hotloop.monitor.screen",
    "hotloop.report.html",
    "hotloop.doctor.fix_campaign",
    "hotloop.data.prepared",
    *(f"hotloop.cli.{name}" for name in ("train", "generate", "export", "report", "monitor")),
    *(f"hotloop.cli.{name}" for name in ("prepare", "doctor", "main")),
)
"""Loaded before the first fork; what a command loads beyond these is reported, and loaded as well."""
LIMIT_BYTES = 6 << 30
"""Of addresses: a command that asks for more is refused, and the machine is spared."""


def run_command(asked: dict[str, Any]) -> None:
    """In the fork: never returns."""
    os.setsid()
    with open(asked["output"], "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with open(os.devnull, "rb") as file:
        os.dup2(file.fileno(), 0)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(asked["directory"])
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["hotloop", *asked["arguments"]]
    code: Any = 70
    try:
        from hotloop.cli.main import main

        main()
    except SystemExit as ended:
        code = ended.code
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        if "modules" in asked:
            with open(asked["modules"], "w") as file:
                json.dump(sorted(sys.modules), file)
        os._exit(int(code or 0))


def answered(asked: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        run_command(asked)
    ended = os.pidfd_open(pid)
    in_time, _, _ = select.select([ended], [], [], asked["limit_s"])
    os.close(ended)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # also what it started
    if not in_time:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {
        "code": code if in_time else None,
        "seconds": time.monotonic() - began,
        "peak_bytes": used.ru_maxrss * 1024,
    }


def load(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules and not name.startswith("__"):
            with suppress(Exception):
                importlib.import_module(name)


def serve() -> None:
    for name in MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        gc.freeze()  # a fork that collects would copy every page
        asked = json.loads(line)
        answer = answered(asked)
        if "modules" in asked and os.path.exists(asked["modules"]):
            with open(asked["modules"]) as file:
                load(json.load(file))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
