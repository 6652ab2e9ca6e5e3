"""What uploading costs the steps beside it, and how fast it goes, against a local S3 server in a process of its own.

    .venv/bin/python benchmarks/upload_cost.py [--megabytes 256] [--seconds 20]

Steps are products of matrices on one thread, timed one by one: first alone, then while checkpoints of random fp32 tensors (which
zstd leaves alone) are uploaded one after another by `checkpoint/upload.py`. Prints medians as JSON. The server is moto's, which computes
checksums in Python and takes a CPU of its own: on two CPUs it is in the way of the steps more than a network is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from hotloop.checkpoint import store
from hotloop.checkpoint.state import FILES
from hotloop.checkpoint.upload import Uploader
from hotloop.core.config import CheckpointConfig

SERVER = "from moto.server import main; import sys; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


def steps(seconds: float, busy: Uploader | None = None) -> list[float]:
    """Seconds of each step for so long, or for as long as something is uploaded."""
    x = torch.randn(512, 512)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end if busy is None else busy._running:
        began = time.perf_counter()
        for _ in range(8):
            x = torch.tanh(x @ x)
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=quiet, stderr=quiet)
    scratch = Path(tempfile.mkdtemp())
    try:
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        import s3fs

        for _ in range(100):
            try:
                s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
                break
            except Exception:  # noqa: BLE001 - it is starting
                time.sleep(0.2)
        config = CheckpointConfig(upload="s3://bucket/runs")
        count = options.megabytes * 1_000_000 // 4 // len(FILES)
        tensors = {name: {"w": torch.randn(count)} for name in FILES}
        saved = store.save(scratch / "run" / "checkpoints", 1, tensors=tensors, state={}, keep=2)
        uploader = Uploader(config, "run", print)
        steps(2.0)
        alone = steps(options.seconds)
        began = time.perf_counter()
        uploader.take(saved.path, {})
        beside = steps(0.0, uploader)
        took = time.perf_counter() - began
        uploader.finish()
        assert uploader.problem is None, uploader.problem
        found = {
            "megabytes": options.megabytes,
            "upload_s": round(took, 2),
            "mb_per_s": round(options.megabytes / took, 1),
            "step_ms_alone": round(1e3 * statistics.median(alone), 3),
            "step_ms_beside": round(1e3 * statistics.median(beside), 3),
            "slower": round(statistics.median(beside) / statistics.median(alone), 3),
        }
        print(json.dumps(found))
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
