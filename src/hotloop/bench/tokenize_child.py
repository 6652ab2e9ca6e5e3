"""One contestant of `bench tokenize`, in a process of its own: `python -m ... KIND ARGUMENTS(JSON)`.

It prints one JSON object: bytes of text and the seconds they took.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCH = 1000
"""Documents `datasets.map` is given at once: its own default."""


def ours(given: dict[str, Any]) -> dict[str, Any]:
    """From nothing to verified shards: start of workers, choice of engine, commit and check included."""
    from hotloop.data.prepare import prepare_text
    from hotloop.data.verify import verify_prepared

    started = time.perf_counter()
    done = prepare_text(
        given["sources"],
        Path(given["out"]),
        tokenizer=given["tokenizer"],
        engine=given["engine"],
        workers=given["cores"],
    )
    prepared = time.perf_counter() - started
    found = verify_prepared(Path(given["out"]))
    assert done.encoding is not None
    return {
        "bytes": done.manifest.source_bytes,
        "seconds": time.perf_counter() - started,
        "prepare_s": prepared,
        "encode_s": done.encoding.wall_s,
        "engine": done.encoding.engine,
        "tokens": done.manifest.tokens,
        "damaged": len(found.damaged),
    }


def raw(given: dict[str, Any]) -> dict[str, Any]:
    """The engine alone on every `cores`-th unit: texts in memory before the clock runs."""
    from hotloop.data.engines.engine import load_engine
    from hotloop.data.gather import read_batches
    from hotloop.data.sources import ReadOptions, plan
    from hotloop.data.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(Path(given["tokenizer"]))
    engine = load_engine(given["engine"], tokenizer, threads=1)
    units = plan(given["sources"]).units[given["share"] :: given["cores"]]
    size = tokens = 0
    seconds = 0.0
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
        ids, _ = engine.encode(batch.texts, batch.contents)
        seconds += time.perf_counter() - started
        size += batch.num_bytes
        tokens += len(ids)
    return {"bytes": size, "seconds": seconds, "tokens": tokens}


def from_files(given: dict[str, Any]) -> dict[str, Any]:
    """gigatoken's own way from files to ids, with its own threads: nothing is cut, split or kept."""
    import gigatoken

    from hotloop.data.engines.giga_token import values_for
    from hotloop.data.sources import plan
    from hotloop.data.tokenizer import Tokenizer

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

    from hotloop.data.tokenizer import Tokenizer

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
    from hotloop.data.sources import ReadOptions, Report, plan, read_unit

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
