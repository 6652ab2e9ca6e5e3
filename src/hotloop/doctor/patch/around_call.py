"""The model's call through a function: `model(x)` becomes `in_bf16(model, x)`, and the function is written above."""

from __future__ import annotations

import ast
import re

import libcst as cst

from hotloop.doctor.patch import syntax_check
from hotloop.doctor.patch.edit import Change, Insertion
from hotloop.doctor.patch.imports import (
    binds_torch,
    inserted_after,
    is_import,
    refuse_another_torch,
)
from hotloop.doctor.patch.source import Source, Unsafe
from hotloop.optimizations.source_edit import AroundCall


def around_call_edit(source: Source, call: cst.Call, wanted: AroundCall) -> Change:
    """The edit of one call. Raises `Unsafe`."""
    source.refuse_builtin(call)
    end = source.end(call)

    def to(updated: cst.Call) -> cst.Call:
        model = cst.Arg(updated.func)
        if updated.args:
            model = model.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        return updated.with_changes(
            func=cst.Name(wanted.name),
            args=[model, *updated.args],
            lpar=updated.lpar,
            rpar=updated.rpar,
        )

    def redo(tree: ast.Module) -> None:
        syntax_check.call_through(tree, end, wanted.name)

    return Change(call, to, redo)


def definition_edit(source: Source, first: cst.Call, wanted: AroundCall) -> Insertion:
    """The function, below the imports that come before its first use. Raises `Unsafe`."""
    for name in (wanted.name, *re.findall(r"(?m)^def (\w+)", wanted.definition)):
        if re.search(rf"\b{name}\b", source.module.code):
            raise Unsafe(f"`{name}` is a name in this file already")
    refuse_another_torch(source)
    use = source.outward(first)[-2] if len(source.outward(first)) > 1 else first
    imports: list[cst.CSTNode] = []
    for statement in source.module.body:
        if statement is use:
            break
        if is_import(statement):
            imports.append(statement)
        elif imports and isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            break
    if not imports:
        raise Unsafe("nothing is imported at the top of this file")
    last = imports[-1]
    lines = wanted.definition
    if not any(binds_torch(statement) for statement in imports):
        lines = f"import torch\n{lines}"
    return inserted_after(source, last, lines, below=max(0, 2 - _blank_above_next(source, last)))


def _blank_above_next(source: Source, statement: cst.CSTNode) -> int:
    body = list(source.module.body)
    following = body[next(place for place, each in enumerate(body) if each is statement) + 1]
    count = 0
    for line in getattr(following, "leading_lines", ()):
        if line.comment is not None:
            break
        count += 1
    return count
