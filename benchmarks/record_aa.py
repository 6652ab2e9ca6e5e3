"""Record the same small training again and again, each time in a fresh process.

    python benchmarks/record_aa.py tests/golden/aa_runs.json.gz

Two sets, 80 runs with 2 threads and 48 with 1; 120 steps each of the GPT in `record_parity.py`;
about 10 minutes. Nothing differs between the runs of a set, so every difference that the judge sees
between them is noise: whatever else the machine did meanwhile is part of the recording.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

SETS = {"two_threads": (2, 80), "one_thread": (1, 48)}
"""Name -> (threads, runs)."""
STEPS = 120


def child(threads: int) -> None:
    """One training; prints its step times in microseconds as JSON."""
    from record_parity import Variant, train

    _, seconds = train(Variant(threads=threads), 0, steps=STEPS)
    print(json.dumps([round(1e6 * s) for s in seconds]))


def record(threads: int, runs: int) -> list[dict[str, object]]:
    """`runs` fresh processes, one after the other."""
    found: list[dict[str, object]] = []
    for number in range(runs):
        load, start = os.getloadavg()[0], time.time()
        output = subprocess.run(
            [sys.executable, __file__, "--child", str(threads)],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        ).stdout
        found.append(
            {
                "started_at": round(start, 2),
                "process_s": round(time.time() - start, 2),
                "load_average": round(load, 2),
                "step_us": json.loads(output),
            }
        )
        print(f"{threads} threads, run {number + 1} of {runs}", file=sys.stderr)
    return found


def cpu_model() -> str | None:
    """The model name in /proc/cpuinfo, where there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--child", type=int, metavar="THREADS")
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    if given.file is None:
        parser.error("name the file to write")
    from importlib.metadata import version

    document = {
        "schema": "hotloop.golden.aa_runs/1",
        "command": "python benchmarks/record_aa.py tests/golden/aa_runs.json.gz",
        "machine": {
            "cpu": cpu_model(),
            "cpus": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": version("torch"),
        },
        "sets": {name: record(threads, runs) for name, (threads, runs) in SETS.items()},
    }
    content = json.dumps(document, separators=(",", ":")).encode()
    given.file.write_bytes(gzip.compress(content, 9, mtime=0))


if __name__ == "__main__":
    main()
