"""Switches that are set once: lines in the main script, right after torch was imported."""

from __future__ import annotations

from pathlib import Path

from hotloop.doctor.patch.edit import Insertion
from hotloop.doctor.patch.imports import (
    binds_torch,
    end_of_imports,
    inserted_after,
    refuse_another_torch,
)
from hotloop.doctor.patch.source import Source, Unsafe
from hotloop.optimizations.source_edit import SetUp


def set_up_edit(source: Source, wanted: SetUp, workdir: Path) -> Insertion:
    """source: the main script. Raises `Unsafe`."""
    for word in wanted.clashes:
        if word in source.module.code:
            raise Unsafe(f"the script speaks of `{word}` itself")
    refuse_another_torch(source)
    first = next((each for each in source.module.body if binds_torch(each)), None)
    if first is None:
        raise Unsafe("torch is not imported at the top of the main script under its own name")
    last = end_of_imports(source, first, workdir)
    return inserted_after(source, last, "".join(f"{line}\n" for line in wanted.lines))
