"""From the data settings to opened text: prepared first where it is a source, or while it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.core.cache import cache_limit_bytes, entry_in_use
from hotloop.core.config import RunConfig
from hotloop.core.data_config import CorpusConfig, DataConfig, ReadingConfig
from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress
from hotloop.data.prepare import ensure_prepared
from hotloop.data.prepared import Corpora, open_corpora, open_prepared
from hotloop.data.sources import ReadOptions
from hotloop.data.spec import Spec, cached_path
from hotloop.data.streaming import Growing, Preparation

if TYPE_CHECKING:
    from hotloop.train.rendezvous import Rendezvous  # loads torch


@contextmanager
def opened_text(
    config: RunConfig,
    rendezvous: Rendezvous,
    *,
    progress: Progress,
    warn: Callable[[str], None] = lambda message: None,
) -> Iterator[Corpora | Growing]:
    """Raises what preparing and opening raise. A preparation in the background ends with the block.

    One process of a machine reads all files through, as `data.verify` says, before any opens them.
    `warn` is told of what was damaged in the cache and prepared again.
    """
    cache_limit_bytes()  # indexes of documents go into the cache, too
    at_work: list[Preparation] = []

    def data_here() -> list[str]:
        if config.data.stream:
            return [str(_streamed(config.data, at_work, progress, warn))]
        return _prepared(config.data, progress, warn)

    def check() -> None:
        for preparation in at_work:
            preparation.check()
        rendezvous.refuse_failed()

    try:
        # By every rank, also where nothing is to prepare: on another machine there may be.
        paths = [Path(path) for path in rendezvous.each_machine(data_here)]
        if not config.data.stream:
            weights = [corpus.weight for corpus in config.data.corpora]
            yield open_corpora(paths, weights, verify="size")
            return
        entry_in_use(paths[0])
        if (paths[0] / "manifest.json").exists():
            open_prepared(paths[0], verify="size")
        progress("waiting for the first text", 0, None, "")
        yield Growing(paths[0], check=check)
    except UsageError as error:
        _say_in_settings(error, config.data)
        raise
    finally:
        for preparation in at_work:
            preparation.close()


def prepare_ahead(
    data: DataConfig, *, progress: Progress, warn: Callable[[str], None] = lambda message: None
) -> list[str] | None:
    """Prepare what is not in the cache yet, as a training would at its start: directories of every corpus; `None` where it
    reads what is being prepared."""
    try:
        if data.stream:
            return None
        return _prepared(data.model_copy(update={"verify": "size"}), progress, warn)
    except UsageError as error:
        _say_in_settings(error, data)
        raise


def wanted_text(data: DataConfig, corpus: CorpusConfig, *, like: Path | None = None) -> Spec:
    """What to prepare for a corpus that is a source; `like` is a prepared one with the tokenizer to use."""
    assert corpus.source is not None
    sources = (corpus.source,) if isinstance(corpus.source, str) else tuple(corpus.source)
    reading = ReadOptions.of(corpus.reading)
    if like is not None:
        return Spec(sources, str(like / "tokenizer.json"), reading=reading)
    end_of_text = None if data.makes_tokenizer else data.end_of_text
    return Spec(sources, data.tokenizer or "bytes", end_of_text, reading)


def _prepared(data: DataConfig, progress: Progress, warn: Callable[[str], None]) -> list[str]:
    """Directories of every corpus, verified. The first one decides the tokenizer."""
    paths: list[str] = []
    for corpus in data.corpora:
        if corpus.prepared is not None:
            if data.verify == "checksum":  # sizes are looked at whenever it is opened
                open_prepared(Path(corpus.prepared), verify="checksum")
            paths.append(corpus.prepared)
        else:
            like = Path(paths[0]) if paths else None
            wanted = wanted_text(data, corpus, like=like)
            path = ensure_prepared(wanted, verify=data.verify, progress=progress, warn=warn)
            paths.append(str(path))
    return paths


def _streamed(
    data: DataConfig,
    at_work: list[Preparation],
    progress: Progress,
    warn: Callable[[str], None],
) -> Path:
    """The directory in which the source is being prepared from now on, or was already."""
    wanted = wanted_text(data, data.corpora[0])
    path = cached_path(wanted)
    entry_in_use(path)
    if (path / "manifest.json").exists():
        return ensure_prepared(wanted, verify=data.verify, progress=progress, warn=warn)
    at_work.append(Preparation(wanted, path))
    return path


_FLAGS = re.compile(
    "--(" + "|".join(name.replace("_", "-") for name in ReadingConfig.model_fields) + r")\b"
)


def _say_in_settings(error: UsageError, data: DataConfig) -> None:
    """Put the names of settings into an error that names options of `hotloop prepare`."""
    section = "reading" if data.mix is not None else "data.reading"

    def key(match: re.Match[str]) -> str:
        return f"`{section}.{match[1].replace('-', '_')}`"

    def said(text: str) -> str:
        return _FLAGS.sub(key, text).replace("--end-of-text", "`data.end_of_text`")

    error.what = said(error.what)
    error.do = None if error.do is None else said(error.do)
