"""Preparations in one line, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hotloop.data import prepare as module
from hotloop.data.manifest import Manifest
from hotloop.data.prepare import Preparation
from hotloop.data.spec import Spec


def prepare_text(sources: Sequence[str], out: Path, **options: Any) -> Preparation:
    """The spec's options and those of the call together."""
    of_spec = {each.name: options.pop(each.name) for each in fields(Spec) if each.name in options}
    return module.prepare_text(Spec(tuple(sources), **of_spec), out, **options)


def prepare(sources: Sequence[str], out: Path, **options: Any) -> Manifest:
    return prepare_text(sources, out, **options).manifest


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory, hidden ones and subdirectories too."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
