"""Text to verified shards: ours, the engine alone, and `datasets.map` with the reference, in turns."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hotloop
from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.progress import Progress, silent
from hotloop.data.engines.engine import REFERENCE
from hotloop.data.manifest import TOKENIZER, read_manifest
from hotloop.data.prepare import prepare_text
from hotloop.data.sources import plan
from hotloop.hardware.limits import cpu_quota

MAP = "datasets.map"
OURS = "hotloop prepare"
FILES = "gigatoken, from files"


@dataclass(frozen=True, slots=True)
class Rounds:
    """One contestant."""

    name: str
    bytes: int
    """Bytes of text in each round."""
    seconds: tuple[float, ...]

    @property
    def bytes_per_s(self) -> float:
        """The median over rounds."""
        return self.bytes / statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class TokenizeBenchmark:
    """What was measured, and on what."""

    sources: tuple[str, ...]
    tokenizer: str
    cores: int
    engine: str
    bytes: int
    tokens: int
    contestants: tuple[Rounds, ...]
    """Ours first. `datasets.map` on part of the text, everything else on all of it."""
    identical_to_reference: bool | None
    """All shards, against those of the reference on the whole corpus; `None`: not asked for."""
    reference_bytes_per_s: float | None
    """Ours with the reference engine, from the same comparison."""
    schema: str = "hotloop.bench_tokenize/1"


def bench_tokenize(
    sources: Sequence[str],
    *,
    tokenizer: str,
    engine: str = "auto",
    cores: int | None = None,
    rounds: int = 3,
    map_megabytes: int = 40,
    check: bool = False,
    scratch: Path | None = None,
    progress: Progress = silent,
) -> TokenizeBenchmark:
    """Every round runs each contestant once, in processes of its own.

    Raises `UsageError` without the package `datasets`, and what `prepare` raises.
    """
    if find_spec("datasets") is None:
        raise UsageError(
            "the comparison with datasets.map needs the package `datasets`",
            do="pip install 'hotloop[hub]'",
        )
    cores = cores or max(int(cpu_quota()), 1)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="hotloop-bench-") as directory:
        work = Path(directory)
        trained = work / "first"
        progress("bench", 0, rounds + 1, "first preparation")
        first = prepare_text(
            sources, trained, tokenizer=tokenizer, engine=engine, workers=cores, progress=progress
        )
        assert first.encoding is not None
        chosen = first.encoding.engine
        given: dict[str, Any] = {
            "sources": list(sources),
            "tokenizer": str(trained / TOKENIZER),
            "cores": cores,
            "engine": chosen,
            "megabytes": map_megabytes,
            "scratch": directory,
            "out": str(work / "ours"),
        }
        alone = f"{chosen}, text in memory"
        times: dict[str, list[float]] = {OURS: [], alone: [], MAP: []}
        if chosen == "gigatoken" and _plain(sources):
            times = {OURS: [], alone: [], FILES: [], MAP: []}
        sizes: dict[str, int] = {}
        for number in range(rounds):
            progress("bench", number + 1, rounds + 1, f"round {number + 1} of {rounds}")
            shutil.rmtree(work / "ours", ignore_errors=True)
            said = _answer(_start("ours", {**given, "engine": engine}, cores))
            times[OURS].append(said["seconds"])
            sizes[OURS] = said["bytes"]
            shares = [
                _answer(child)
                for child in [_start("raw", {**given, "share": k}, 1) for k in range(cores)]
            ]
            # They work at the same time; each one's clock stands still while it reads.
            speed = sum(share["bytes"] / share["seconds"] for share in shares if share["bytes"])
            sizes[alone] = sum(share["bytes"] for share in shares)
            times[alone].append(sizes[alone] / speed)
            if FILES in times:
                said = _answer(_start("from_files", given, cores))
                times[FILES].append(said["seconds"])
                sizes[FILES] = said["bytes"]
            said = _answer(_start("datasets_map", given, 1))
            times[MAP].append(said["seconds"])
            sizes[MAP] = said["bytes"]
        identical, reference_speed = None, None
        if check:
            identical, reference_speed = _check(sources, trained, work, cores, progress)
    return TokenizeBenchmark(
        sources=tuple(sources),
        tokenizer=tokenizer,
        cores=cores,
        engine=chosen,
        bytes=first.manifest.source_bytes,
        tokens=first.manifest.tokens,
        contestants=tuple(Rounds(name, sizes[name], tuple(times[name])) for name in times),
        identical_to_reference=identical,
        reference_bytes_per_s=reference_speed,
    )


def _plain(sources: Sequence[str]) -> bool:
    """True if gigatoken reads these sources itself as we do: uncompressed files of text."""
    return all(
        unit.compression is None and unit.format in ("text", "tree-text", "python")
        for unit in plan(sources).units
    )


def _check(
    sources: Sequence[str], trained: Path, work: Path, cores: int, progress: Progress
) -> tuple[bool, float]:
    """True if the reference makes the same shards of the whole corpus; and its bytes per second."""
    done = prepare_text(
        sources,
        work / "reference",
        tokenizer=str(trained / TOKENIZER),
        engine=REFERENCE,
        workers=cores,
        progress=progress,
    )
    assert done.encoding is not None
    ours = [(s.file, s.sha256, s.documents_sha256) for s in read_manifest(trained).shards]
    theirs = [(s.file, s.sha256, s.documents_sha256) for s in done.manifest.shards]
    return ours == theirs, done.encoding.bytes / done.encoding.wall_s


def _start(kind: str, given: dict[str, Any], threads: int) -> subprocess.Popen[str]:
    source = str(Path(hotloop.__file__).parent.parent)
    paths = [source, os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false" if threads == 1 else "true",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "hotloop.bench.tokenize_child", kind, json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    said, errors = child.communicate()
    if child.returncode == 0:
        answer: dict[str, Any] = json.loads(said.splitlines()[-1])
        return answer
    last = (errors.strip() or "no message").splitlines()[-1]
    raise CommandFailed(f"a contestant failed: {last}", returncode=child.returncode)
