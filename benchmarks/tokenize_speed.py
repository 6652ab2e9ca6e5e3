"""Text to verified shards: ours, the engine alone, and `datasets.map` with the reference, in turns.

    python benchmarks/tokenize_speed.py SOURCE... [--tokenizer tokenizer.json] [--rounds 3] [--check]

Each contestant runs in a process of its own, `tokenize_speed.py --contestant KIND ARGUMENTS(JSON)`, and prints one JSON
object: bytes of text and the seconds they took. `--check` encodes the whole corpus by the reference as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", default=["python-stdlib"])
    parser.add_argument("--tokenizer", default="train:8192")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--cores", type=int, default=max(int(cpu_quota()), 1))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--map-megabytes", type=int, default=40, help="text for datasets.map")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as directory:
        measure(given, Path(directory))


def measure(given: argparse.Namespace, work: Path) -> None:
    """Every round runs each contestant once."""
    trained = work / "first"
    first = prepare_text(
        Spec(tuple(given.sources), given.tokenizer),
        trained,
        engine=given.engine,
        workers=given.cores,
    )
    assert first.encoding is not None
    chosen = first.encoding.engine
    told: dict[str, Any] = {
        "sources": given.sources,
        "tokenizer": str(trained / TOKENIZER),
        "cores": given.cores,
        "engine": chosen,
        "megabytes": given.map_megabytes,
        "scratch": str(work),
        "out": str(work / "ours"),
    }
    alone = f"{chosen}, text in memory"
    times: dict[str, list[float]] = {OURS: [], alone: [], MAP: []}
    if chosen == "gigatoken" and _plain(given.sources):
        times = {OURS: [], alone: [], FILES: [], MAP: []}
    sizes: dict[str, int] = {}
    for _ in range(given.rounds):
        shutil.rmtree(work / "ours", ignore_errors=True)
        ran = {OURS: _answer(_start("ours", {**told, "engine": given.engine}, given.cores))}
        ran[alone] = _in_memory(told, given.cores)
        if FILES in times:
            ran[FILES] = _answer(_start("from_files", told, given.cores))
        ran[MAP] = _answer(_start("datasets_map", told, 1))
        for name, answer in ran.items():
            times[name].append(answer["seconds"])
            sizes[name] = answer["bytes"]
    print(
        f"{first.manifest.source_bytes / 1e6:,.1f} MB to {first.manifest.tokens:,} tokens on {given.cores} cores"
    )
    print(f"{'':24}      MB/s   slowest to fastest    text MB   ours is")
    ours = sizes[OURS] / statistics.median(times[OURS])
    for name, seconds in times.items():
        speeds = sorted(sizes[name] / each / 1e6 for each in seconds)
        median = statistics.median(speeds)
        print(
            f"{name:24}  {median:8.1f}   {speeds[0]:7.1f} to {speeds[-1]:7.1f}  "
            f"{sizes[name] / 1e6:9,.1f}   {ours / 1e6 / median:.2f}x"
        )
    if given.check:
        same, speed = _check(given, trained, work)
        print(
            f"ids against the reference: {'identical' if same else 'DIFFERENT'} in every shard; "
            f"ours with the reference engine: {speed / 1e6:.1f} MB/s"
        )


def _in_memory(given: dict[str, Any], cores: int) -> dict[str, Any]:
    """Seconds and bytes of a process per core, each with its share of the text in memory."""
    children = [_start("raw", {**given, "share": number}, 1) for number in range(cores)]
    shares = [_answer(child) for child in children]
    # They work at the same time; each one's clock stands still while it reads.
    speed = sum(share["bytes"] / share["seconds"] for share in shares if share["bytes"])
    size = sum(share["bytes"] for share in shares)
    return {"seconds": size / speed, "bytes": size}


def _plain(sources: list[str]) -> bool:
    """True if gigatoken reads these sources itself as we do: uncompressed files of text."""
    return all(
        unit.compression is None and unit.format in ("text", "tree-text", "any-text")
        for unit in plan(sources).units
    )


def _check(given: argparse.Namespace, trained: Path, work: Path) -> tuple[bool, float]:
    """True if the reference makes the same shards of the whole corpus; and its bytes per second."""
    done = prepare_text(
        Spec(tuple(given.sources), str(trained / TOKENIZER)),
        work / "reference",
        engine=REFERENCE,
        workers=given.cores,
    )
    assert done.encoding is not None
    ours = [(s.file, s.sha256, s.documents_sha256) for s in read_manifest(trained).shards]
    theirs = [(s.file, s.sha256, s.documents_sha256) for s in done.manifest.shards]
    return ours == theirs, done.encoding.bytes / done.encoding.wall_s


def _start(kind: str, given: dict[str, Any], threads: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false" if threads == 1 else "true",
    }
    return subprocess.Popen(
        [sys.executable, __file__, "--contestant", kind, json.dumps(given)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = child.communicate()
    if child.returncode != 0:
        raise SystemExit(child.returncode)
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


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
    if sys.argv[1:2] == ["--contestant"]:
        print(json.dumps(CONTESTANTS[sys.argv[2]](json.loads(sys.argv[3]))))
    else:
        main()
