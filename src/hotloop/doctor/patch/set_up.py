"""Switches that are set once: lines in the main script, right after torch was imported."""

from __future__ import annotations

from pathlib import Path

import libcst as cst

from hotloop.doctor.patch.edit import Insertion
from hotloop.doctor.patch.imports import (
    end_of_imports,
    inserted_after,
    refuse_another_torch,
    torch_is_bound,
)
from hotloop.doctor.patch.source import Source, Unsafe
from hotloop.doctor.patch.taken import Frame
from hotloop.optimizations.source_edit import SetUp


def set_up_edit(source: Source, frame: Frame, wanted: SetUp, workdir: Path) -> Insertion:
    """frame: the main script's, importing torch or what imports it. Raises `Unsafe`."""
    if frame.span is None:
        raise Unsafe("Python was run without positions in its code")
    statement = _statement_at(source, frame.span[:2])
    if any(isinstance(each, (cst.Try, cst.TryStar)) for each in source.outward(statement)):
        raise Unsafe("torch is imported inside a `try` there")
    block = source.parent(statement)
    assert block is not None
    refuse_another_torch(source)
    last = end_of_imports(source, statement, workdir)
    lines = [*wanted.lines]
    if not torch_is_bound(source, block, until=last) and not (
        block is not source.module and torch_is_bound(source, source.module, until=source.module)
    ):
        if block is not source.module:
            raise Unsafe("torch is imported inside a function there, under no name of its own")
        lines = ["import torch", *lines]
    return inserted_after(source, last, "".join(f"{line}\n" for line in lines))


def _statement_at(source: Source, start: tuple[int, int]) -> cst.CSTNode:
    """The simple statement that was being executed."""
    for node in source.statements():
        if isinstance(node, cst.SimpleStatementLine) and (
            source.start(node) <= start < source.end(node)
        ):
            return node
    raise Unsafe("no statement was found there")
