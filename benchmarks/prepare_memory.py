"""The most memory that `hotloop prepare` takes, over all its processes.

    python benchmarks/prepare_memory.py SOURCE... [--tokenizer train:8192] [--engine auto] [--workers N]

Resident memory of the whole process tree, added up every 50 ms: pages that processes share are counted in
each of them, so the truth is no more than this. Exits with 1 at 1 GB and above.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time

import psutil

LIMIT_BYTES = 1_000_000_000


def peak_of(command: list[str]) -> tuple[int, int]:
    """Runs a command; the most bytes that it and its children held at once, and its exit code."""
    process = subprocess.Popen(command)
    root = psutil.Process(process.pid)
    peak = 0
    while process.poll() is None:
        held = 0
        try:
            for one in [root, *root.children(recursive=True)]:
                held += one.memory_info().rss
        except psutil.NoSuchProcess:
            pass
        peak = max(peak, held)
        time.sleep(0.05)
    return peak, process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--tokenizer", default="train:8192")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "hotloop", "prepare", *given.sources]
        command += ["--out", f"{directory}/out", "--tokenizer", given.tokenizer]
        command += ["--engine", given.engine]
        if given.workers is not None:
            command += ["--workers", str(given.workers)]
        peak, code = peak_of(command)
    print(f"peak {peak / 1e6:,.0f} MB")
    sys.exit(code or int(peak >= LIMIT_BYTES))


if __name__ == "__main__":
    main()
