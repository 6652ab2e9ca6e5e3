"""Prepared directories that are made on first use and kept."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

from hotloop.core.cache import cache_directory as cache_directory
from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress, silent
from hotloop.data.cache_entries import entry_in_use, make_room
from hotloop.data.manifest import PREPARED_SCHEMA
from hotloop.data.prepare import prepare
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import PYTHON_STDLIB, ReadOptions, plan, standard_library_path
from hotloop.data.sources.unit import STANDARD_INPUT


def ensure_prepared(source: str, tokenizer: str | None, *, progress: Progress = silent) -> Path:
    """The cached prepared directory of a source, prepared now if it is not there.

    `None` means `bytes`. A source is known by the names, sizes and times of change of what it holds,
    the standard library by the interpreter. It stays as long as this process lives. Raises what `prepare`
    raises.
    """
    spec = tokenizer or "bytes"
    path = cached_path(source, spec)
    entry_in_use(path)  # before it is looked at: nobody takes it away now
    if (path / "manifest.json").exists():
        try:
            open_prepared(path, verify="size")
        except UsageError:
            prepare([source], path, tokenizer=spec, force=True, progress=progress)
    else:
        prepare([source], path, tokenizer=spec, progress=progress)
        make_room()
    return path


def cached_path(source: str, tokenizer: str) -> Path:
    """Where a source prepared with a tokenizer lies, or would. Raises `UsageError` for no such source."""
    key = json.dumps([PREPARED_SCHEMA, _source_key(source), _tokenizer_key(tokenizer)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", Path(source).name)[:40]
    return cache_directory() / "prepared" / f"{name}-{digest}"


def _source_key(source: str) -> list[object]:
    if source == PYTHON_STDLIB:
        return [source, sys.version, str(standard_library_path())]
    if source == STANDARD_INPUT:
        raise UsageError(
            "standard input cannot be read again",
            where=source,
            do="write it with `hotloop prepare`",
        )
    units = plan([source], ReadOptions(), exclude=None).units
    return [str(Path(source).resolve()), [(u.name, u.begin, u.end, u.state) for u in units]]


def _tokenizer_key(spec: str) -> list[object]:
    path = Path(spec).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file():
        return [str(path.resolve()), *_state(path)]
    return [spec]


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (-1, -1)  # vanished, or a link to nowhere: read_documents says so
    return (status.st_size, status.st_mtime_ns)
