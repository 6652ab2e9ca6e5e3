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


def in_jobs(source: Path, out: Path, **options: Any) -> Preparation:
    """In many jobs, as bytes unless it is said otherwise."""
    usual = {"tokenizer": "bytes", "validation_fraction": 0.2, "job_bytes": 1000}
    return prepare_text([str(source)], out, **{**usual, **options})


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory, hidden ones and subdirectories too."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def shards(directory: Path) -> dict[str, bytes]:
    kept = [path for path in directory.iterdir() if path.suffix in (".bin", ".docs")]
    return {path.name: path.read_bytes() for path in kept}
