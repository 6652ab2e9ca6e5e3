"""Edits at the call of the model: through a function (`in_bf16(model, x)`), or a line before its loop."""

from __future__ import annotations

import ast
import re

import libcst as cst

from hotloop.doctor.patch.edit import Change, Insertion
from hotloop.doctor.patch.imports import (
    binds_torch,
    is_import,
    refuse_another_torch,
)
from hotloop.doctor.patch.source import Frame, Source, Unsafe, bound_by
from hotloop.optimizations.source_edit import (
    AroundCall,
    BeforeLoop,
    BeforeTraining,
    WrappedArgument,
)


def around_call_edit(source: Source, call: cst.Call, wanted: AroundCall) -> Change:
    """The edit of one call. Raises `Unsafe`."""
    source.refuse_builtin(call)

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

    return Change(call, to)


def definition_edit(
    source: Source, first: cst.Call, wanted: AroundCall | WrappedArgument | BeforeTraining
) -> Insertion:
    """The function or class, below the imports that come before its first use. Raises `Unsafe`."""
    for name in (wanted.name, *re.findall(r"(?m)^(?:def )?(\w+)(?:\(| = )", wanted.definition)):
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
    below = max(0, 2 - _blank_above_next(source, last))
    return Insertion(last, lines, after=True, below=below)


def _blank_above_next(source: Source, statement: cst.CSTNode) -> int:
    body = list(source.module.body)
    following = body[next(place for place, each in enumerate(body) if each is statement) + 1]
    count = 0
    for line in getattr(following, "leading_lines", ()):
        if line.comment is not None:
            break
        count += 1
    return count


_FUNCTIONS = (cst.FunctionDef, cst.Lambda, cst.ClassDef, cst.BaseComp)


def before_loop_edit(source: Source, call: cst.Call, wanted: BeforeLoop) -> Insertion:
    """Before the outermost loop around the call in which its model stays the same. Raises `Unsafe`.

    Only before a loop that also steps: one inside of a step would have the line run in every step.
    """
    source.refuse_builtin(call)
    names = _names(call.func)
    model = names[-1]
    loop = None
    for node in source.outward(call):
        if isinstance(node, _FUNCTIONS):
            break
        if isinstance(node, (cst.For, cst.While)):
            if _binds(node, names):
                break
            loop = node
    if loop is None:
        raise Unsafe(f"`{model}` is not called in a loop there in which it stays the same")
    if not _steps(loop):
        raise Unsafe("the loop there is not the one that steps the optimizer")
    return _inserted_before(source, loop, wanted.line.format(model=model))


def training_call(source: Source, frame: Frame) -> cst.Call:
    """`trainer.train()` on that line. Raises `Unsafe` where there is not one."""
    found = [
        each
        for each in source.calls()
        if isinstance(each.func, cst.Attribute)
        and each.func.attr.value == "train"
        and source.start(each)[0] <= frame.line <= source.end(each)[0]
    ]
    if len(found) != 1:
        raise Unsafe("no single call of `train` was found there")
    return found[0]


def before_training_edit(source: Source, call: cst.Call, wanted: BeforeTraining) -> Insertion:
    """Before the statement of `training_call`. Raises `Unsafe`."""
    assert isinstance(call.func, cst.Attribute)
    owner = _names(call.func.value)[-1]
    return _inserted_before(source, call, wanted.line.format(owner=owner))


def _inserted_before(source: Source, node: cst.CSTNode, line: str) -> Insertion:
    """Above the statement that the node is part of."""
    return Insertion(source.statement_of(node), f"{line}\n", after=False)


def _names(callee: cst.BaseExpression) -> list[str]:
    """`self` and `self.model`; raises `Unsafe` where it is more than names and dots."""
    if isinstance(callee, cst.Attribute):
        inner = _names(callee.value)
        return [*inner, f"{inner[-1]}.{callee.attr.value}"]
    if not isinstance(callee, cst.Name):
        raise Unsafe("what is called has no plain name there")
    return [callee.value]


def _binds(loop: cst.For | cst.While, names: list[str]) -> bool:
    """Whether anything inside gives one of these names another value; nested functions too."""
    return any(name in names for node in ast.walk(_tree(loop)) for name in bound_by(node))


def _steps(loop: cst.For | cst.While) -> bool:
    """Whether a method `step` is called inside."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        for node in ast.walk(_tree(loop))
    )


def _tree(loop: cst.For | cst.While) -> ast.Module:
    return ast.parse(cst.Module([loop.with_changes(leading_lines=[])]).code)
