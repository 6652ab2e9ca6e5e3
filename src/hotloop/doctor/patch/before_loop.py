"""A line about the model before the loop that calls it: `model.compile()`."""

from __future__ import annotations

import ast

import libcst as cst

from hotloop.doctor.patch.edit import Insertion
from hotloop.doctor.patch.imports import inserted_before
from hotloop.doctor.patch.source import Source, Unsafe
from hotloop.optimizations.source_edit import BeforeLoop

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
    return inserted_before(
        source, source.statement_of(loop), wanted.line.format(model=model) + "\n"
    )


def _names(callee: cst.BaseExpression) -> list[str]:
    """`self` and `self.model`; raises `Unsafe` where the callee is more than names and dots."""
    if isinstance(callee, cst.Attribute):
        inner = _names(callee.value)
        return [*inner, f"{inner[-1]}.{callee.attr.value}"]
    if not isinstance(callee, cst.Name):
        raise Unsafe("the model has no plain name there")
    return [callee.value]


def _binds(loop: cst.For | cst.While, names: list[str]) -> bool:
    """Whether anything inside gives one of these names another value; nested functions too."""
    return any(name in names for node in ast.walk(_tree(loop)) for name in _bound_by(node))


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


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.Name, ast.Attribute)):
        return [] if isinstance(node.ctx, ast.Load) else [ast.unparse(node)]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name.split(".")[0] for each in node.names]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(
        node,
        (
            *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
            *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
        ),
    ):
        return [node.name] if node.name is not None else []
    return [node.rest] if isinstance(node, ast.MatchMapping) and node.rest is not None else []
