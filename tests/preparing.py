"""A prepared directory in one line, for tests that ask for nothing but what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotloop.data.manifest import Manifest
from hotloop.data.prepare import prepare_text


def prepare(sources: Sequence[str], out: Path, **options: Any) -> Manifest:
    return prepare_text(sources, out, **options).manifest
