"""What is wrong with the text of a run, as far as it can be told before torch is loaded."""

from __future__ import annotations

import glob
from pathlib import Path

from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.data.loader import check_length
from hotloop.data.manifest import read_manifest
from hotloop.data.sources import NAMES, PYTHON_STDLIB, is_url
from hotloop.data.sources.arrow import PREFIX


def refuse_early(config: RunConfig) -> None:
    """Raises the `UsageError` that opening the text would raise, some seconds later."""
    data = config.data
    for corpus in data.corpora:
        if corpus.prepared is not None:
            manifest = read_manifest(Path(corpus.prepared))
            if data.layout == "concatenate":
                tokens = manifest.train.tokens
                check_length(tokens, config.model.context, split="train", where=corpus.prepared)
        sources = [corpus.source] if isinstance(corpus.source, str) else corpus.source or []
        for source in sources:
            if source == PYTHON_STDLIB or source.startswith(PREFIX) or is_url(source):
                continue
            if not glob.has_magic(source) and not Path(source).expanduser().exists():
                raise UsageError("no such source", where=source, do=NAMES)
    start = config.train.init_from
    if start is not None and not (Path(start).expanduser() / "config.json").is_file():
        raise UsageError(
            "no model in the format of transformers: it has no config.json",
            where=start,
            do="name the directory that `save_pretrained` wrote",
        )
