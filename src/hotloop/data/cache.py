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
from hotloop.data.manifest import PREPARED_SCHEMA
from hotloop.data.prepare import prepare
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import PYTHON_STDLIB, standard_library_path, tree_files


def ensure_prepared(source: str, tokenizer: str | None, *, progress: Progress = silent) -> Path:
    """The cached prepared directory of a source, prepared now if it is not there.

    `None` means `bytes`. A file or directory is known by its path, sizes and times of change, the
    standard library by the interpreter. Raises what `prepare` raises.
    """
    spec = tokenizer or "bytes"
    key = json.dumps([PREPARED_SCHEMA, _source_key(source), _tokenizer_key(spec)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", Path(source).name)[:40]
    path = cache_directory() / "prepared" / f"{name}-{digest}"
    if (path / "manifest.json").exists():
        try:
            open_prepared(path, verify="size")
        except UsageError:
            prepare([source], path, tokenizer=spec, force=True, progress=progress)
    else:
        prepare([source], path, tokenizer=spec, progress=progress)
    return path


def _source_key(source: str) -> list[object]:
    if source == PYTHON_STDLIB:
        return [source, sys.version, str(standard_library_path())]
    path = Path(source).expanduser().resolve()
    if path.is_dir():
        files = [(str(f.relative_to(path)), *_state(f)) for f in tree_files(path)]
        return [str(path), files]
    if path.is_file():
        return [str(path), *_state(path)]
    raise UsageError(
        "no such source",
        where=source,
        do=f"name a file, a directory, or `{PYTHON_STDLIB}`",
    )


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
