"""The process that runs datatrove's executor: `python -m hotloop.data.cluster.launch ROUND`.

A process of its own, so that its log goes to a file and it can be ended with all that it started. Its
standard input is open as long as its coordinator lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hotloop.core.errors import EnvironmentFailed, HotloopError
from hotloop.core.files import read_json, write_json
from hotloop.data.cluster import ClusterRequest, executor_class
from hotloop.data.cluster.round import Round
from hotloop.data.staging import SUBMISSION

_REQUEST = "request.json"
_ENDING_S = 3.0
_GIB = 1 << 30


@contextmanager
def launched(round_: Round, request: ClusterRequest) -> Iterator[subprocess.Popen[bytes]]:
    """The executor's process. It is ended with the block, and all it started here. Raises `EnvironmentFailed`."""
    write_json(round_.path / _REQUEST, request)
    command = [sys.executable, "-m", "hotloop.data.cluster.launch", str(round_.path)]
    with (round_.path / "logs" / "executor.log").open("wb") as log:
        try:
            # A session of its own: Ctrl-C is for the coordinator, which ends the rest.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closed by our end, however that comes
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentFailed(f"cannot start a process: {error.strerror}") from error
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # Ray then leaves its cluster in order
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_S)
            with suppress(ProcessLookupError, PermissionError):  # nothing is left of it
                os.killpg(process.pid, signal.SIGKILL)


def main(directory: str) -> int:
    threading.Thread(target=_end_with_coordinator, daemon=True).start()
    round_ = Round(Path(directory))
    try:
        _run(round_, read_json(round_.path / _REQUEST, ClusterRequest))
    except HotloopError as error:
        round_.fail("executor", error)
        return 1
    return 0


def _end_with_coordinator() -> None:
    """A killed parent would leave the processes that datatrove starts beside the ranks for ever."""
    while os.read(0, 1):
        pass
    assert os.getpgrp() == os.getpid()
    os.killpg(0, signal.SIGKILL)


def _run(round_: Round, request: ClusterRequest) -> None:
    from hotloop.data.cluster.rank import EncodeJobs

    arguments: dict[str, Any] = {
        **request.options,
        "pipeline": [EncodeJobs(str(round_.path))],
        "tasks": request.ranks,
        "logging_dir": str(round_.path / "logs"),
        "skip_completed": False,
    }
    if request.kind == "slurm":
        from hotloop.data.cluster.rank import SlurmExecutor

        executor = SlurmExecutor(**{"job_name": "hotloop-prepare", **arguments})
        try:
            executor.run()
        except (OSError, subprocess.CalledProcessError) as error:
            # What sbatch itself wrote is the end of our log.
            raise EnvironmentFailed(
                f"the jobs could not be submitted to Slurm: {error}", do=round_.log_tail() or None
            ) from error
        write_json(round_.path / SUBMISSION, {"jobs": executor.submitted})
        return
    if request.kind == "ray":
        _connect(request)
    executor_class(request.kind)(**arguments).run()


def _connect(request: ClusterRequest) -> None:
    """To the Ray cluster that is there; without one, to one of this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        ray.init(address="auto", log_to_driver=False)
        return
    except ConnectionError as error:
        address = os.environ.get("RAY_ADDRESS")
        if address:
            raise EnvironmentFailed(
                f"no Ray cluster answers: {error}",
                where=f"RAY_ADDRESS={address}",
                do="start it, or unset RAY_ADDRESS to use this machine alone",
            ) from error
    # Its object store holds nothing of ours.
    ray.init(
        address="local", log_to_driver=False, include_dashboard=False, object_store_memory=_GIB // 8
    )
    memory = int(request.cpus * float(request.options.get("mem_per_cpu_gb", 2)) * _GIB)
    has = ray.cluster_resources()
    if has.get("CPU", 0) < request.cpus or has.get("memory", 0) < memory:
        raise EnvironmentFailed(
            f"a rank asks for {request.cpus} CPUs and {memory / _GIB:.1f} GiB, and Ray has "
            f"{has.get('CPU', 0):.0f} and {has.get('memory', 0) / _GIB:.1f} here",
            do="give less by --on-option cpus_per_task=N and --on-option mem_per_cpu_gb=N",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
