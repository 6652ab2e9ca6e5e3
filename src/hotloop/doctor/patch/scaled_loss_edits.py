"""Edits for a gradient scaler: `scaler.scale(loss).backward()`, `unscale_` before clipping, `scaler.step(optimizer)`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst

from hotloop.doctor.patch.edit import Change, Edit, Insertion
from hotloop.doctor.patch.source import Source, Unsafe, code_of

_INNER = (cst.Lambda, cst.BaseComp, cst.IfExp, cst.BooleanOperation)
"""What is inside of these may be evaluated never, or several times, in its statement."""


def scaled_loss_edits(
    source: Source, calls: Mapping[str, Sequence[cst.Call]], scaler: str
) -> list[Edit]:
    """calls: by part, `backward`, `clip` or `step`, those in which it took effect. Raises `Unsafe`."""
    steps, clips = calls.get("step", ()), calls.get("clip", ())
    if len(steps) != 1 or len(clips) > 1 or not calls.get("backward"):
        raise Unsafe(
            "its loop is not one backward pass, one clipping at most and one optimizer step"
        )
    (step,) = steps
    optimizer = code_of(_owner(step, "step"))
    if not optimizer.replace(".", "").isidentifier():
        raise Unsafe("the optimizer has no plain name there")
    if step.args:
        raise Unsafe("the optimizer's step is given arguments")
    if any(_binds(each, optimizer) for each in source.outward(step)):
        raise Unsafe(f"`{optimizer}` is another one in each round of a loop there")
    edits: list[Edit] = [_through(each, f"{scaler}.scale") for each in calls["backward"]]
    for clip in clips:
        if _function(source, clip) is not _function(source, step):
            raise Unsafe("gradients are clipped in another function than the optimizer steps in")
        edits.append(_beside(source, clip, f"{scaler}.unscale_({optimizer})", after=False))
    edits.append(_stepped(step, scaler))
    edits.append(_beside(source, step, f"{scaler}.update()", after=True))
    return edits


def _owner(call: cst.Call, method: str) -> cst.BaseExpression:
    """`loss` of `loss.backward()`."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != method:
        raise Unsafe(f"`{method}` is not called as a method there")
    return call.func.value


def _binds(node: cst.CSTNode, optimizer: str) -> bool:
    root = optimizer.split(".")[0]
    return isinstance(node, cst.For) and re.search(rf"\b{root}\b", code_of(node.target)) is not None


def _function(source: Source, node: cst.CSTNode) -> cst.CSTNode | None:
    kinds = (cst.FunctionDef, cst.Lambda)
    return next((each for each in source.outward(node) if isinstance(each, kinds)), None)


def _through(call: cst.Call, name: str) -> Change:
    """`loss.backward()` becomes `name(loss).backward()`."""
    _owner(call, "backward")

    def to(updated: Any) -> cst.Call:
        scaled = cst.Call(cst.parse_expression(name), [cst.Arg(updated.func.value)])
        return updated.with_changes(func=updated.func.with_changes(value=scaled))  # type: ignore[no-any-return]

    return Change(call, to)


def _stepped(call: cst.Call, scaler: str) -> Change:
    """`optimizer.step()` becomes `scaler.step(optimizer)`."""

    def to(updated: Any) -> cst.Call:
        func = updated.func.with_changes(value=cst.Name(scaler))
        return updated.with_changes(func=func, args=[cst.Arg(updated.func.value)])  # type: ignore[no-any-return]

    return Change(call, to)


def _beside(source: Source, call: cst.Call, line: str, *, after: bool) -> Insertion:
    """Before or after the call's statement, which has its line to itself."""
    statement = source.statement_of(call)
    alone = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
    if not alone or any(isinstance(each, _INNER) for each in source.outward(call)):
        raise Unsafe(f"`{line}` needs a line beside a statement that has more on its own")
    return Insertion(statement, f"{line}\n", after=after)
