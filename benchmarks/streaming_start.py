"""How long it takes from the start of `hotloop train` to its first step, on text that nobody has prepared.

    python benchmarks/streaming_start.py CORPUS [--tokenizer train:8192] [--config configs/tiny.yaml]
        [--rounds 3] [--set key=value ...] [--out results.json]

Every round is a new process with an empty cache and trains with `data.stream: true` until the first step is
recorded; then it is ended. The time is that of the wall clock from before the process was started, imports
included. Nothing else is run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_S = 0.02
PATIENCE_S = 3600.0


@dataclass(frozen=True)
class Round:
    """Seconds since the start of the process."""

    planned_s: float
    """Until the plan of the preparation was there: sources listed, tokenizer loaded or trained."""
    first_job_s: float | None
    """Until the first job of the preparation was seen finished; `None` where all were at once."""
    first_step_s: float
    """Until the first step was recorded."""


def measure(corpus: Path, tokenizer: str, config: Path, overrides: list[str]) -> Round:
    with tempfile.TemporaryDirectory(prefix="hotloop-start-") as directory:
        work = Path(directory)
        command = [sys.executable, "-m", "hotloop", "train", str(config), f"data.source={corpus}"]
        command += [f"data.tokenizer={tokenizer}", "data.stream=true", "train.steps=1000000"]
        command += ["eval.every_steps=0", "checkpoint.every_steps=0", *overrides]
        environment = {**os.environ, "HOTLOOP_CACHE": str(work / "cache")}
        seen: dict[str, float] = {}
        with (work / "said.txt").open("w+b") as said:
            started = time.perf_counter()
            process = subprocess.Popen(
                [*command, "--out", str(work / "run")],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            try:
                while "first_step" not in seen:
                    now = time.perf_counter() - started
                    for name, pattern in (
                        ("planned", "cache/prepared/*/.hotloop-preparing/plan.json"),
                        ("planned", "cache/prepared/*/manifest.json"),
                        ("first_job", "cache/prepared/*/.hotloop-preparing/job-*.json"),
                        ("first_step", "run/steps.jsonl"),
                    ):
                        if name not in seen and any(p.stat().st_size for p in work.glob(pattern)):
                            seen[name] = now
                    if process.poll() is not None and "first_step" not in seen:
                        said.seek(0)
                        raise SystemExit(f"it ended without a step:\n{said.read().decode()}")
                    if now > PATIENCE_S:
                        raise SystemExit(f"no step after {PATIENCE_S:g} s")
                    time.sleep(POLL_S)
            finally:
                process.terminate()  # which ends the preparation as well
                process.wait()
    return Round(seen["planned"], seen.get("first_job"), seen["first_step"])


def size_of(corpus: Path) -> int:
    files = corpus.rglob("*") if corpus.is_dir() else [corpus]
    return sum(path.stat().st_size for path in files if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tokenizer", default="train:8192")
    parser.add_argument("--config", type=Path, default=Path("configs/tiny.yaml"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rounds = []
    for number in range(given.rounds):
        rounds.append(measure(given.corpus, given.tokenizer, given.config, given.set))
        print(f"round {number + 1}: {asdict(rounds[-1])}", flush=True)
    found = {
        "corpus_bytes": size_of(given.corpus),
        "tokenizer": given.tokenizer,
        "config": str(given.config),
        "overrides": given.set,
        "rounds": [asdict(each) for each in rounds],
        "first_step_s": statistics.median(each.first_step_s for each in rounds),
    }
    print(
        f"{found['corpus_bytes'] / 1e6:,.0f} MB, tokenizer {given.tokenizer}: first step after "
        f"{found['first_step_s']:.1f} s (median of {given.rounds})"
    )
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
