"""Small texts, prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.data.prepared import Prepared, open_prepared
from preparing import prepare_text


def write_corpus(root: Path, documents: int = 40) -> Path:
    """A source tree of small, different files."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        lines = (
            f"def function_{number}_{k}(x):\n    return x + {k}\n\n" for k in range(number % 7 + 1)
        )
        (root / f"file_{number:03d}.py").write_text("".join(lines) + "# héllo 世界 🎉\n")
    return root


@pytest.fixture
def corpus_of() -> Callable[[Path, int], Path]:
    return write_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")


@pytest.fixture
def prepared(corpus: Path, tmp_path: Path) -> Prepared:
    """Prepared as bytes, in several small shards."""
    out = tmp_path / "prepared"
    prepare_text([str(corpus)], out, tokenizer="bytes", validation_fraction=0.2, job_bytes=1000)
    return open_prepared(out)
