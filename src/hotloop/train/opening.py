"""From the data settings to opened text: prepared first where it is a source, or while it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.config import RunConfig
from hotloop.core.progress import Progress
from hotloop.data.cache import cached_path, ensure_prepared
from hotloop.data.cache_entries import entry_in_use
from hotloop.data.corpora import Corpora, open_corpora
from hotloop.data.growing import Growing
from hotloop.data.prepared import open_prepared
from hotloop.data.streaming import Preparation
from hotloop.train.joining import Meeting


@dataclass(frozen=True, slots=True, eq=False)
class OpenedText:
    """What a run trains on, and the directories it lies in."""

    data: Corpora | Growing
    paths: list[Path]


@contextmanager
def opened_text(config: RunConfig, meeting: Meeting, *, progress: Progress) -> Iterator[OpenedText]:
    """Raises what preparing and opening raise. A preparation in the background ends with the block."""
    # The same files: one process of a machine reads them all through.
    verify = config.data.verify if meeting.ranks.local_rank == 0 else "size"
    at_work: list[Preparation] = []

    def data_here() -> str:
        if config.data.stream:
            assert config.data.source is not None
            return json.dumps([str(_streamed(config.data.source, config, at_work, progress))])
        return json.dumps(_prepared(config, progress))

    # By every rank, also where nothing is to prepare: on another machine there may be.
    paths = [Path(path) for path in json.loads(meeting.each_machine(data_here))]
    try:
        if not config.data.stream:
            weights = [corpus.weight for corpus in config.data.corpora]
            yield OpenedText(open_corpora(paths, weights, verify=verify), paths)
            return
        entry_in_use(paths[0])
        if (paths[0] / "manifest.json").exists():
            open_prepared(paths[0], verify=verify)
        progress("waiting for the first text", 0, None, "")
        growing = Growing(paths[0], check=at_work[0].check) if at_work else Growing(paths[0])
        yield OpenedText(growing, paths)
    finally:
        for preparation in at_work:
            preparation.close()


def _prepared(config: RunConfig, progress: Progress) -> list[str]:
    """Directories of every corpus. The first one decides the tokenizer."""
    tokenizer = config.data.tokenizer
    paths: list[str] = []
    for corpus in config.data.corpora:
        if corpus.prepared is not None:
            path = corpus.prepared
        else:
            assert corpus.source is not None
            path = str(ensure_prepared(corpus.source, tokenizer, progress=progress))
        if not paths:
            tokenizer = str(Path(path) / "tokenizer.json")
        paths.append(path)
    return paths


def _streamed(
    source: str, config: RunConfig, at_work: list[Preparation], progress: Progress
) -> Path:
    """Where the source is being prepared from now on, or was already."""
    tokenizer = config.data.tokenizer or "bytes"
    path = cached_path(source, tokenizer)
    entry_in_use(path)
    if (path / "manifest.json").exists():
        return ensure_prepared(source, tokenizer, progress=progress)
    at_work.append(Preparation(source, path, tokenizer))
    return path
