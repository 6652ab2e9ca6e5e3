"""Training text that is still being prepared: the order, waiting, failing, and resuming."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import write_json
from hotloop.data import streaming as module
from hotloop.data.manifest import MANIFEST, TOKENIZER, JobRecord, Split, read_manifest
from hotloop.data.prepared import open_prepared
from hotloop.data.spec import Spec
from hotloop.data.staging import PLAN, STAGING
from hotloop.data.streaming import Growing, Preparation, StreamedLoader
from preparing import prepare_text


@pytest.fixture
def finished(corpus: Path, tmp_path: Path) -> Path:
    """Of several jobs."""
    out = tmp_path / "finished"
    prepare_text([str(corpus)], out, tokenizer="bytes", validation_fraction=0.2, job_bytes=1000)
    return out


class UnderWay:
    """A preparation whose jobs appear when they are told to, in the files that `prepare` uses."""

    def __init__(self, finished: Path, target: Path) -> None:
        self.finished, self.target = finished, target
        self.manifest = read_manifest(finished)
        staging = target / STAGING
        staging.mkdir(parents=True)
        shutil.copy(finished / TOKENIZER, staging)
        plan = {
            "vocabulary_size": self.manifest.vocabulary_size,
            "id_type": self.manifest.id_type,
            "keys": [job.key for job in self.manifest.jobs],
        }
        (staging / PLAN).write_text(json.dumps(plan))

    def finish_job(self, number: int, job: JobRecord | None = None) -> None:
        job = job or self.manifest.jobs[number]
        for shard in job.shards:
            for name in (shard.file, shard.documents_file):
                shutil.copy(self.finished / name, self.target / STAGING)
        write_json(self.target / STAGING / f"job-{number:05d}.json", job)

    def finish_jobs_of_both_splits(self) -> None:
        """From the first on, no more than it takes."""
        splits: set[str] = set()
        for number, job in enumerate(self.manifest.jobs):
            self.finish_job(number)
            splits |= {shard.split for shard in job.shards}
            if len(splits) == 2:
                return

    def commit(self) -> None:
        for path in (self.target / STAGING).iterdir():
            if path.suffix in (".bin", ".docs") or path.name == TOKENIZER:
                path.rename(self.target / path.name)
        shutil.copy(self.finished / MANIFEST, self.target)
        shutil.rmtree(self.target / STAGING)


@pytest.fixture
def under_way(finished: Path, tmp_path: Path) -> UnderWay:
    return UnderWay(finished, tmp_path / "target")


def loader(growing: Growing, *, buffer: int = 8, seed: int = 3) -> StreamedLoader:
    return StreamedLoader(growing, "train", context=16, buffer=buffer, seed=seed)


def test_order_is_that_of_the_finished_text_and_gives_every_window_once_an_epoch(
    finished: Path,
) -> None:
    whole = loader(Growing(finished))
    count = whole.num_sequences
    assert count % 8 != 0
    assert count > 24
    for epoch in range(3):
        windows = whole.indices(epoch * count, count)
        assert np.array_equal(np.sort(windows), np.arange(count))
    first = whole.indices(0, count)
    for block in range(count // 8):
        assert set(first[block * 8 : block * 8 + 8]) == set(range(block * 8, block * 8 + 8))
    assert not np.array_equal(first, np.arange(count))
    assert not np.array_equal(first, loader(Growing(finished), seed=4).indices(0, count))


def test_batches_while_it_is_prepared_are_those_of_the_finished_text(
    finished: Path, under_way: UnderWay
) -> None:
    wanted = loader(Growing(finished))
    count = 2 * wanted.num_sequences // 4
    truth = [wanted.batch(4 * i, 4).tokens for i in range(count)]
    under_way.finish_job(0)
    growing = Growing(under_way.target)
    assert not growing.complete
    assert growing.fingerprint == Growing(finished).fingerprint
    streamed = loader(growing)
    num_jobs = len(under_way.manifest.jobs)
    assert num_jobs > 3

    def go_on() -> None:
        # Out of order: a later job alone must not be taken.
        for number in [2, 1, *range(3, num_jobs)]:
            time.sleep(0.01)
            under_way.finish_job(number)
        under_way.commit()

    other = threading.Thread(target=go_on)
    other.start()
    found = [streamed.batch(4 * i, 4).tokens for i in range(count)]
    other.join()
    assert growing.complete
    for mine, theirs in zip(found, truth, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_block_is_given_as_soon_as_it_is_there(under_way: UnderWay) -> None:
    under_way.finish_jobs_of_both_splits()
    streamed = loader(Growing(under_way.target), buffer=1)
    ready = streamed.num_sequences
    assert ready > 1
    for position in range(ready):
        assert streamed.indices(position, 1).tolist() == [position]


def test_nothing_is_given_while_it_is_open_which_documents_are_held_out(
    corpus: Path, tmp_path: Path
) -> None:
    """Of few documents none may have been held out: one of them is then, at the end."""
    out = tmp_path / "finished"
    prepare_text([str(corpus)], out, tokenizer="bytes", validation_fraction=0.001, job_bytes=1000)
    under_way = UnderWay(out, tmp_path / "target")
    jobs = under_way.manifest.jobs
    (late,) = [n for n, job in enumerate(jobs) if any(s.split == "validation" for s in job.shards)]
    for number in range(len(jobs)):
        if number != late:
            under_way.finish_job(number)
    first = jobs[late]
    # As it was done first: with all documents in training.
    shards = tuple(s for s in first.shards if s.split == "train")
    under_way.finish_job(late, replace(first, shards=shards))
    growing = Growing(under_way.target)
    assert len(growing.streams["train"]) == 0
    assert not growing.complete
    under_way.finish_job(late)
    under_way.commit()
    assert growing.wait("validation", 1)
    truth = open_prepared(out)
    assert len(growing.streams["train"]) == len(truth.train)
    assert len(growing.streams["validation"]) == len(truth.validation) > 0


def test_shard_that_moves_while_it_is_looked_at_is_taken_once(under_way: UnderWay) -> None:
    """The commit may come between the look at the records and the look at their shards."""
    under_way.finish_jobs_of_both_splits()
    growing = Growing(under_way.target)
    known = len(growing.streams["train"])
    for number in range(len(under_way.manifest.jobs)):
        under_way.finish_job(number)
    last = max((under_way.target / STAGING).glob("validation-*.bin"))
    last.rename(under_way.target / last.name)
    assert not growing._look()
    assert len(growing.streams["train"]) == known
    under_way.commit()
    assert growing.wait("train", 1 + known)
    manifest = under_way.manifest
    assert len(growing.streams["train"]) == manifest.train.tokens
    assert len(growing.streams["validation"]) == manifest.validation.tokens


def test_preparation_that_was_killed_is_said_so(
    corpus_of: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    preparation = Preparation(Spec((str(corpus_of(tmp_path / "large", 40)),)), tmp_path / "out")
    (process,) = preparation._process._processes.values()
    process.kill()
    wait([preparation._done])
    try:
        with pytest.raises(EnvironmentFailed, match="its process was killed") as caught:
            preparation.check()
        assert "it continues from there" in str(caught.value)
    finally:
        preparation.close()


def test_preparation_that_died_is_noticed(
    under_way: UnderWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    under_way.finish_job(0)
    streamed = loader(Growing(under_way.target), buffer=10_000)
    with pytest.raises(EnvironmentFailed, match="ended before it was finished"):
        streamed.batch(0, 1)


def test_error_of_the_preparation_is_the_error_of_the_training(tmp_path: Path) -> None:
    preparation = Preparation(Spec((str(tmp_path / "nowhere"),)), tmp_path / "out")
    try:
        with pytest.raises(UsageError, match="no such source") as caught:
            Growing(tmp_path / "out", check=preparation.check)
        assert caught.value.where == str(tmp_path / "nowhere")
    finally:
        preparation.close()


def test_other_text_under_the_same_name_is_refused(
    finished: Path, under_way: UnderWay, corpus: Path, tmp_path: Path
) -> None:
    under_way.finish_job(0)
    growing = Growing(under_way.target)
    (corpus / "file_000.py").write_text("something else\n" * 50)
    other = tmp_path / "other"
    prepare_text([str(corpus)], other, tokenizer="bytes", validation_fraction=0.2, job_bytes=1000)
    shutil.rmtree(under_way.target)
    shutil.copytree(other, under_way.target)
    with pytest.raises(EnvironmentFailed, match="prepared in another way"):
        growing.wait("train", 10**9)


def test_processes_end_with_the_training(
    corpus_of: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    source = corpus_of(tmp_path / "large", 40)
    preparation = Preparation(Spec((str(source),)), tmp_path / "out")
    (process,) = preparation._process._processes.values()
    preparation.check()
    preparation.close()
    assert process.exitcode is not None


def test_two_threads_that_wait_at_once_take_every_job_once(
    under_way: UnderWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looks while the other is between what it found and taking it in."""
    under_way.finish_jobs_of_both_splits()
    growing = Growing(under_way.target)
    known = len(growing._records)
    num_jobs = len(under_way.manifest.jobs)
    assert known + 2 <= num_jobs
    under_way.finish_job(known)
    real, others, errors = module._has_both_splits, [], []

    def wait(split: Split, num_tokens: int) -> None:
        try:
            growing.wait(split, num_tokens)
        except EnvironmentFailed as error:
            errors.append(error)

    def between(jobs: list[JobRecord]) -> bool:
        if not others:
            for number in range(known + 1, num_jobs):
                under_way.finish_job(number)
            tokens = under_way.manifest.validation.tokens
            others.append(threading.Thread(target=wait, args=("validation", tokens)))
            others[0].start()
            others[0].join(0.5)  # without the lock it takes all jobs meanwhile
        return real(jobs)

    monkeypatch.setattr(module, "_has_both_splits", between)
    wait("train", under_way.manifest.train.tokens)
    others[0].join()
    assert not errors
    assert len(growing._records) == num_jobs
    assert len(growing.streams["train"]) == under_way.manifest.train.tokens
    assert len(growing.streams["validation"]) == under_way.manifest.validation.tokens
