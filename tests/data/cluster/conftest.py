"""What the tests of ranks share: a corpus in many jobs, and who to kill."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotloop.data import execute
from hotloop.data.cluster import executor
from hotloop.data.prepare import Preparation
from hotloop.data.staging import STAGING
from preparing import contents, prepare_text


@pytest.fixture(autouse=True)
def ranks_for_small_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "HERE_BYTES", 0)
    monkeypatch.setattr(executor, "SILENT_S", 4.0)


@pytest.fixture
def in_jobs() -> Callable[..., Preparation]:
    def prepare(source: Path, out: Path, **options: Any) -> Preparation:
        return prepare_text(
            [str(source)],
            out,
            **{"tokenizer": "bytes", "validation_fraction": 0.2, "job_bytes": 1000, **options},
        )

    return prepare


@pytest.fixture
def same_as_alone(
    corpus: Path, tmp_path: Path, in_jobs: Callable[..., Preparation]
) -> Callable[[Path], bool]:
    """Whether a directory holds, to the last byte, what this machine alone makes of the corpus."""
    in_jobs(corpus, tmp_path / "alone")

    def same(out: Path) -> bool:
        return contents(out) == contents(tmp_path / "alone")

    return same


@pytest.fixture
def killed_once() -> Any:
    """`with killed_once(out, of_rank)`: what `of_rank` picks of the first rank's processes dies."""

    @contextmanager
    def killing(out: Path, of_rank: Callable[[psutil.Process], psutil.Process | None]) -> Any:
        killed: list[int] = []
        end = threading.Event()

        def run() -> None:
            while not killed and not end.is_set():
                for path in (out / STAGING).glob("round-*/ranks/00000.json"):
                    with suppress(OSError, ValueError, psutil.Error):
                        rank = psutil.Process(json.loads(path.read_bytes())["pid"])
                        victim = of_rank(rank)
                        if victim is not None:
                            victim.kill()
                            killed.append(victim.pid)
                            return
                time.sleep(0.005)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield killed
        finally:
            end.set()
            thread.join()

    return killing
