"""What lies between a file and verified shards besides the engine: the least program for each stage.

    python benchmarks/tokenize_floor.py CORPUS TOKENIZER.json [--rounds 5] [--processes 2]

Each stage does what the one before it does and one thing more, in so many processes with a part of the
corpus each, fed in the same pieces. No stage checks, compares, splits, counts or could be resumed, and
starting processes and loading the engine are left out: what the last stage reaches, no program of this
kind exceeds. The stages take turns.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.data.engines.giga_token import load
from hotloop.data.tokenizer import Tokenizer

STAGES = (
    "engine, text in memory",
    "+ reading the text",
    "+ ids as narrow as they are stored",
    "+ writing them, durable",
    "+ their sha256",
    "+ reading them again and comparing",
)
READ, NARROW, WRITE, HASH, VERIFY = range(1, len(STAGES))
BATCH_BYTES = 8 << 20
PIECE_BYTES = 64 << 10


def pieces_of(block: bytes) -> list[bytes]:
    """Of at most `PIECE_BYTES`, cut at line ends where there are any."""
    pieces, at = [], 0
    while at < len(block):
        end = min(at + PIECE_BYTES, len(block))
        if end < len(block):
            end = block.rfind(b"\n", at, end) + 1 or end
        pieces.append(block[at:end])
        at = end
    return pieces


def batches_of(corpus: Path, begin: int, end: int) -> Iterator[list[bytes]]:
    with corpus.open("rb", buffering=0) as file:
        file.seek(begin)
        for at in range(begin, end, BATCH_BYTES):
            yield pieces_of(file.read(min(BATCH_BYTES, end - at)))


def work(stage: int, batches: Iterator[list[bytes]], out: Path, encoder: Any) -> None:
    """Everything up to and with this stage."""
    digest = hashlib.sha256()
    with out.open("wb", buffering=0) as shard:
        for batch in batches:
            ids, _ = encoder.encode([], batch)
            if stage < NARROW:
                continue
            stored = ids.astype("<u2").view(np.uint8).data
            if stage >= WRITE:
                shard.write(stored)
            if stage >= HASH:
                digest.update(stored)
        if stage >= WRITE:
            os.fsync(shard.fileno())
    if stage >= VERIFY:
        with out.open("rb") as again:
            assert hashlib.file_digest(again, "sha256").digest() == digest.digest()


def serve(number: int, args: argparse.Namespace, out: str, orders: Any, together: Any) -> None:
    """One process: a stage at a time, begun and ended by all at once."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    encoder = load(Tokenizer.load(args.tokenizer), threads=1)
    encoder.encode(["a"], [b"a"])
    size = args.corpus.stat().st_size
    begin, end = (size * part // args.processes for part in (number, number + 1))
    while (stage := orders.get()) is not None:
        batches = batches_of(args.corpus, begin, end)
        if stage < READ:
            batches = iter(list(batches))
        together.wait()
        work(stage, batches, Path(out) / str(number), encoder)
        together.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(args.processes + 1)
    speeds: list[list[float]] = [[] for _ in STAGES]
    megabytes = args.corpus.stat().st_size / 1e6
    with tempfile.TemporaryDirectory(dir=args.corpus.parent) as out:
        orders = [context.Queue() for _ in range(args.processes)]
        for number, queue in enumerate(orders):
            process = context.Process(target=serve, args=(number, args, out, queue, together))
            process.start()
        for number in range(args.rounds + 1):
            for stage in range(len(STAGES)):
                for queue in orders:
                    queue.put(stage)
                together.wait()
                started = time.perf_counter()
                together.wait()
                if number:  # the first round warms up
                    speeds[stage].append(megabytes / (time.perf_counter() - started))
        for queue in orders:
            queue.put(None)
        for process in multiprocessing.active_children():
            process.join()
    first = statistics.median(speeds[0])
    for stage_name, found in zip(STAGES, speeds):
        middle = statistics.median(found)
        spread = f"({min(found):.0f} to {max(found):.0f})"
        print(f"{stage_name:<36}{middle:6.0f} MB/s {spread:<16}{middle / first:.0%}")


if __name__ == "__main__":
    main()
