"""`hotloop ARGUMENTS` that sends itself a signal, or is held up, at a chosen moment.

`argv[1]` is JSON: `arguments`, and `at`: what is called when it happens ("data", "update", "eval", "file", "compile"), for
the `nth` time. Then `signals` are sent to this process, and it is held up for `python_s` (where handlers run) or `c_s`
seconds (where none does, as in a compiler), `pdb_s` in a debugger, or
`stopped_s` by SIGSTOP.
`save_s` makes each save that slow, and `eval_s` each batch of an evaluation.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pdb
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from hotloop.checkpoint import store
from hotloop.cli.main import run
from hotloop.train import loop, text_work
from hotloop.train import run as run_module


def held_up_in_c(seconds: float, meanwhile: Callable[[], None]) -> None:
    """Other threads run in that time, handlers of signals do not; `meanwhile` is called by one."""
    began = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
    per_s = 100_000 / (time.thread_time() - began)
    threading.Timer(0.5, meanwhile).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", min(int(seconds * per_s), 2**31 - 1))


def planted(job: dict[str, Any]) -> None:
    seen = 0

    def send() -> None:
        if "tells" in job:  # whoever kills this process after its window
            os.write(job["tells"], b"sent")
        for name in job.get("signals", ()):
            os.kill(os.getpid(), getattr(signal, name))

    def now() -> None:
        nonlocal seen
        seen += 1
        if seen == job["nth"]:
            if job.get("in_callback"):  # what is raised there is shown and forgotten
                watched = threading.Event()
                hold = weakref.ref(watched, lambda _: send())
                del watched
                assert hold() is None
            elif "c_s" in job:
                held_up_in_c(job["c_s"], send)
            else:
                send()
            if job.get("ends_child"):
                child = os.fork()
                if not child:
                    time.sleep(0.3)
                    os._exit(0)
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
            if "stopped_s" in job:
                later = f"sleep {job['stopped_s']}; kill -CONT {os.getpid()}"
                with subprocess.Popen(["sh", "-c", later]):
                    os.kill(os.getpid(), signal.SIGSTOP)
            if "pdb_s" in job:
                reads, writes = os.pipe()
                threading.Timer(job["pdb_s"], os.write, (writes, b"continue\n")).start()
                with open(reads) as commands:
                    pdb.Pdb(stdin=commands, stdout=io.StringIO(), nosigint=True).set_trace()
            until = time.monotonic() + job.get("python_s", 0)
            while time.monotonic() < until:
                time.sleep(0.01)

    def before(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def called(*args: Any, **named: Any) -> Any:
            now()
            return real(*args, **named)

        setattr(module, name, called)

    if job["at"] == "compile":

        def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
            now()
            return graph.forward

        run_module.compile_model = lambda model, how: model.compile(dynamic=False, backend=backend)
    else:
        places = {
            "data": (text_work, "read_step"),
            "update": (loop, "update"),
            "eval": (text_work, "to_device"),
            "file": (store, "_flushed"),
        }
        before(*places[job["at"]])
    if "eval_s" in job:
        to_device = text_work.to_device

        def slowly(*args: Any, **named: Any) -> Any:
            time.sleep(job["eval_s"])
            return to_device(*args, **named)

        text_work.to_device = slowly
    if "save_s" in job:
        real = store.save

        def slow(*args: Any, **named: Any) -> Any:
            time.sleep(job["save_s"])
            return real(*args, **named)

        store.save = slow


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    planted(given)
    sys.exit(run(given["arguments"]))
