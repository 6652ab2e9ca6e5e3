"""Text to verified shards: ours, the engine alone, and `datasets.map` with the reference, in turns.

Each contestant runs in a process of its own, `python -m hotloop.bench.tokenize KIND ARGUMENTS(JSON)`, and prints one
JSON object: bytes of text and the seconds they took.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hotloop
from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.progress import Progress, silent
from hotloop.data.engines import REFERENCE, load_engine
from hotloop.data.engines.giga_token import values_for
from hotloop.data.gather import read_batches
from hotloop.data.manifest import TOKENIZER, read_manifest
from hotloop.data.prepare import prepare_text
from hotloop.data.prepared import verify_prepared
from hotloop.data.sources import ReadOptions, Report
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import read_unit
from hotloop.data.spec import Spec
from hotloop.data.tokenizer import Tokenizer
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
        spec = Spec(tuple(sources), tokenizer)
        first = prepare_text(spec, trained, engine=engine, workers=cores, progress=progress)
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
            ran = {OURS: _answer(_start("ours", {**given, "engine": engine}, cores))}
            ran[alone] = _in_memory(given, cores)
            if FILES in times:
                ran[FILES] = _answer(_start("from_files", given, cores))
            ran[MAP] = _answer(_start("datasets_map", given, 1))
            for name, answer in ran.items():
                times[name].append(answer["seconds"])
                sizes[name] = answer["bytes"]
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


def _in_memory(given: dict[str, Any], cores: int) -> dict[str, Any]:
    """Seconds and bytes of a process per core, each with its share of the text in memory."""
    children = [_start("raw", {**given, "share": number}, 1) for number in range(cores)]
    shares = [_answer(child) for child in children]
    # They work at the same time; each one's clock stands still while it reads.
    speed = sum(share["bytes"] / share["seconds"] for share in shares if share["bytes"])
    size = sum(share["bytes"] for share in shares)
    return {"seconds": size / speed, "bytes": size}


def _plain(sources: Sequence[str]) -> bool:
    """True if gigatoken reads these sources itself as we do: uncompressed files of text."""
    return all(
        unit.compression is None and unit.format in ("text", "tree-text", "any-text")
        for unit in plan(sources).units
    )


def _check(
    sources: Sequence[str], trained: Path, work: Path, cores: int, progress: Progress
) -> tuple[bool, float]:
    """True if the reference makes the same shards of the whole corpus; and its bytes per second."""
    done = prepare_text(
        Spec(tuple(sources), str(trained / TOKENIZER)),
        work / "reference",
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
        [sys.executable, "-m", "hotloop.bench.tokenize", kind, json.dumps(given)],
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


BATCH = 1000
"""Documents `datasets.map` is given at once: its own default."""


def ours(given: dict[str, Any]) -> dict[str, Any]:
    """From nothing to verified shards: start of workers, choice of engine, commit and check included."""
    started = time.perf_counter()
    done = prepare_text(
        Spec(tuple(given["sources"]), given["tokenizer"]),
        Path(given["out"]),
        engine=given["engine"],
        workers=given["cores"],
    )
    verify_prepared(Path(given["out"]))
    return {"bytes": done.manifest.source_bytes, "seconds": time.perf_counter() - started}


def raw(given: dict[str, Any]) -> dict[str, Any]:
    """The engine alone on every `cores`-th unit: texts in memory before the clock runs."""
    tokenizer = Tokenizer.load(Path(given["tokenizer"]))
    engine = load_engine(given["engine"], tokenizer, threads=1)
    units = plan(given["sources"]).units[given["share"] :: given["cores"]]
    size, seconds = 0, 0.0
    for batch in read_batches(
        units,
        ReadOptions(),
        {},
        salt=b"\0" * 16,
        quick=True,
        batch_bytes=engine.batch_bytes,
        encode=tokenizer.encode,
    ):
        started = time.perf_counter()
        engine.encode(batch.texts, batch.contents)
        seconds += time.perf_counter() - started
        size += batch.num_bytes
    return {"bytes": size, "seconds": seconds}


def from_files(given: dict[str, Any]) -> dict[str, Any]:
    """gigatoken's own way from files to ids, with its own threads: nothing is cut, split or kept."""
    import gigatoken

    tokenizer = Tokenizer.load(Path(given["tokenizer"]))
    encoder = gigatoken.Tokenizer.from_json(json.dumps(values_for(tokenizer)))
    files = dict.fromkeys(unit.name for unit in plan(given["sources"]).units)
    started = time.perf_counter()
    ids = encoder.encode_files(list(files))
    seconds = time.perf_counter() - started
    assert len(ids) == len(files)
    return {"bytes": sum(Path(name).stat().st_size for name in files), "seconds": seconds}


def datasets_map(given: dict[str, Any]) -> dict[str, Any]:
    """`datasets.map` with the reference tokenizer, as its documentation shows it, on part of the text."""
    import datasets

    datasets.disable_progress_bars()
    texts = list(_texts(given["sources"], given["megabytes"] * 1_000_000))
    tokenizer = Tokenizer.load(Path(given["tokenizer"]))

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"ids": tokenizer.encode_batch(batch["text"])}

    with tempfile.TemporaryDirectory(dir=given["scratch"]) as scratch:
        datasets.Dataset.from_dict({"text": texts}).save_to_disk(f"{scratch}/text")
        read = datasets.Dataset.load_from_disk(f"{scratch}/text")
        started = time.perf_counter()
        done = read.map(
            encode,
            batched=True,
            batch_size=BATCH,
            num_proc=given["cores"],
            remove_columns=["text"],
            cache_file_name=f"{scratch}/ids.arrow",
            load_from_cache_file=False,
        )
        seconds = time.perf_counter() - started
        assert len(done) == len(texts)
    return {"bytes": sum(len(text.encode()) for text in texts), "seconds": seconds}


def _texts(sources: list[str], limit: int) -> Iterator[str]:
    size = 0
    for unit in plan(sources).units:
        for document in read_unit(unit, ReadOptions(), Report()):
            yield document.text
            size += len(document.text.encode())
            if size >= limit:
                return


CONTESTANTS = {"ours": ours, "raw": raw, "from_files": from_files, "datasets_map": datasets_map}

if __name__ == "__main__":
    said = CONTESTANTS[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps(said))  # noqa: T201 - the answer
