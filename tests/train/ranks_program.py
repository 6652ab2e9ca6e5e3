"""Several `hotloop` commands one after the other on two ranks, each a run of its own.

One start of Python and torch serves them all: the ranks are forks, with the environment that torchrun gives.
`argv[1]` is a JSON list of `{"arguments", ...}`; the exit codes of a rank go to `codes-RANK.json` beside it, and
what each said to `said-N-RANK.txt`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.repro.after_aot  # what compiled steps load: once, before the forks
from torch import distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from hotloop.checkpoint.background import Saver
from hotloop.cli.main import run
from hotloop.data.loader import Batch, Loader
from hotloop.train import group, loop
from hotloop.train import run as run_module

NUM_RANKS = 2


@contextlib.contextmanager
def planted(job: dict[str, Any], rank: int) -> Iterator[None]:
    """The sickness of a job, on the rank that has it."""
    real_batch, real_update, real_compile = Loader.batch, loop.update, run_module.compile_model
    real_expected_s = Saver.expected_s
    updates = reads = 0

    def slow(self: Loader, position: int, num_sequences: int) -> Batch:
        time.sleep(job["slow_s"])
        return real_batch(self, position, num_sequences)

    def hangs(self: Loader, position: int, num_sequences: int) -> Batch:
        nonlocal reads
        reads += 1
        if reads > job["hangs_after"]:
            time.sleep(600)
        return real_batch(self, position, num_sequences)

    def dies(*args: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates > job["dies_after"]:
            raise RuntimeError("planted")
        return real_update(*args)

    def told(*args: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == job["told_after"]:
            signal.raise_signal(signal.SIGTERM)
        return real_update(*args)

    def drifts(running: Any, *args: Any) -> Any:
        late = real_update(running, *args)
        with torch.no_grad():
            next(running.model.parameters()).view(-1)[0] += 1e-6
        return late

    first_bucket = dist._DEFAULT_FIRST_BUCKET_BYTES  # the compiler takes it from there
    if "bucket_mb" in job:  # so that even this small model has several
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(job["bucket_mb"] * 2**20)
        group.DistributedDataParallel = partial(
            DistributedDataParallel, bucket_cap_mb=job["bucket_mb"]
        )
    if job.get("sick_rank") == rank and job.get("drifts"):
        loop.update = drifts
    if job.get("sick_rank") == rank and "slow_s" in job:
        Loader.batch = slow  # type: ignore[method-assign]
    if job.get("sick_rank") == rank and "hangs_after" in job:
        Loader.batch = hangs  # type: ignore[method-assign]
    if job.get("sick_rank") == rank and "dies_after" in job:
        loop.update = dies
    if job.get("sick_rank") == rank and "told_after" in job:
        loop.update = told
    if "save_takes_s" in job:
        Saver.expected_s = lambda *_: job["save_takes_s"]  # type: ignore[method-assign]
    if "backend" in job:  # the whole way through the compiler but for its slow last part
        run_module.compile_model = partial(real_compile, backend=job["backend"])
    try:
        yield
    finally:
        Loader.batch, loop.update = real_batch, real_update  # type: ignore[method-assign]
        run_module.compile_model = real_compile
        Saver.expected_s = real_expected_s  # type: ignore[method-assign]
        group.DistributedDataParallel = DistributedDataParallel
        dist._DEFAULT_FIRST_BUCKET_BYTES = first_bucket


def work(jobs: list[dict[str, Any]], rank: int, beside: Path) -> None:
    """What one rank does, in a process of its own."""
    codes = []
    for number, job in enumerate(jobs):
        if dist.is_initialized():  # left by one that failed, as processes do when they end
            dist.destroy_process_group()
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # a fresh page of the store
        said = io.StringIO()
        with planted(job, rank), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            own = job.get("settings_of_rank_1", ()) if rank == 1 else ()
            codes.append(int(run([*job["arguments"], *own])))
        if "backend" in job:
            said.write(f"graphs below the buckets: {counters['aot_autograd']['ok']}\n")
        (beside / f"said-{number}-{rank}.txt").write_text(said.getvalue())
        (beside / f"codes-{rank}.json").write_text(json.dumps(codes))


def begin(jobs: list[dict[str, Any]], rank: int, port: int, beside: Path) -> int:
    """Forks a rank; returns its process id."""
    if pid := os.fork():
        return pid
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.update(WORLD_SIZE=str(NUM_RANKS), LOCAL_WORLD_SIZE=str(NUM_RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    code = 1
    try:
        work(jobs, rank, beside)
        code = 0
    except BaseException:  # noqa: BLE001 - printed as Python does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(code)  # without taking torch apart


def main(file: Path) -> None:
    jobs = json.loads(file.read_text())
    with socket.create_server(("127.0.0.1", 0)) as server:
        gc.freeze()  # a fork that collects would copy every page
        ranks = [
            begin(jobs, rank, server.getsockname()[1], file.parent) for rank in range(NUM_RANKS)
        ]
        # After the forks, which would not have its thread.
        store = dist.TCPStore("127.0.0.1", server.getsockname()[1], is_master=True,
                              wait_for_workers=False, master_listen_fd=server.detach())  # fmt: skip
    ended = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    (file.parent / "ended.json").write_text(json.dumps(ended))
    del store
    sys.exit(any(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
