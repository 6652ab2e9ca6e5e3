"""Prepared directories that are made on first use and kept."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from hotloop.core.cache import cache_directory as cache_directory
from hotloop.core.cache import cache_limit_bytes, entry_in_use, make_room
from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress, silent
from hotloop.data.manifest import PREPARED_SCHEMA
from hotloop.data.prepare import prepare_text
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import PYTHON_STDLIB, plan, standard_library_path
from hotloop.data.sources.unit import STANDARD_INPUT
from hotloop.data.spec import Spec
from hotloop.data.tokenizer import tokenizer_file


def ensure_prepared(
    spec: Spec,
    *,
    verify: Literal["checksum", "size"] = "size",
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Path:
    """The cached prepared directory of a text, prepared now if it is not there.

    A source is known by the names, sizes and times of change of what it holds, the standard library by
    the interpreter. It stays as long as this process lives. What `verify` finds damaged is prepared
    again, and `warn` told. Raises what `prepare_text` raises, and `UsageError` for a limit that is none.
    """
    cache_limit_bytes()  # read at the end; refused before the work
    path = cached_path(spec)
    entry_in_use(path)  # before it is looked at: nobody takes it away now
    there = (path / "manifest.json").exists()
    if there:
        try:
            open_prepared(path, verify=verify)
            return path
        except UsageError as error:
            warn(f"damaged in the cache, prepared again: {error.where or path}: {error.what}")
    prepare_text(spec, path, force=there, progress=progress)
    if not there:
        make_room()
    return path


def cached_path(spec: Spec) -> Path:
    """The directory that holds it, or will. Raises `UsageError` for no such source."""
    key = json.dumps(
        [
            PREPARED_SCHEMA,
            _sources_key(spec),
            _tokenizer_key(spec.tokenizer),
            spec.end_of_text,
            spec.reading.key(),
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", Path(spec.sources[0]).name)[:40]
    return cache_directory() / "prepared" / f"{name}-{digest}"


def _sources_key(spec: Spec) -> list[object]:
    if spec.sources == (PYTHON_STDLIB,):
        return [PYTHON_STDLIB, sys.version, str(standard_library_path())]
    if STANDARD_INPUT in spec.sources:
        raise UsageError(
            "standard input cannot be read again",
            where=STANDARD_INPUT,
            do="write it with `hotloop prepare`",
        )
    units = plan(spec.sources, spec.reading, exclude=None).units
    places = [str(Path(source).resolve()) for source in spec.sources]
    return [places, [(u.source, u.name, u.begin, u.end, u.state) for u in units]]


def _tokenizer_key(spec: str) -> list[object]:
    path = tokenizer_file(Path(spec).expanduser())
    if not path.is_file():
        return [spec]
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
