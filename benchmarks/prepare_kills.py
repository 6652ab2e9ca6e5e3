"""Kill `prepare` at random instants, run it again, and compare every byte with an undisturbed run.

    python benchmarks/prepare_kills.py [--kills 100] [--seed 0] [--out results.json]

Each trial kills (SIGKILL) the parent alone, the parent and its workers, or one worker, at a random
instant of the whole run; half of the trials kill the second try as well. Then it is run to its end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

PROGRAM = """
import sys
from pathlib import Path
from hotloop.data.prepare import Spec, prepare_text
source, out, engine, tokenizer = sys.argv[1:]
spec = Spec((source,), tokenizer, job_bytes=200_000, validation_fraction=0.05)
done = prepare_text(spec, Path(out), engine=engine, workers=2)
print(done.encoding.jobs if done.encoding else 0)
"""


@dataclass(frozen=True)
class Trial:
    victims: str
    killed_after_s: tuple[float, ...]
    was_running: int
    """How many of the kills came before the run's end."""
    jobs_kept: int
    """Finished before the last run, which did the others."""
    identical: bool


def write_corpus(root: Path, files: int = 150) -> Path:
    """About 2.5 MB of different text."""
    root.mkdir(parents=True)
    generator = random.Random(7)
    words = [
        "".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in range(4000)
    ]
    for number in range(files):
        text = " ".join(generator.choices(words, k=2500))
        (root / f"{number:04d}.txt").write_text(f"{number}\n{text}\n世界 🎉 é\n")
    return root


def start(source: Path, out: Path, engine: str, tokenizer: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(source), str(out), engine, tokenizer],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill(process: subprocess.Popen[str], victims: str, generator: random.Random) -> bool:
    """Whether anything was still running."""
    if process.poll() is not None:
        process.communicate()
        return False
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    if victims == "worker" and children:
        targets = [generator.choice(children).pid]
    elif victims == "all":
        targets = [process.pid, *(child.pid for child in children)]
    else:
        targets = [process.pid]
    for pid in targets:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate(timeout=60)
    return True


def digests(out: Path) -> dict[str, str]:
    """Of every file, hidden ones too."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def trial(
    number: int, source: Path, work: Path, wanted: dict[str, str], takes: float, options: list[str]
) -> Trial:
    generator = random.Random(number)
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    victims = generator.choice(["parent", "all", "worker"])
    instants: list[float] = []
    running = 0
    for _ in range(generator.choice([1, 2])):
        instants.append(generator.uniform(0.0, takes))
        process = start(source, out, *options)
        time.sleep(instants[-1])
        running += kill(process, victims, generator)
    process = start(source, out, *options)
    said, errors = process.communicate(timeout=300)
    if process.returncode != 0:
        raise SystemExit(f"trial {number} did not finish: {errors}")
    total = len(json.loads((out / "manifest.json").read_text())["jobs"])
    return Trial(victims, tuple(instants), running, total - int(said), digests(out) == wanted)


def run(kills: int, seed: int, engine: str, tokenizer: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        source = write_corpus(work / "corpus")
        options = [engine, tokenizer]
        started = time.monotonic()
        process = start(source, work / "out", *options)
        _, errors = process.communicate(timeout=300)
        takes = time.monotonic() - started
        if process.returncode != 0:
            raise SystemExit(errors)
        wanted = digests(work / "out")
        trials = [
            trial(seed + number, source, work, wanted, takes, options) for number in range(kills)
        ]
    return {
        "trials": [asdict(entry) for entry in trials],
        "kills": sum(len(entry.killed_after_s) for entry in trials),
        "hit_a_running_one": sum(entry.was_running for entry in trials),
        "identical": sum(entry.identical for entry in trials),
        "undisturbed_s": takes,
        "files": len(wanted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--tokenizer", default="train:600")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = run(asked.kills, asked.seed, asked.engine, asked.tokenizer)
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    trials = found["trials"]
    assert isinstance(trials, list)
    print(
        f"{found['identical']} of {len(trials)} trials byte-identical; {found['kills']} kills, "
        f"{found['hit_a_running_one']} of them before the end of a run of {found['undisturbed_s']:.1f} s"
    )
    raise SystemExit(0 if found["identical"] == len(trials) else 1)


if __name__ == "__main__":
    main()
