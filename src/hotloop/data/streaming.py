"""Training while the text is being read and tokenized: shards of finished jobs, in plan order, and the order of sequences.

The first epoch goes through the sequences of finished jobs in blocks of `buffer` sequences, each permuted: a
block is given as soon as all of it is there. The last block is what is left over. From the second epoch on
the whole corpus is permuted, as without streaming. So the order is a function of the seed, the position and
the number of tokens, and not of how fast the text was prepared; any position can be asked for again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.errors import EnvironmentFailed, HotloopError, UsageError
from hotloop.data.jobs import end_with_parent, kill_processes
from hotloop.data.loader import PlainRows, RowLoader
from hotloop.data.manifest import MANIFEST, TOKENIZER, JobRecord, Split, read_manifest
from hotloop.data.order import Blocks, EpochOrder, Order, permuted
from hotloop.data.prepare import prepare_text
from hotloop.data.shards import LITTLE_ENDIAN
from hotloop.data.spec import Spec
from hotloop.data.staging import PLAN, STAGING, is_held, read_record
from hotloop.data.stream import ShardFile, TokenStream
from hotloop.data.tokenizer import fingerprint_of

_POLL_S = 0.05
_PATIENCE_S = 60.0
"""A preparation may be seen neither at work nor finished this long: it takes its lock a moment after its start."""


class Growing:
    """Grows as jobs finish, always by whole jobs in plan order, so that token k is the same token for good.

    Nothing is given before both splits have a document: until then `prepare` may still change, at its
    end, which documents are held out (see `sample.held_out_below`). `check` is called while waiting; it raises what ended the preparation.
    Several threads may wait at once: one reads training text ahead while another evaluates.
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        """Waits for the plan, seconds after the start. Raises as `check` does, `EnvironmentFailed`."""
        self.path = path
        self._check = check
        self.complete = False
        """True when all jobs are there."""
        self.tokenizer_json = b""
        self.tokenizer_fingerprint = ""
        self._keys, self.vocabulary_size, self._dtype = self._plan()
        self._lock = threading.Lock()
        """Held to look and to take in; what it guards is replaced whole, so that reading needs no lock."""
        self._grew_at = time.monotonic()
        self._records: list[JobRecord] = []
        self.streams: dict[Split, TokenStream] = {
            split: TokenStream(
                [], vocabulary_size=self.vocabulary_size, split=split, where=str(path)
            )
            for split in ("train", "validation")
        }
        with self._lock:
            self._look()

    @property
    def fingerprint(self) -> str:
        """sha256 of the keys of all jobs: known from the start, and the same when they are done."""
        return hashlib.sha256(json.dumps(self._keys).encode()).hexdigest()

    def wait(self, split: Split, num_tokens: int) -> bool:
        """Wait until the split has `num_tokens`, or all it will ever have; True when it has that many."""
        began = time.monotonic()
        while len(self.streams[split]) < num_tokens and not self.complete:
            with self._lock:
                if self._look():
                    self._grew_at = time.monotonic()
                    continue
                self._refuse_dead(max(began, self._grew_at))
            time.sleep(_POLL_S)
        return len(self.streams[split]) >= num_tokens

    def _plan(self) -> tuple[list[str], int, np.dtype[Any]]:
        started = time.monotonic()
        while True:
            for directory in (self.path, self.path / STAGING):
                try:
                    tokenizer = directory / TOKENIZER
                    self.tokenizer_json = tokenizer.read_bytes()
                    self.tokenizer_fingerprint = fingerprint_of(tokenizer)
                    if directory == self.path:
                        manifest = read_manifest(directory)
                        keys = [job.key for job in manifest.jobs]
                        return keys, manifest.vocabulary_size, LITTLE_ENDIAN[manifest.id_type]
                    plan = json.loads((directory / PLAN).read_bytes())
                    return plan["keys"], plan["vocabulary_size"], LITTLE_ENDIAN[plan["id_type"]]
                except (OSError, UsageError, ValueError, KeyError):
                    continue  # not there yet, or just being moved
            self._refuse_dead(started)
            time.sleep(_POLL_S)

    def _look(self) -> bool:
        """Take in the jobs that follow those known; whether there were any. With the lock held."""
        before = len(self._records)
        committed = (self.path / MANIFEST).exists()
        try:
            if committed:
                self._take(list(read_manifest(self.path).jobs), self.path)
                self.complete = True
            else:
                found = self._finished_after(self._records)
                if _has_both_splits(found):
                    self._take(found, self.path / STAGING)
        except (FileNotFoundError, UsageError):
            if committed and not is_held(self.path):
                raise
            return False  # it is being moved to its place, or was just now; seen at the next look
        return self.complete or len(self._records) > before

    def _finished_after(self, known: list[JobRecord]) -> list[JobRecord]:
        """With those that follow them without a gap."""
        found = list(known)
        for number in range(len(known), len(self._keys)):
            record = read_record(self.path / STAGING, number, self._keys[number])
            if record is None:
                break
            found.append(record)
        return found

    def _take(self, jobs: list[JobRecord], directory: Path) -> None:
        known = len(self._records)
        if [job.shards for job in jobs[:known]] != [job.shards for job in self._records] or [
            job.key for job in jobs
        ] != self._keys[: len(jobs)]:
            raise EnvironmentFailed(
                "the text was prepared in another way while it was read",
                where=str(self.path),
                do="run the same command again, in another --out",
            )
        streams = dict(self.streams)  # both or none: a shard may have moved before it is mapped
        for split, stream in self.streams.items():
            shards = [shard for job in jobs[known:] for shard in job.shards if shard.split == split]
            # Mapped now: soon the file has another place.
            mapped = [ShardFile(shard, directory, self._dtype).mapped() for shard in shards]
            if mapped:
                streams[split] = stream.extended(mapped)
        self.streams, self._records = streams, jobs

    def _refuse_dead(self, idle_since: float) -> None:
        self._check()
        if is_held(self.path) or (self.path / MANIFEST).exists():
            return
        if time.monotonic() - idle_since > _PATIENCE_S:
            raise EnvironmentFailed(
                "the preparation of the text ended before it was finished",
                where=str(self.path),
                do="run the same command again: it continues from there",
            )


def _has_both_splits(jobs: list[JobRecord]) -> bool:
    return len({shard.split for job in jobs for shard in job.shards if shard.documents}) == 2


class StreamedLoader(RowLoader):
    """Sequences of a growing split. A batch waits until its sequences are there."""

    def __init__(
        self,
        growing: Growing,
        split: Split,
        *,
        context: int,
        buffer: int,
        seed: int,
        shuffled: bool = True,
        within_documents: bool = False,
    ) -> None:
        """`within_documents` as in `PlainRows`."""
        self._growing = growing
        self._split = split
        self._context = context
        self._buffer = buffer
        self._seed = seed
        self._order: Order = "shuffled" if shuffled else "sequential"
        self._within = within_documents
        self._blocks = Blocks(buffer, self._worked_out)
        self._later: EpochOrder | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences prepared so far; of one epoch once all the text is."""
        return max(len(self._growing.streams[self._split]) - 1, 0) // self._context

    def wait(self, num_sequences: int) -> bool:
        """Wait until there are `num_sequences` sequences, or all that there will ever be; True when there are."""
        return self._growing.wait(self._split, num_sequences * self._context + 1)

    def indices(self, position: int, num_sequences: int) -> np.ndarray:
        """See `RowLoader`. Raises what ended the preparation."""
        found = self._blocks.run(position, num_sequences)
        if len(found) == num_sequences:
            return found
        if self._later is None:
            self._later = EpochOrder(self.num_sequences, self._order, self._seed)
        behind = self._later.run(position + len(found), num_sequences - len(found))
        return np.concatenate((found, behind))

    def _worked_out(self, block: int) -> np.ndarray:
        """The sequences of a block of the first epoch, when all of it is there."""
        first = block * self._buffer
        self.wait(first + self._buffer)
        if not self.num_sequences:
            raise UsageError(
                f"the {self._split} text holds less than one sequence of {self._context} tokens",
                where=str(self._growing.path),
                do="give more text, or lower `model.context`",
            )
        stream = self._growing.streams[self._split]
        self.rows = PlainRows(stream, context=self._context, within_documents=self._within)
        size = min(max(self.num_sequences - first, 0), self._buffer)
        items = np.arange(size, dtype=np.int64)
        if self._order == "shuffled":
            items = permuted(items, size, seed=self._seed, epoch=block)
        return first + items


class Preparation:
    """`prepare_text` in a process of its own, for as long as the training needs it."""

    def __init__(self, spec: Spec, path: Path) -> None:
        """Raises `EnvironmentFailed` when no process can be started."""
        self._process = ProcessPoolExecutor(
            1, get_context("spawn"), end_with_parent, (os.getpid(),)
        )
        try:
            self._done = self._process.submit(prepare_text, spec, path)
        except OSError as error:
            raise EnvironmentFailed(f"cannot start a process: {error.strerror}") from error

    def check(self) -> None:
        """Raises the error that the preparation ended with."""
        try:
            self._done.result(timeout=0)
        except TimeoutError:
            pass
        except BrokenProcessPool as error:
            raise EnvironmentFailed(
                "preparing the text failed: its process was killed",
                do="run the same command again: it continues from there",
            ) from error
        except HotloopError as error:
            raise type(error)(
                f"preparing the text failed: {error.what}", where=error.where, do=error.do
            ) from error

    def close(self) -> None:
        """End it if it is still at work: what is finished is kept, and the next run continues from there."""
        kill_processes(self._process)
